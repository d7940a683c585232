"""Speed of the DRA allocator on the inputs that were measured with the Go allocator.

    python bench/allocation.py [--profile NAME] [NAME ...]

Prints a row per input: Go's median, ours (median and minimum of many runs), their ratio. Selectors and inventories are warm;
every run has a claim of its own (name and UID), so no pair of claim and world comes twice, and the finished result object is
part of the time. ``--profile`` prints where the time of one input goes.
"""

from __future__ import annotations

import argparse
import cProfile
import gzip
import pstats
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

import msgspec

from bayplan.api.core import Node
from bayplan.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from bayplan.dra.allocator import Allocator, Plan
from bayplan.dra.features import Features
from bayplan.dra.inventory import Inventory
from bayplan.dra.ledger import Ledger, claim_holder, claim_key
from bayplan.dra.record import Record

BENCH = Path(__file__).resolve().parents[1].parent / "shared" / "bench"


class Input(msgspec.Struct):
    id: str
    features: dict[str, bool]
    slices: list[ResourceSlice]
    classes: list[DeviceClass]
    claims: list[ResourceClaim]
    node: Node | None = None
    nodes: list[Node] = []
    allocated: list[ResourceClaim] = []


@dataclass
class Row:
    name: str
    go: float | None
    """Seconds; for rates, per pod."""
    runs: list[float]
    unit: str = ""

    def __str__(self) -> str:
        middle, least = median(self.runs), min(self.runs)
        go = f"{_time(self.go):>9}  {self.go / middle:6.1f}x" if self.go else f"{'':>9}  {'':>7}"
        return f"{self.name:44} {_time(middle):>9} (min {_time(least):>9})  Go {go}  {self.unit}"


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def load(name: str) -> Iterator[Input]:
    """The inputs of one file."""
    decoder = msgspec.json.Decoder(Input)
    with gzip.open(BENCH / f"{name}.json.gz") as lines:
        for line in lines:
            if line.strip():
                yield decoder.decode(line)


_serial = count()


def fresh(claims: list[ResourceClaim]) -> list[ResourceClaim]:
    """The same wishes as new claims."""
    number = next(_serial)
    out = []
    for claim in claims:
        copy = msgspec.json.decode(msgspec.json.encode(claim), type=ResourceClaim)
        assert copy.metadata is not None
        copy.metadata.name = f"{copy.metadata.name}-{number}"
        copy.metadata.uid = f"uid-{number}-{copy.metadata.name}"
        out.append(copy)
    return out


def allocator_of(world: Input, *, remember: bool = True) -> Allocator:
    """A new allocator over the input's world; ``remember``: verdicts, from pod to pod of equal content."""
    ledger = Ledger(world.allocated)
    classes = {c.metadata.name: c for c in world.classes if c.metadata is not None and c.metadata.name}
    return Allocator(Inventory(world.slices), ledger, classes, Features.from_names(world.features), remember=remember)


