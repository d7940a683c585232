"""The machine form of resource manager scenarios: a list of CPUs and a list of NUMA nodes, as JSON.

``cpus``: [{id, core, socket, numa, uncore?}], where ``core`` is a hardware id, unique within a socket; ``numaNodes``: [{id,
memory, hugepages? {size: pages}, distances?}], where ``distances`` are in order of the listed nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.api.cpuset import bits
from bayplan.api.quantity import Quantity
from bayplan.machine.layout import DescriptionError
from bayplan.machine.masks import MAX_ID
from bayplan.machine.topology import CPU, Machine, NUMANode


def machine_from_scenario(data: Mapping[str, Any]) -> Machine:
    """The machine of a scenario. Raises DescriptionError for what is missing or of another kind."""
    try:
        _check_ids(data["cpus"], "cpus")
        _check_ids(data["numaNodes"], "numaNodes")
        rows = sorted(data["cpus"], key=lambda row: row["id"])
        siblings: dict[tuple[int, int, int], int] = {}
        for row in rows:
            key = (row["socket"], row["numa"], row["core"])
            siblings[key] = siblings.get(key, 0) | 1 << row["id"]
        cpus = [_cpu(row, siblings[(row["socket"], row["numa"], row["core"])]) for row in rows]
        order = [node["id"] for node in data["numaNodes"]]
        nodes = [_node(node, order, cpus) for node in data["numaNodes"]]
    except DescriptionError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DescriptionError(f"machine: {type(error).__name__}: {error}") from None
    if not cpus:
        raise DescriptionError("machine.cpus: at least one CPU is needed")
    return Machine(
        cpus=tuple(cpus),
        numa_nodes=tuple(sorted(nodes, key=lambda node: node.id)),
        memory_bytes=sum(node.memory_bytes for node in nodes),
    )


def _check_ids(rows: list[Mapping[str, Any]], what: str) -> None:
    """Ids are unique numbers that a kernel could have given."""
    seen: set[int] = set()
    for position, row in enumerate(rows):
        number = row["id"]
        if not isinstance(number, int) or not 0 <= number < MAX_ID:
            raise DescriptionError(f"machine.{what}[{position}].id: {number!r} is not a number from 0 to {MAX_ID - 1}")
        if number in seen:
            raise DescriptionError(f"machine.{what}[{position}].id: {number} occurs twice")
        seen.add(number)


def _cpu(row: Mapping[str, Any], siblings: int) -> CPU:
    return CPU(
        id=row["id"],
        core=next(bits(siblings)),
        socket=row["socket"],
        numa=row["numa"],
        uncore=row.get("uncore"),
        siblings_mask=siblings,
        core_id=row["core"],
    )


def _node(row: Mapping[str, Any], order: list[int], cpus: list[CPU]) -> NUMANode:
    mask = 0
    for cpu in cpus:
        if cpu.numa == row["id"]:
            mask |= 1 << cpu.id
    return NUMANode(
        id=row["id"],
        cpus_mask=mask,
        memory_bytes=int(row["memory"]),
        hugepages={Quantity.parse(size).value(): pages for size, pages in (row.get("hugepages") or {}).items()},
        distances=dict(zip(order, row.get("distances") or (), strict=False)),
    )
