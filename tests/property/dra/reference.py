"""A second opinion: the allocation semantics as plainly as they can be written, slow and without any cleverness.

Works on decoded JSON and shares nothing with the product. Every check looks at the list of picks from scratch, so there is no
state to undo. Quantities are whole numbers; selectors are of the few forms that `worlds` writes.

Written from KEP-4381, 4815, 4816, 5018, 5055, 5075, 5491, 5945, 5963, 6080 and the document's sections 2.1, 2.2, 2.4, 2.5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

DRIVER = "gpu.example.com"
Json = dict[str, Any]


class Refused(Exception):
    """The attempt ends in an error of this class, met on this device."""

    def __init__(self, error_class: str, device: Dev | None = None) -> None:
        self.answer = ("error", error_class, device and "/".join(device.id))


class Overflow(Exception):
    """The claim would have more than 32 devices: other devices for its earlier requests need not be tried."""


@dataclass(eq=False)
class Dev:
    driver: str
    pool: str
    slice: Json
    json: Json

    @property
    def id(self) -> tuple[str, str, str]:
        return (self.driver, self.pool, self.json["name"])

    @property
    def multi(self) -> bool:
        return bool(self.json.get("allowMultipleAllocations"))

    @property
    def consumption(self) -> dict[tuple[str, str], int]:
        return {
            (use["counterSet"], name): int(c["value"])
            for use in self.json.get("consumesCounters", [])
            for name, c in use["counters"].items()
        }

    @property
    def groups(self) -> dict[str, set[str]]:
        return {u["counterSet"]: set(u.get("compatibilityGroups") or []) for u in self.json.get("consumesCounters", [])}


@dataclass
class Pool:
    driver: str
    name: str
    state: str = "ok"
    devices: list[Dev] = field(default_factory=list)
    counters: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def late(self) -> bool:
        return any(d.json.get("bindingConditions") is not None for d in self.devices)


@dataclass(eq=False)
class Step:
    claim: int
    request: str
    name: str
    json: Json
    listed: list[Dev] | None = None

    @property
    def admin(self) -> bool:
        return bool(self.json.get("adminAccess"))

    @property
    def need(self) -> int:
        return len(self.listed) if self.listed is not None else self.json.get("count", 0)


@dataclass(eq=False)
class Pick:
    step: Step
    device: Dev
    amounts: dict[str, int]


class Reference:
    def __init__(self, world: Json) -> None:
        self.world = world
        self.on = world["features"]
        self.node = world["node"]["metadata"]["name"]
        self.classes = {c["metadata"]["name"]: c for c in world["classes"]}
        self.pools = self.gather()
        self.devices = [d for p in self.pools for d in p.devices]
        self.whole: set[tuple[str, str, str]] = set()
        self.shares: dict[tuple[str, str, str], list[dict[str, int]]] = {}
        for claim in world["allocated"]:
            for r in claim["status"]["allocation"]["devices"]["results"]:
                if r.get("adminAccess"):
                    continue
                key = (r["driver"], r["pool"], r["device"])
                if r.get("shareID") and self.on.get("ConsumableCapacity"):
                    used = {k: int(v) for k, v in (r.get("consumedCapacity") or {}).items()}
                    self.shares.setdefault(key, []).append(used)
                else:
                    self.whole.add(key)

    def decide(self) -> Any:
        """("ok", per claim a list of (request, pool, device, admin, consumed)), "none", or ("error", class, device)."""
        try:
            levels = self.levels()
            picks = self.level(levels, 0, [])
        except Refused as e:
            return e.answer
        if picks is None:
            return ("error", "invalid-pools-node", None) if any(p.state == "invalid" for p in self.pools) else "none"
        result: list[list[tuple[Any, ...]]] = [[] for _ in self.world["claims"]]
        for p in picks:
            used = p.amounts if self.shared(p.device) else {}
            result[p.step.claim].append((p.step.name, p.device.pool, p.device.json["name"], p.step.admin, used))
        return ("ok", result)

    # pools

    def gather(self) -> list[Pool]:
        found: dict[tuple[str, str], list[Json]] = {}
        # Slices of the node itself come first: the first one's count is what a pool is measured by.
        for s in sorted(self.world["slices"], key=lambda s: "nodeName" not in s["spec"]):
            spec = s["spec"]
            here = spec.get("nodeName") == self.node or spec.get("allNodes")
            if spec.get("perDeviceNodeSelection"):
                here = any(d.get("nodeName") == self.node or d.get("allNodes") for d in spec.get("devices", []))
            if here:
                found.setdefault((spec["driver"], spec["pool"]["name"]), []).append(s)
        pools = []
        for (driver, name), seen in found.items():
            newest = max(s["spec"]["pool"]["generation"] for s in seen)
            kept = [s for s in seen if s["spec"]["pool"]["generation"] == newest]
            wanted = kept[0]["spec"]["pool"]["resourceSliceCount"]
            everywhere = kept
            if len(kept) != wanted:
                same = [
                    s
                    for s in self.world["slices"]
                    if (s["spec"]["driver"], s["spec"]["pool"]["name"]) == (driver, name)
                ]
                if any(s["spec"]["pool"]["generation"] > newest for s in same):
                    continue
                everywhere = [s for s in same if s["spec"]["pool"]["generation"] == newest]
            pool = Pool(driver, name)
            pools.append(pool)
            if len(everywhere) != wanted:
                pool.state = "incomplete"
                continue
            for s in sorted(kept, key=lambda s: s["metadata"]["name"]):
                pool.devices += [Dev(driver, name, s, d) for d in s["spec"].get("devices", [])]
            for s in everywhere:
                for c in s["spec"].get("sharedCounters", []):
                    for n, v in c["counters"].items():
                        pool.counters[(c["name"], n)] = int(v["value"])
            names = [d.json["name"] for d in pool.devices]
            used = [
                c for s in everywhere for d in s["spec"].get("devices", []) for c in Dev(driver, name, s, d).consumption
            ]
            if len(names) != len(set(names)) or not pool.counters.keys() >= set(used):
                pool.state, pool.devices = "invalid", []
        return sorted(pools, key=lambda p: (p.late, p.driver, p.name))

    # checks before the search

    def levels(self) -> list[tuple[int, list[Step]]]:
        levels = []
        for number, claim in enumerate(self.world["claims"]):
            least = 0
            for r in claim["spec"]["devices"]["requests"]:
                alternatives = r.get("firstAvailable")
                if alternatives is None:
                    steps = [Step(number, r["name"], r["name"], r["exactly"])]
                else:
                    steps = [Step(number, r["name"], f"{r['name']}/{a['name']}", a) for a in alternatives]
                for step in steps:
                    if step.json["allocationMode"] == "All":
                        self.list_all(step)
                least += min(s.need for s in steps)
                levels.append((number, steps))
            if least > 32:
                raise Refused("too-many-devices")
        return levels

    def list_all(self, step: Step) -> None:
        for pool in self.pools:
            if pool.state != "ok":
                raise Refused(f"all-pool-{pool.state}")
        step.listed = []
        for d in self.devices:
            if self.selected(step, d) and self.for_node(d):
                amounts = self.amounts(step, d)
                if amounts is not None and self.room(d, amounts, []):
                    step.listed.append(d)

    # the search

    def level(self, levels: list[tuple[int, list[Step]]], at: int, picks: list[Pick]) -> list[Pick] | None:
        if at == len(levels):
            return picks
        claim, steps = levels[at]
        overflows = 0
        for step in steps:
            if step.listed is not None and not step.listed:
                continue
            try:
                if sum(p.step.claim == claim for p in picks) + step.need > 32:
                    raise Overflow
                found = self.pick(levels, at, step, 0, -1, picks)
            except Overflow:
                overflows += 1
                continue
            if found is not None:
                return found
        if overflows == len(steps) and at and levels[at - 1][0] == claim:
            raise Overflow
        return None

    def pick(
        self, levels: list[tuple[int, list[Step]]], at: int, step: Step, k: int, last: int, picks: list[Pick]
    ) -> list[Pick] | None:
        if k == step.need:
            return self.level(levels, at + 1, picks)
        pool = step.listed[k : k + 1] if step.listed is not None else self.devices[last + 1 :]
        for d in pool:
            if self.taken(step, d, picks):
                continue
            if step.listed is None and not (self.selected(step, d) and self.for_node(d)):
                continue
            for name in self.derived(step):
                self.value(step, d, name)
            amounts = self.amounts(step, d)
            if amounts is None or not self.room(d, amounts, picks) or not self.counters(d, picks):
                continue
            if not self.tolerated(step, d):
                continue
            if not self.constraints(step, d, picks):
                if step.listed is not None:
                    raise Refused("all-constraint", d)
                continue
            if d.slice["spec"].get("skipNodeOperations") and not self.on.get("OptionalNodeOperations"):
                raise Refused("feature-disabled", d)
            found = self.pick(levels, at, step, k + 1, self.devices.index(d), [*picks, Pick(step, d, amounts)])
            if found is not None:
                return found
        return None

    # the checks on one device

    def shared(self, d: Dev) -> bool:
        return d.multi and bool(self.on.get("ConsumableCapacity"))

    def taken(self, step: Step, d: Dev, picks: list[Pick]) -> bool:
        if step.admin:
            return any(p.device is d and p.step.claim == step.claim for p in picks)
        if d.id in self.whole or (d.id in self.shares and not self.shared(d)):
            return True
        return not self.shared(d) and any(p.device is d for p in picks)

    def selected(self, step: Step, d: Dev) -> bool:
        if d.json.get("bindingConditions") and not self.on.get("DeviceBindingAndStatus"):
            return False
        own = self.classes[step.json["deviceClassName"]]["spec"].get("selectors", [])
        return all(self.cel(s["cel"]["expression"], d) for s in [*own, *step.json.get("selectors", [])])

    def cel(self, text: str, d: Dev) -> bool:
        attributes = d.json.get("attributes", {})
        if text == f'device.driver == "{DRIVER}"':
            return d.driver == DRIVER
        if text == "device.allowMultipleAllocations":
            return d.multi
        mine = d.driver == DRIVER
        if m := re.fullmatch(r"(12 / .*) != 0", text):
            self.quotient(m[1], d, "cel-runtime")
            return True
        if m := re.fullmatch(r'device\.attributes\["gpu\.example\.com"\]\.index (<|>=) (\d+)', text):
            if not mine or "index" not in attributes:
                raise Refused("cel-runtime", d)
            value = attributes["index"]["int"]
            return bool(value < int(m[2]) if m[1] == "<" else value >= int(m[2]))
        m = re.fullmatch(r'("model" in .* && )?device\.attributes\["gpu\.example\.com"\]\.model == "(\w+)"', text)
        assert m is not None, text
        if not mine or "model" not in attributes:
            if m[1]:
                return False
            raise Refused("cel-runtime", d)
        return bool(attributes["model"]["string"] == m[2])

    def quotient(self, text: str, d: Dev, error_class: str) -> int:
        """``12 / (index - n)``, which fails on one device; never 0 on the others, as there are fewer than 12."""
        m = re.fullmatch(r'12 / \(device\.attributes\["gpu\.example\.com"\]\.index - (\d+)\)', text)
        assert m is not None, text
        index = d.json.get("attributes", {}).get("index") if d.driver == DRIVER else None
        if index is None or index["int"] == int(m[1]):
            raise Refused(error_class, d)
        return int(12 / (index["int"] - int(m[1])))

    def for_node(self, d: Dev) -> bool:
        if not d.slice["spec"].get("perDeviceNodeSelection"):
            return True
        return bool(d.json.get("nodeName") == self.node or d.json.get("allNodes"))

    def amounts(self, step: Step, d: Dev) -> dict[str, int] | None:
        if not self.on.get("ConsumableCapacity"):
            return {}
        asked = (step.json.get("capacity") or {}).get("requests", {})
        capacity = d.json.get("capacity", {})
        if any(name not in capacity for name in asked):
            return None
        amounts = {}
        for name, c in capacity.items():
            policy, value = c.get("requestPolicy"), int(c["value"])
            amount = int(asked.get(name, policy["default"] if policy else value))
            if policy and name in asked and asked[name] != policy["default"]:
                if "validValues" in policy:
                    amount = min((int(v) for v in policy["validValues"] if int(v) >= amount), default=-1)
                elif "validRange" in policy:
                    low, step_ = int(policy["validRange"]["min"]), int(policy["validRange"].get("step", 0))
                    amount = max(amount, low)
                    if step_:
                        amount = low + -(-(amount - low) // step_) * step_
                    if "max" in policy["validRange"] and amount > int(policy["validRange"]["max"]):
                        return None
            if amount < 0 or amount > value:
                return None
            amounts[name] = amount
        return amounts

    def room(self, d: Dev, amounts: dict[str, int], picks: list[Pick]) -> bool:
        if not self.shared(d):
            return True
        before = [*self.shares.get(d.id, []), *(p.amounts for p in picks if p.device is d)]
        return all(
            sum(b.get(name, 0) for b in before) + amount <= int(d.json["capacity"][name]["value"])
            for name, amount in amounts.items()
        )

    def counters(self, d: Dev, picks: list[Pick]) -> bool:
        if not d.groups:
            return True
        pool = next(p for p in self.pools if p.devices and d in p.devices)
        held = [x for x in pool.devices if x.id in self.whole or x.id in self.shares]
        picked = [p.device for p in picks if p.device.pool == d.pool and p.device.driver == d.driver]
        if self.shared(d) and (d in held or d in picked):
            return True
        counted = list(held)
        for x in picked:
            if not self.shared(x) or x not in counted:
                counted.append(x)
        counted.append(d)
        for key, value in pool.counters.items():
            if sum(x.consumption.get(key, 0) for x in counted) > value:
                return False
        if not self.on.get("DeviceCompatibilityGroups"):
            return True
        for name in d.groups:
            sets = [x.groups[name] for x in counted if name in x.groups]
            if any(sets) and not set.intersection(*sets):
                return False
        return True

    def tolerated(self, step: Step, d: Dev) -> bool:
        if not self.on.get("DeviceTaints"):
            return True
        tolerations = step.json.get("tolerations", [])
        return all(
            t["effect"] == "None"
            or any(
                (not x.get("effect") or x["effect"] == t["effect"])
                and (not x.get("key") or x["key"] == t["key"])
                and (x.get("operator") == "Exists" or x.get("value", "") == t.get("value", ""))
                for x in tolerations
            )
            for t in d.json.get("taints", [])
        )

    def constraints(self, step: Step, d: Dev, picks: list[Pick]) -> bool:
        for c in self.world["claims"][step.claim]["spec"]["devices"].get("constraints", []):
            names = c.get("requests") or []
            attribute = c.get("matchAttribute") or c["distinctAttribute"]
            covered = [
                self.value(p.step, p.device, attribute)
                for p in [*picks, Pick(step, d, {})]
                if p.step.claim == step.claim and (not names or p.step.request in names or p.step.name in names)
            ]
            if names and step.request not in names and step.name not in names:
                continue
            if any(v is None for v in covered):
                return False
            sets = [v for v in covered if v is not None]
            if "matchAttribute" in c:
                if not set.intersection(*sets):
                    return False
            elif sum(map(len, sets)) != len(set.union(*sets)):
                return False
        return True

    def derived(self, step: Step) -> dict[str, str]:
        found = step.json.get("derivedAttributes", []) if self.on.get("DerivedAttributes") else []
        return {a["name"]: a["expression"] for a in found}

    def value(self, step: Step, d: Dev, name: str) -> set[tuple[str, Any]] | None:
        attributes = d.json.get("attributes", {})
        if name in self.derived(step):
            text = self.derived(step)[name]
            if text.startswith("12 / "):
                return {("int", self.quotient(text, d, "derived-runtime"))}
            bare = text.removeprefix('device.attributes["gpu.example.com"].')
            if d.driver != DRIVER or bare not in attributes:
                raise Refused("derived-runtime", d)
            return set(attributes[bare].items())
        domain, _, bare = name.partition("/")
        a = attributes.get(name) or (attributes.get(bare) if domain == d.driver else None)
        if not a:
            return None
        ((kind, value),) = a.items()
        return {(kind.rstrip("s"), v) for v in value} if isinstance(value, list) else {(kind, value)}
