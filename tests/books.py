"""Whether the objects of a cluster that has come to rest agree: what every chaos test asks at its end.

Works on decoded JSON, knows nothing of the allocator or the controllers, and counts everything itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bayplan.api.quantity import Quantity

Object = dict[str, Any]
FINALIZER = "resource.kubernetes.io/delete-protection"
EXTENDED = "resource.kubernetes.io/extended-resource-claim"
DeviceKey = tuple[str, str, str]


@dataclass
class Books:
    """Everything there is. ``shapes``: devices as they are published when all of them are; slices may lack some."""

    pods: list[Object]
    claims: list[Object]
    groups: list[Object] = field(default_factory=list)
    rules: list[Object] = field(default_factory=list)
    slices: list[Object] = field(default_factory=list)
    shapes: list[Object] = field(default_factory=list)

    def wrong(self) -> list[str]:
        """One line for everything that does not add up."""
        return [
            *self._devices(),
            *self._counters(),
            *self._claims(),
            *self._pods(),
            *self._groups(),
            *self._rules(),
        ]

    def settled(self) -> dict[str, Any]:
        """What a restart of every program must not change."""
        pods = {_name(p): (p["spec"].get("nodeName"), _phase(p)) for p in self.pods}
        claims = {
            _name(c): (sorted(_device(r) for r in _results(c)), sorted(r["uid"] for r in _reserved(c)))
            for c in self.claims
        }
        return {"pods": pods, "claims": claims}

    def changed(self, before: dict[str, Any]) -> list[str]:
        """How `settled` differs from what it was."""
        now = self.settled()
        return [
            f"{kind} {name}: {before[kind].get(name)} -> {now[kind].get(name)}"
            for kind in now
            for name in sorted(before[kind].keys() | now[kind].keys())
            if before[kind].get(name) != now[kind].get(name)
        ]

    # -- devices

    def _known(self) -> dict[DeviceKey, Object]:
        known: dict[DeviceKey, Object] = {}
        for s in [*self.slices, *self.shapes]:
            for device in s["spec"].get("devices", []):
                known[s["spec"]["driver"], s["spec"]["pool"]["name"], device["name"]] = device
        return known

    def _held(self) -> Iterator[tuple[Object, Object]]:
        for claim in self.claims:
            for result in _results(claim):
                if not result.get("adminAccess"):
                    yield claim, result

    def _devices(self) -> Iterator[str]:
        """A device is one claim's, or shared as far as its capacity goes."""
        known = self._known()
        whole: Counter[DeviceKey] = Counter()
        shared: dict[DeviceKey, dict[str, Quantity]] = defaultdict(dict)
        shares: Counter[str] = Counter()
        for _claim, result in self._held():
            key = _device(result)
            if not known.get(key, {}).get("allowMultipleAllocations"):
                whole[key] += 1
                continue
            shares[result.get("shareID", "")] += 1
            for name, amount in result.get("consumedCapacity", {}).items():
                shared[key][name] = shared[key].get(name, Quantity(0)) + Quantity.parse(amount)
        yield from (f"{key} is allocated {n} times" for key, n in whole.items() if n > 1)
        yield from (f"share {uid!r} is used {n} times" for uid, n in shares.items() if n > 1 or not uid)
        for key, consumed in shared.items():
            for name, amount in consumed.items():
                total = Quantity.parse(known[key]["capacity"][name]["value"])
                if amount > total:
                    yield f"{key} gives {amount} of its {total} {name}"

    def _counters(self) -> Iterator[str]:
        """No counter set gives more than it has, and those who draw on it are compatible."""
        known = self._known()
        left: dict[tuple[str, str, str, str], Quantity] = {}
        groups: dict[tuple[str, str, str], list[set[str]]] = defaultdict(list)
        for s in self.shapes:
            for counters in s["spec"].get("sharedCounters", []):
                for name, counter in counters["counters"].items():
                    place = (s["spec"]["driver"], s["spec"]["pool"]["name"], counters["name"], name)
                    left[place] = Quantity.parse(counter["value"])
        for _claim, result in self._held():
            driver, pool, _device_name = key = _device(result)
            for use in known.get(key, {}).get("consumesCounters", []):
                groups[driver, pool, use["counterSet"]].append(set(use.get("compatibilityGroups", [])))
                for name, counter in use["counters"].items():
                    left[driver, pool, use["counterSet"], name] -= Quantity.parse(counter["value"])
        yield from (f"counter {place} is overdrawn: {value}" for place, value in left.items() if value < Quantity(0))
        for place, found in groups.items():
            if any(found) and not set.intersection(*found):
                yield f"incompatible devices on {place}: {found}"

    # -- claims

    def _claims(self) -> Iterator[str]:
        pods = {_uid(p): p for p in self.pods}
        groups = {_uid(g): g for g in self.groups}
        entries: Counter[tuple[str, str]] = Counter()
        for claim in self.claims:
            name, reserved = _name(claim), _reserved(claim)
            allocated = "allocation" in claim.get("status", {})
            for r in reserved:
                consumer = groups.get(r["uid"]) if r["resource"] == "podgroups" else pods.get(r["uid"])
                if consumer is None or consumer["metadata"]["name"] != r["name"]:
                    yield f"{name} is reserved for {r['name']}, which is gone"
                elif r["resource"] == "pods" and _phase(consumer) in ("Succeeded", "Failed"):
                    yield f"{name} is reserved for {r['name']}, which has ended"
            if len({r["uid"] for r in reserved}) != len(reserved):
                yield f"{name} is reserved twice for somebody"
            if allocated and not reserved:
                yield f"{name} is allocated and nobody uses it"
            if reserved and not allocated:
                yield f"{name} is reserved and not allocated"
            if allocated != (FINALIZER in claim["metadata"].get("finalizers", [])):
                yield f"{name}: allocated is {allocated}, finalizers are {claim['metadata'].get('finalizers')}"
            if claim["metadata"].get("deletionTimestamp") and not reserved:
                yield f"{name} is being deleted for ever"
            for owner in claim["metadata"].get("ownerReferences", []):
                entry = claim["metadata"].get("annotations", {}).get("resource.kubernetes.io/pod-claim-name", EXTENDED)
                entries[owner["uid"], entry] += 1
                if owner["uid"] not in pods and owner["uid"] not in groups:
                    yield f"{name} lost its owner {owner['name']}"
                elif _phase(pods.get(owner["uid"], {})) in ("Succeeded", "Failed"):
                    yield f"{name} has outlived its pod {owner['name']}"
        yield from (f"{n} claims for entry {e} of {uid}" for (uid, e), n in entries.items() if n > 1)

    # -- pods

    def _pods(self) -> Iterator[str]:
        claims = {_name(c): c for c in self.claims}
        for pod in self.pods:
            name, status = _name(pod), pod.get("status", {})
            if pod["metadata"].get("deletionTimestamp"):
                yield f"pod {name} is being deleted for ever"
            if _phase(pod) in ("Succeeded", "Failed"):
                continue
            yield from (f"pod {name}: {problem}" for problem in self._claims_of(pod, claims))
            if not pod["spec"].get("nodeName"):
                conditions = {c["type"]: c for c in status.get("conditions", [])}
                if conditions.get("PodScheduled", {}).get("status") != "False":
                    yield f"pod {name} waits and nobody says why"

    def _claims_of(self, pod: Object, claims: Mapping[str, Object]) -> Iterator[str]:
        namespace, uid, status = pod["metadata"]["namespace"], _uid(pod), pod.get("status", {})
        generated = {s["name"]: s.get("resourceClaimName") for s in status.get("resourceClaimStatuses", [])}
        group = pod["spec"].get("schedulingGroup", {}).get("podGroupName")
        used: list[tuple[str, bool]] = []
        for entry in pod["spec"].get("resourceClaims", []):
            found = entry.get("resourceClaimName") or generated.get(entry["name"])
            if found is None:
                if pod["spec"].get("nodeName"):
                    yield f"runs without a claim for {entry['name']}"
                continue
            used.append((found, "resourceClaimTemplateName" in entry))
        extended = status.get("extendedResourceClaimStatus")
        if extended:
            used.append((extended["resourceClaimName"], True))
        for found, owned in used:
            claim = claims.get(f"{namespace}/{found}")
            if claim is None:
                if pod["spec"].get("nodeName"):
                    yield f"runs without its claim {found}"
                continue
            owners = [o["uid"] for o in claim["metadata"].get("ownerReferences", [])]
            if owned and not owners:
                yield f"its claim {found} has no owner"
            if not pod["spec"].get("nodeName"):
                if uid in (r["uid"] for r in _reserved(claim)):
                    yield f"waits and holds {found}"
                continue
            holders = {(r["resource"], r["name"]) for r in _reserved(claim)}
            if ("pods", pod["metadata"]["name"]) not in holders and ("podgroups", group) not in holders:
                yield f"runs and {found} is reserved for {sorted(holders)}"

    def _groups(self) -> Iterator[str]:
        names = {_name(c) for c in self.claims}
        for group in self.groups:
            for entry in group.get("status", {}).get("resourceClaimStatuses", []):
                if f"{group['metadata']['namespace']}/{entry['resourceClaimName']}" not in names:
                    yield f"group {_name(group)} lost its claim {entry['resourceClaimName']}"

    def _rules(self) -> Iterator[str]:
        """Nothing runs on a device whose taint evicts, and the rule says that it is done."""
        for rule in self.rules:
            name, taint = _name(rule), rule["spec"]["taint"]
            conditions = {c["type"]: c for c in rule.get("status", {}).get("conditions", [])}
            found = conditions.get("EvictionInProgress")
            if found is None:
                yield f"rule {name} says nothing"
            elif found["status"] != "False":
                yield f"rule {name}: {found}"
            selector = rule["spec"].get("deviceSelector")
            if taint["effect"] != "NoExecute" or selector is None:
                continue
            for claim, result in self._held():
                reached = all(selector.get(k) in (None, result[k]) for k in ("driver", "pool", "device"))
                # A group keeps its claim without any pod; what is evicted is pods.
                for pod in self._users(claim) if reached else ():
                    yield f"rule {name} forbids {_device(result)}, which {_name(pod)} uses"

    def _users(self, claim: Object) -> Iterator[Object]:
        """The pods that run with the claim."""
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        for pod in self.pods:
            status = pod.get("status", {})
            used = [e.get("resourceClaimName") for e in pod["spec"].get("resourceClaims", [])]
            used += [s.get("resourceClaimName") for s in status.get("resourceClaimStatuses", [])]
            used.append(status.get("extendedResourceClaimStatus", {}).get("resourceClaimName"))
            here = pod["metadata"]["namespace"] == namespace and pod["spec"].get("nodeName")
            if here and name in used and _phase(pod) not in ("Succeeded", "Failed"):
                yield pod


def _results(claim: Object) -> list[Object]:
    found: list[Object] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return found


def _reserved(claim: Object) -> list[Object]:
    found: list[Object] = claim.get("status", {}).get("reservedFor", [])
    return found


def _device(result: Object) -> DeviceKey:
    return result["driver"], result["pool"], result["device"]


def _name(obj: Object) -> str:
    metadata = obj["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else str(metadata["name"])


def _uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])


def _phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def total(lines: Iterable[str], most: int = 12) -> str:
    """The first few lines, for an assertion."""
    found = list(lines)
    return "\n".join([*found[:most], *([f"... and {len(found) - most} more"] if len(found) > most else [])])
