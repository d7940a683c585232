"""What must hold of allocations, whoever made them: checked on finished results, without any search.

Shares no code with the product. Written from the KEPs; the reference's reading of single facts (selector, value, amount) is
used, its search is not.
"""

from __future__ import annotations

from typing import Any

from tests.property.dra.reference import Dev, Reference, Step

Json = dict[str, Any]


def world_violations(world: Json, allocations: list[Json]) -> list[str]:
    """What all allocations of the cluster together overdraw: devices, capacities, counters, groups."""
    world = {**world, "allocated": []}
    ref = Reference(world)
    known = {d.id: d for d in ref.devices}
    wrong: list[str] = []
    whole: dict[Any, int] = {}
    shares: dict[Any, list[dict[str, int]]] = {}
    for allocation in allocations:
        for r in allocation["devices"].get("results", []):
            if r.get("adminAccess"):
                continue
            key = (r["driver"], r["pool"], r["device"])
            if r.get("shareID"):
                shares.setdefault(key, []).append({k: int(v) for k, v in r.get("consumedCapacity", {}).items()})
            else:
                whole[key] = whole.get(key, 0) + 1
    for key, count in whole.items():
        if count > 1 or key in shares:
            wrong.append(f"{key} is held {count} times and shared {len(shares.get(key, []))} times")
    for key, amounts in shares.items():
        for name, capacity in known[key].json.get("capacity", {}).items():
            if sum(a.get(name, 0) for a in amounts) > int(capacity["value"]):
                wrong.append(f"{key}: capacity {name} exceeded")
    for pool in ref.pools:
        used = [d for d in pool.devices if d.id in whole or d.id in shares]
        for counter, value in pool.counters.items():
            if sum(d.consumption.get(counter, 0) for d in used) > value:
                wrong.append(f"{pool.name}: counter {counter} exceeded")
        for name in {s for d in used for s in d.groups}:
            sets = [d.groups[name] for d in used if name in d.groups]
            if any(sets) and not set.intersection(*sets):
                wrong.append(f"{pool.name}: groups on {name} do not go together")
    return wrong


def claim_violations(world: Json, claim: Json, allocation: Json) -> list[str]:
    """What one claim's allocation lacks of what the claim asks for."""
    ref = Reference({**world, "allocated": [], "claims": [claim]})
    known = {d.id: d for d in ref.devices}
    spec = claim["spec"]["devices"]
    by_request: dict[str, list[Json]] = {}
    for r in allocation["devices"].get("results", []):
        by_request.setdefault(r["request"], []).append(r)
    wrong: list[str] = []
    chosen: dict[str, str] = {}
    steps: dict[str, Step] = {}
    for request in spec["requests"]:
        names = (
            [request["name"]]
            if "exactly" in request
            else [f"{request['name']}/{a['name']}" for a in request["firstAvailable"]]
        )
        present = [n for n in names if n in by_request]
        if len(present) != 1:
            wrong.append(f"request {request['name']} is served by {present}")
            continue
        name = present[0]
        chosen[name] = request["name"]
        json = request["exactly"] if "exactly" in request else request["firstAvailable"][names.index(name)]
        step = steps[name] = Step(0, request["name"], name, json)
        got = by_request[name]
        if json["allocationMode"] == "ExactCount" and len(got) != json["count"]:
            wrong.append(f"{name}: {len(got)} devices, wanted {json['count']}")
        if len({(r["driver"], r["pool"], r["device"]) for r in got}) != len(got):
            wrong.append(f"{name}: a device twice")
        for r in got:
            wrong += _device_violations(ref, step, known[(r["driver"], r["pool"], r["device"])], r)
    if set(by_request) - set(chosen):
        wrong.append(f"results for unknown requests {set(by_request) - set(chosen)}")
    for c in spec.get("constraints", []):
        names_ = c.get("requests") or []
        attribute = c.get("matchAttribute") or c["distinctAttribute"]
        values = [
            ref.value(steps[name], known[(r["driver"], r["pool"], r["device"])], attribute)
            for name, results in by_request.items()
            for r in results
            if not names_ or name in names_ or chosen.get(name) in names_
        ]
        wrong += _constraint_violations(attribute, "matchAttribute" in c, values)
    return wrong


def _device_violations(ref: Reference, step: Step, d: Dev, result: Json) -> list[str]:
    wrong = []
    if not ref.selected(step, d) or not ref.for_node(d):
        wrong.append(f"{step.name}: {d.id} is not selected")
    if not ref.tolerated(step, d):
        wrong.append(f"{step.name}: {d.id} is tainted")
    amounts = ref.amounts(step, d)
    if amounts is None:
        wrong.append(f"{step.name}: {d.id} cannot serve the capacity request")
    elif ref.shared(d) and amounts != {k: int(v) for k, v in result.get("consumedCapacity", {}).items()}:
        wrong.append(f"{step.name}: {d.id} consumes {result.get('consumedCapacity')}, wanted {amounts}")
    if bool(result.get("shareID")) != ref.shared(d):
        wrong.append(f"{step.name}: {d.id} share ID {result.get('shareID')}")
    if bool(result.get("adminAccess")) != step.admin:
        wrong.append(f"{step.name}: admin access {result.get('adminAccess')}")
    return wrong


def _constraint_violations(attribute: str, match: bool, values: list[Any]) -> list[str]:
    if any(not v for v in values):
        return [f"{attribute} is missing"]
    sets = [v for v in values if v]
    if not sets:
        return []
    if match:
        return [] if set.intersection(*sets) else [f"no common {attribute}"]
    return [] if sum(map(len, sets)) == len(set.union(*sets)) else [f"{attribute} is not distinct"]
