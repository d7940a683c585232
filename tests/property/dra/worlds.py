"""Small worlds for the allocator, drawn so that every feature meets every other."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

DRIVER = "gpu.example.com"
ALL_FEATURES = {
    "AdminAccess": True,
    "ConsumableCapacity": True,
    "DeviceBindingAndStatus": True,
    "DeviceCompatibilityGroups": True,
    "DerivedAttributes": True,
    "DeviceTaints": True,
    "ListTypeAttributes": True,
    "PartitionableDevices": True,
    "PrioritizedList": True,
}
Json = dict[str, Any]

_attribute = f'device.attributes["{DRIVER}"]'
SELECTORS = [
    f"{_attribute}.index < 2",
    f"{_attribute}.index >= 1",
    f'"model" in {_attribute} && {_attribute}.model == "A"',
    "device.allowMultipleAllocations",
]
FAILING = [f'{_attribute}.model == "A"', *(f"12 / ({_attribute}.index - {n}) != 0" for n in range(3))]
"""They fail where there is no model, or on one device."""
DERIVED = [f"{_attribute}.zone", f"{_attribute}.model", *(f"12 / ({_attribute}.index - {n})" for n in range(6))]
HOPELESS = f"{_attribute}.index >= 99"


def _maybe(draw: st.DrawFn, chance: int) -> bool:
    return draw(st.integers(0, 9)) < chance


@st.composite
def devices(draw: st.DrawFn, names: list[str], sets: list[str]) -> list[Json]:
    out: list[Json] = []
    for number, name in enumerate(names):
        device: Json = {"name": name, "attributes": {"index": {"int": number}}}
        attributes = device["attributes"]
        if _maybe(draw, 7):
            attributes["model"] = {"string": draw(st.sampled_from("AB"))}
        if _maybe(draw, 8):
            attributes["zone"] = {"int": draw(st.integers(0, 1))}
        if _maybe(draw, 6):
            links = draw(st.sets(st.integers(0, 3), min_size=1, max_size=2))
            attributes[f"{DRIVER}/link"] = {"ints": sorted(links)} if len(links) > 1 else {"int": min(links)}
        if _maybe(draw, 3):
            device["allowMultipleAllocations"] = True
        if _maybe(draw, 4):
            device["capacity"] = {"mem": draw(capacities())}
        if sets and _maybe(draw, 7):
            use: Json = {
                "counterSet": draw(st.sampled_from(sets)),
                "counters": {"slots": {"value": str(draw(st.integers(0, 2)))}},
            }
            if _maybe(draw, 4):
                use["compatibilityGroups"] = draw(st.sampled_from([["x"], ["y"], ["x", "y"]]))
            device["consumesCounters"] = [use]
        if _maybe(draw, 2):
            effect = draw(st.sampled_from(["NoSchedule", "NoExecute", "None"]))
            device["taints"] = [{"key": draw(st.sampled_from("kl")), "effect": effect}]
        if _maybe(draw, 1):
            device["bindingConditions"] = ["ready"]
        out.append(device)
    return out


@st.composite
def capacities(draw: st.DrawFn) -> Json:
    value = draw(st.integers(2, 6))
    capacity: Json = {"value": str(value)}
    kind = draw(st.integers(0, 3))
    if kind == 1:
        capacity["requestPolicy"] = {"default": str(draw(st.integers(0, 2)))}
    elif kind == 2:
        capacity["requestPolicy"] = {"default": "1", "validValues": ["1", "2", str(value)]}
    elif kind == 3:
        capacity["requestPolicy"] = {"default": "1", "validRange": {"min": "1", "step": "2"}}
    return capacity


@st.composite
def pools(draw: st.DrawFn, names: list[str]) -> list[Json]:
    """One pool of one or two slices of devices, perhaps with a slice of counters."""
    name = draw(st.sampled_from(names))
    driver = draw(st.sampled_from([DRIVER, DRIVER, DRIVER, "nic.example.com"]))
    sets = draw(st.sampled_from([[], [], ["c0"], ["c0", "c1"]]))
    parts = draw(st.integers(1, 2))
    count = parts + bool(sets) + (0 if draw(st.integers(0, 19)) else 1)
    where: Json = draw(st.sampled_from([{"nodeName": "n1"}, {"nodeName": "n1"}, {"allNodes": True}]))
    slices = []
    for part in range(parts):
        size = draw(st.integers(1, 3))
        spec: Json = {
            "driver": driver,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": count},
            **where,
            "devices": draw(devices([f"d{part}{i}" for i in range(size)], sets)),
        }
        slices.append({"metadata": {"name": f"{driver}-{name}-{1 - part}"}, "spec": spec})
    if sets:
        counters = [{"name": s, "counters": {"slots": {"value": str(draw(st.integers(1, 4)))}}} for s in sets]
        spec = {**slices[0]["spec"], "sharedCounters": counters}
        del spec["devices"]
        slices.append({"metadata": {"name": f"{driver}-{name}-counters"}, "spec": spec})
    return slices


@st.composite
def steps(draw: st.DrawFn, alternative: bool, selectors: list[str]) -> Json:
    step: Json = {"deviceClassName": draw(st.sampled_from(["any", "any", "gpu"]))}
    if _maybe(draw, 1):
        step["allocationMode"] = "All"
    else:
        step |= {"allocationMode": "ExactCount", "count": draw(st.sampled_from([1, 1, 2, 3]))}
    if _maybe(draw, 3):
        step["selectors"] = [{"cel": {"expression": draw(st.sampled_from(selectors))}}]
        if step["deviceClassName"] == "any":
            step["deviceClassName"] = "gpu"
    if _maybe(draw, 2):
        step["tolerations"] = [draw(st.sampled_from([{"operator": "Exists"}, {"key": "k", "operator": "Exists"}]))]
    if _maybe(draw, 2):
        step["capacity"] = {"requests": {"mem": str(draw(st.integers(0, 4)))}}
    if not alternative and _maybe(draw, 2):
        step["adminAccess"] = True
    return step


@st.composite
def claims(draw: st.DrawFn, name: str, selectors: list[str]) -> Json:
    requests: list[Json] = []
    names = []
    for number in range(draw(st.integers(1, 3))):
        request: Json = {"name": f"r{number}"}
        names.append(request["name"])
        if _maybe(draw, 3):
            request["firstAvailable"] = [{"name": f"s{i}", **draw(steps(True, selectors))} for i in range(2)]
            names += [f"r{number}/s0", f"r{number}/s1"]
        else:
            request["exactly"] = draw(steps(False, selectors))
        requests.append(request)
    devices_: Json = {"requests": requests}
    constraints = []
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        kind = draw(st.sampled_from(["matchAttribute", "distinctAttribute"]))
        constraint: Json = {kind: f"{DRIVER}/{draw(st.sampled_from(['zone', 'link', 'index']))}"}
        if _maybe(draw, 5):
            constraint["requests"] = sorted(draw(st.sets(st.sampled_from(names), min_size=1, max_size=2)))
        constraints.append(constraint)
    if constraints:
        devices_["constraints"] = constraints
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"}, "spec": {"devices": devices_}}


@st.composite
def allocated(draw: st.DrawFn, slices: list[Json]) -> list[Json]:
    """Claims that hold some of the devices, whole or shared."""
    out: list[Json] = []
    for s in slices:
        for device in s["spec"].get("devices", []):
            if not _maybe(draw, 2):
                continue
            result: Json = {
                "request": "r",
                "driver": s["spec"]["driver"],
                "pool": s["spec"]["pool"]["name"],
                "device": device["name"],
            }
            if device.get("allowMultipleAllocations"):
                result["shareID"] = f"share-{len(out)}"
                if device.get("capacity"):
                    result["consumedCapacity"] = {"mem": "1"}
            elif _maybe(draw, 2):
                result["adminAccess"] = True
            name = f"old{len(out)}"
            out.append(
                {
                    "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"},
                    "spec": {"devices": {}},
                    "status": {"allocation": {"devices": {"results": [result]}}},
                }
            )
    return out


@st.composite
def worlds(draw: st.DrawFn, failing: bool = False) -> Json:
    """A scenario as `bayplan replay allocation` takes it. ``failing``: with selectors that fail on some devices."""
    selectors = SELECTORS + (FAILING * 3 if failing else [])
    slices = draw(pools(["a", "b"]))
    if _maybe(draw, 5):
        slices += [
            s for s in draw(pools(["b", "c"])) if s["metadata"]["name"] not in {x["metadata"]["name"] for x in slices}
        ]
    features = dict(ALL_FEATURES)
    if _maybe(draw, 2):
        features[draw(st.sampled_from(["DeviceBindingAndStatus", "DeviceTaints"]))] = False
    return {
        "id": "w",
        "features": features,
        "node": {"metadata": {"name": "n1"}},
        "slices": slices,
        "classes": [
            {"metadata": {"name": "any"}, "spec": {}},
            {
                "metadata": {"name": "gpu"},
                "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
            },
        ],
        "claims": [draw(claims(f"c{i}", selectors)) for i in range(draw(st.integers(1, 2)))],
        "allocated": draw(allocated(slices)),
    }


@st.composite
def crowded(draw: st.DrawFn) -> Json:
    """Many alike devices and many wishes: what makes a search go back often."""
    kind = draw(st.sampled_from(["plain", "counters", "groups", "shares", "links"]))
    spec: Json = {"driver": DRIVER, "nodeName": "n1"}
    found = []
    for number in range(draw(st.integers(3, 5))):
        attributes: Json = {
            "index": {"int": number},
            "zone": {"int": draw(st.integers(0, 1))},
            "model": {"string": "A"},
        }
        device: Json = {"name": f"d{number}", "attributes": attributes}
        if kind == "links":
            attributes["link"] = {"ints": sorted(draw(st.sets(st.integers(0, 2), min_size=1)))}
        else:
            attributes["link"] = {"int": draw(st.integers(0, 2))}
        if kind in ("counters", "groups"):
            use: Json = {"counterSet": f"c{draw(st.integers(0, 1))}", "counters": {}}
            use["counters"] = {"slots": {"value": str(draw(st.integers(1, 2)))}}
            if kind == "groups":
                use["compatibilityGroups"] = draw(st.sampled_from([["x"], ["y"], ["x", "y"], []]))
            device["consumesCounters"] = [use]
        if kind == "shares" and draw(st.booleans()):
            device |= {
                "allowMultipleAllocations": True,
                "capacity": {"mem": {"value": "3", "requestPolicy": {"default": "1"}}},
            }
        found.append(device)
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2 if kind in ("counters", "groups") else 1}
    slices = [{"metadata": {"name": "s"}, "spec": {**spec, "pool": pool, "devices": found}}]
    if kind in ("counters", "groups"):
        counters = [{"name": f"c{i}", "counters": {"slots": {"value": str(draw(st.integers(2, 3)))}}} for i in range(2)]
        slices.append({"metadata": {"name": "t"}, "spec": {**spec, "pool": pool, "sharedCounters": counters}})
    wishes = []
    for name in ["c0", "c1"][: draw(st.integers(1, 2))]:
        requests: list[Json] = []
        for number in range(draw(st.integers(1, 3))):
            step: Json = {
                "deviceClassName": "gpu",
                "allocationMode": "ExactCount",
                "count": draw(st.sampled_from([1, 1, 2])),
            }
            if _maybe(draw, 4):
                step["selectors"] = [{"cel": {"expression": draw(st.sampled_from(SELECTORS))}}]
            if kind == "shares" and _maybe(draw, 5):
                step["capacity"] = {"requests": {"mem": str(draw(st.integers(1, 2)))}}
            if _maybe(draw, 2):
                step["adminAccess"] = True
            if _maybe(draw, 2):
                step.pop("adminAccess", None)
                other = {**step, "count": 1}
                requests.append(
                    {"name": f"r{number}", "firstAvailable": [{"name": "s0", **step}, {"name": "s1", **other}]}
                )
            else:
                requests.append({"name": f"r{number}", "exactly": step})
        spec_: Json = {"requests": requests}
        attribute = draw(st.sampled_from([None, "zone", "link", "index"]))
        if attribute is not None:
            spec_["constraints"] = [
                {draw(st.sampled_from(["matchAttribute", "distinctAttribute"])): f"{DRIVER}/{attribute}"}
            ]
        wishes.append({"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"}, "spec": {"devices": spec_}})
    return {
        "id": "w",
        "features": dict(ALL_FEATURES),
        "node": {"metadata": {"name": "n1"}},
        "slices": slices,
        "classes": [{"metadata": {"name": "gpu"}, "spec": {}}],
        "claims": wishes,
        "allocated": [],
    }


@st.composite
def partitioned(draw: st.DrawFn) -> Json:
    """GPUs cut alike into overlapping partitions, and wishes for kinds of them in any order."""
    kinds: dict[str, list[tuple[int, ...]]] = {
        "F": [(0, 1, 2, 3)],
        "H": [(0, 1), (2, 3)],
        "Q": [(0,), (1,), (2,), (3,)],
    }
    cut = draw(st.sampled_from(["FHQ", "FH", "HQ", "FQ"]))
    parts = [(k, slots) for k in cut for slots in kinds[k]]
    parts = draw(st.permutations(parts))[: draw(st.integers(2, 5))]
    found: list[Json] = []
    for gpu in range(draw(st.integers(2, 3 if len(parts) < 4 else 2))):
        for kind, slots in parts:
            use = {f"s{i}": {"value": "1"} for i in slots}
            groups = {"compatibilityGroups": ["half" if kind == "H" else "any"]} if "F" not in cut else {}
            device: Json = {
                "name": f"g{gpu}-{kind}{slots[0]}",
                "attributes": {"model": {"string": kind}, "zone": {"int": gpu}, "index": {"int": len(found)}},
                "consumesCounters": [{"counterSet": f"gpu{gpu}", "counters": use, **groups}],
            }
            if not draw(st.integers(0, 14)):
                device["taints"] = [{"key": "k", "effect": "NoSchedule"}]
            found.append(device)
    if draw(st.booleans()):
        found.sort(key=lambda d: d["name"].partition("-")[2])
    names = sorted({d["consumesCounters"][0]["counterSet"] for d in found})
    spec: Json = {"driver": DRIVER, "nodeName": "n1", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 2}}
    counters = [{"name": n, "counters": {f"s{i}": {"value": "1"} for i in range(4)}} for n in names]
    requests: list[Json] = []
    total = 0
    while total < 4 and len(requests) < 4:
        step: Json = {
            "deviceClassName": "gpu",
            "allocationMode": "ExactCount",
            "count": draw(st.sampled_from([1, 1, 2])),
        }
        kind = draw(st.sampled_from([*cut, *cut, "*"]))
        if kind != "*":
            step["selectors"] = [{"cel": {"expression": f'"model" in {_attribute} && {_attribute}.model == "{kind}"'}}]
        total += step["count"]
        requests.append({"name": f"r{len(requests)}", "exactly": step})
        if draw(st.booleans()):
            break
    if len(requests) > 1 and draw(st.integers(0, 3)) == 0:
        step = requests[0]["exactly"]
        requests[0] = {
            "name": "r0",
            "firstAvailable": [{"name": "a", **step, "count": 2}, {"name": "b", **step, "count": 1}],
        }
    devices_: Json = {"requests": requests}
    if draw(st.booleans()):
        attribute = f"{DRIVER}/{draw(st.sampled_from(['zone', 'zone', 'model']))}"
        constraint: Json = {draw(st.sampled_from(["matchAttribute", "distinctAttribute"])): attribute}
        if draw(st.booleans()):
            constraint["requests"] = [r["name"] for r in requests[:2]]
        devices_["constraints"] = [constraint]
    claim = {"metadata": {"name": "c0", "namespace": "ns", "uid": "uid-c0"}, "spec": {"devices": devices_}}
    slices = [
        {"metadata": {"name": "s"}, "spec": {**spec, "devices": found}},
        {"metadata": {"name": "t"}, "spec": {**spec, "sharedCounters": counters}},
    ]
    held = [d for d in found if not draw(st.integers(0, 11))][:1]
    return {
        "id": "w",
        "features": dict(ALL_FEATURES),
        "node": {"metadata": {"name": "n1"}},
        "slices": slices,
        "classes": [{"metadata": {"name": "gpu"}, "spec": {}}],
        "claims": [claim],
        "allocated": [
            {
                "metadata": {"name": "old", "namespace": "ns", "uid": "uid-old"},
                "spec": {"devices": {}},
                "status": {
                    "allocation": {
                        "devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "p", "device": d["name"]}]}
                    }
                },
            }
            for d in held
        ],
    }


@st.composite
def perilous(draw: st.DrawFn) -> Json:
    """Selectors and derived attributes that fail on some devices, lists that constraints refuse, wishes without hope."""
    world: Json = draw(st.one_of(worlds(failing=True), crowded(), crowded(), partitioned()))
    for claim in world["claims"]:
        spec = claim["spec"]["devices"]
        constraints = spec.setdefault("constraints", [])
        steps = [s for r in spec["requests"] for s in r.get("firstAvailable", [r.get("exactly")])]
        for step in steps:
            if _maybe(draw, 4):
                name = draw(st.sampled_from(["derived", "derived", "zone", "link"]))
                expression = draw(st.sampled_from(DERIVED))
                step["derivedAttributes"] = [{"name": f"{DRIVER}/{name}", "expression": expression}]
            if _maybe(draw, 2):
                step.setdefault("selectors", []).append({"cel": {"expression": draw(st.sampled_from(FAILING))}})
            if _maybe(draw, 1):
                step["allocationMode"] = "All"
                step.pop("count", None)
            elif _maybe(draw, 1):
                step["count"] = draw(st.sampled_from([4, 12, 20, 31]))
        if _maybe(draw, 4):
            constraint: Json = {draw(st.sampled_from(["matchAttribute", "distinctAttribute"])): f"{DRIVER}/derived"}
            if _maybe(draw, 6):
                constraint["requests"] = [draw(st.sampled_from(spec["requests"]))["name"]]
            constraints.append(constraint)
        if _maybe(draw, 4):
            step = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
            step["selectors"] = [{"cel": {"expression": HOPELESS}}]
            place = draw(st.integers(0, len(spec["requests"])))
            spec["requests"].insert(place, {"name": "hopeless", "exactly": step})
    if _maybe(draw, 1):
        world["slices"][0]["spec"]["skipNodeOperations"] = ["NodePrepareResources"]
    return world