def timed(action: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def one_node(world: Input, runs: int, *, recorded: bool = False) -> list[float]:
    """Allocate on the input's node, again and again with new claims; ``recorded``: with the record of reasons."""
    allocator = allocator_of(world, remember=False)
    node = world.node
    assert node is not None
    allocator.allocate(fresh(world.claims), node)
    taken = []
    for _ in range(runs):
        claims = fresh(world.claims)
        record = Record() if recorded else None
        taken.append(timed(lambda c=claims, r=record: allocator.allocate(c, node, r)))  # type: ignore[misc]
    return taken


def feasible(plan: Plan, nodes: list[Node], wanted: int, start: int = 0) -> list[tuple[Node, list[object]]]:
    """The first nodes that fit, with their results."""
    found: list[tuple[Node, list[object]]] = []
    for number in range(len(nodes)):
        node = nodes[(start + number) % len(nodes)]
        results = plan.allocate(node)
        if results is not None:
            found.append((node, list(results)))
            if len(found) >= wanted:
                break
    return found


def cluster(world: Input, wanted: int, runs: int) -> list[float]:
    """Find so many feasible nodes for a new claim."""
    allocator = allocator_of(world)
    feasible(allocator.prepare(fresh(world.claims)), world.nodes, len(world.nodes))
    taken = []
    for number in range(runs):
        claims = fresh(world.claims)
        start = number * 37 % len(world.nodes)
        taken.append(timed(lambda c=claims, s=start: feasible(allocator.prepare(c), world.nodes, wanted, s)))  # type: ignore[misc]
    return taken


def fill(world: Input, pods: int, wanted: int = 1) -> list[float]:
    """Pods one after the other; of ``wanted`` feasible nodes the first is taken, the start rotates, results are booked."""
    allocator = allocator_of(world)
    feasible(allocator.prepare(fresh(world.claims)), world.nodes, len(world.nodes))
    waiting = [fresh(world.claims) for _ in range(pods)]
    places = {id(node): number for number, node in enumerate(world.nodes)}
    start, begun, placed = 0, time.perf_counter(), 0
    for claims in waiting:
        found = feasible(allocator.prepare(claims), world.nodes, wanted, start)
        if not found:
            continue
        node, results = found[0]
        for claim, result in zip(claims, results, strict=True):
            allocator.ledger.book(claim_key(claim), claim_holder(claim), result)  # type: ignore[arg-type]
        start = (places[id(node)] + 1) % len(world.nodes)
        placed += 1
    took = time.perf_counter() - begun
    return [took / max(placed, 1)]


def pairs(kind: str) -> Input:
    """500 nodes with 6 GPUs and 4 NICs each; a pod wants a GPU (dra1), or a GPU and a NIC of one NUMA node (dra2)."""
    driver = "gpu.example.com"

    def device(node: int, k: int) -> dict[str, object]:
        what = "gpu" if k < 6 else "nic"
        attributes = {
            "type": {"string": what},
            "index": {"int": k},
            "uuid": {"string": f"u-{node:04d}-{k}"},
            "numa": {"int": k % 2},
            "driverVersion": {"version": "1.2.3"},
            "pcie": {"string": f"pci0000:{k % 4:02d}"},
        }
        return {"name": f"{what}-{k}", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}

    def wish(what: str) -> dict[str, object]:
        text = f'device.driver == "{driver}" && device.attributes["{driver}"].type == "{what}"'
        exactly = {"deviceClassName": driver, "allocationMode": "ExactCount", "count": 1}
        return {"name": what, "exactly": {**exactly, "selectors": [{"cel": {"expression": text}}]}}

    names = [f"node-{i:04d}" for i in range(500)]
    devices: dict[str, object] = {"requests": [wish("gpu")]}
    if kind == "dra2":
        match = {"requests": ["gpu", "nic"], "matchAttribute": f"{driver}/numa"}
        devices = {"requests": [wish("gpu"), wish("nic")], "constraints": [match]}
    on = [
        "AdminAccess",
        "ConsumableCapacity",
        "DeviceBindingAndStatus",
        "DeviceTaints",
        "PartitionableDevices",
        "PrioritizedList",
    ]
    world = {
        "id": kind,
        "features": dict.fromkeys(on, True),
        "nodes": [{"metadata": {"name": n, "labels": {"kubernetes.io/hostname": n}}} for n in names],
        "slices": [
            {
                "metadata": {"name": f"slice-{n}"},
                "spec": {
                    "driver": driver,
                    "nodeName": n,
                    "pool": {"name": n, "generation": 1, "resourceSliceCount": 1},
                    "devices": [device(i, k) for k in range(10)],
                },
            }
            for i, n in enumerate(names)
        ],
        "classes": [
            {
                "metadata": {"name": driver},
                "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
            }
        ],
        "claims": [{"metadata": {"name": "c", "namespace": "ns", "uid": "c"}, "spec": {"devices": devices}}],
    }
    return msgspec.convert(world, Input)


SINGLE = {"one-of-8": 22e-6, "all-8": 63e-6, "4-of-8-matchattr": 36e-6, "last-of-128": 2.7e-3, "32-of-128": 0.29e-3}
WORST = {
    "choose-half-unsat-20": 2.1,
    "identical-9-reqs-plus-impossible-unsat": 3.9,
    "pigeonhole-9-on-8-unsat": 0.353,
    "mig-2gpu-any6-then-full-full-unsat": 39e-3,
    "mig-4gpu-8x3g-sat": 0.66e-3,
    "mig-8gpu-8full-sat": 1.6e-3,
}


def rows(wanted: list[str]) -> Iterator[Callable[[], Row]]:
    """Every row, to be measured when it is called."""

    def asked(name: str) -> bool:
        return not wanted or any(w in name for w in wanted)

    for world in load("single"):
        if asked(world.id):
            yield lambda w=world: Row(w.id, SINGLE.get(w.id), one_node(w, 400))  # type: ignore[misc]
    for world in load("worst"):
        if asked(world.id):
            yield lambda w=world: Row(w.id, WORST.get(w.id), one_node(w, 30))  # type: ignore[misc]
    for world in load("worst"):
        name = f"{world.id}, with its record"
        if world.id in WORST and asked(name):
            yield lambda w=world, n=name: Row(n, WORST[w.id], one_node(w, 30, recorded=True))  # type: ignore[misc]
    big = [
        ("cluster-5000 first feasible", "cluster-5000", 0.9e-3, lambda w: cluster(w, 1, 200)),
        ("cluster-5000, 500 feasible", "cluster-5000", 157e-3, lambda w: cluster(w, 500, 20)),
        ("cluster-5000 fill with 3,000 pods", "cluster-5000", 1 / 494, lambda w: fill(w, 3000)),
        ("cluster-1000 fill with 2,000 pods", "cluster-1000", 1 / 1190, lambda w: fill(w, 2000)),
        ("cluster-nofit-1000", "cluster-nofit-1000", 208e-3, lambda w: cluster(w, 1, 20)),
        ("cluster-spanpool-300, 100 feasible", "cluster-spanpool-300", 240e-3, lambda w: cluster(w, 100, 20)),
        ("cluster-nodeselector-300, 100 feasible", "cluster-nodeselector-300", 240e-3, lambda w: cluster(w, 100, 20)),
    ]
    for name, file, go, measure in big:
        if asked(name):
            yield lambda n=name, f=file, g=go, m=measure: Row(n, g, m(next(load(f))), "a pod")  # type: ignore[misc]
    for kind, go in (("dra1", 25e-3), ("dra2", 58e-3)):
        for name, nodes in (
            (f"{kind}: 1,000 pods, every one of 500 nodes", 500),
            (f"{kind}: 1,000 pods, first node", 1),
        ):
            if asked(name):
                yield lambda n=name, k=kind, g=go, w=nodes: Row(n, g, fill(pairs(k), 1000, w), "a pod")  # type: ignore[misc]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only rows whose name contains one of these")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    arguments = parser.parse_args()
    if not BENCH.is_dir():
        sys.exit(f"the inputs are not there: {BENCH}")
    for measure in rows(arguments.names):
        if arguments.profile:
            profile = cProfile.Profile()
            row = profile.runcall(measure)
            print(row)
            pstats.Stats(profile).sort_stats("tottime").print_stats(14)
        else:
            print(measure(), flush=True)


if __name__ == "__main__":
    main()
