"""In-place resize of containers with exclusive CPUs.

Kubernetes 1.37 refuses it: "infeasible". With the gate InPlacePodVerticalScalingExclusiveCPUs (KEP-5554, alpha) a container
keeps the CPUs that it was given first, its *baseline*, for life: growing adds CPUs, from the NUMA nodes that it already uses
first; shrinking gives back others before it may touch the baseline, and never goes below it. The baseline is known until the
agent restarts; from then on it is what the container holds at that time.

Invariants: as for the CPU manager's state, and baseline within the container's set at all times. A refused resize changes
nothing.
"""

from __future__ import annotations

from bayplan.api.cpuset import bits
from bayplan.managers.cpu import StaticCPUPolicy
from bayplan.managers.pod_view import ContainerView, PodView
from bayplan.managers.provider import AllocationError


class ResizeRefused(Exception):
    """The resize cannot be done on this node, now or ever; the message goes into the pod's PodResizePending condition."""


def resize_cpus(cpu: StaticCPUPolicy, before: PodView, after: PodView) -> dict[str, int]:
    """Changes the sets of all containers whose CPU count changed; container -> new set. Raises :class:`ResizeRefused`."""
    saved = cpu.state.copy()
    changed: dict[str, int] = {}
    try:
        for old, new in zip(before.containers, after.containers, strict=True):
            if old.cpus == new.cpus:
                continue
            if not old.cpus or not new.cpus:
                raise ResizeRefused(
                    f"container {new.name}: a resize cannot move a container between exclusive CPUs and the shared pool"
                )
            if cpu.options.full_pcpus_only and new.cpus % cpu.topology.cpus_per_core:
                raise ResizeRefused(
                    f"SMT Alignment Error: requested {new.cpus} cpus not multiple cpus per core = "
                    f"{cpu.topology.cpus_per_core}"
                )
            changed[new.name] = _grow(cpu, after, new) if new.cpus > old.cpus else _shrink(cpu, after, new)
    except (ResizeRefused, AllocationError) as error:
        cpu.state = saved
        raise ResizeRefused(str(error)) from None
    return changed


def _grow(cpu: StaticCPUPolicy, pod: PodView, container: ContainerView) -> int:
    held = cpu.state.get(pod.uid, container.name) or 0
    free = cpu.free()
    missing = container.cpus - held.bit_count()
    near = free & cpu.topology.cpus_in_nodes(cpu.topology.nodes_of_cpus(held))
    group = cpu.topology.cpus_per_core if cpu.options.full_pcpus_only else 1
    taken = cpu.take(near, min(missing, near.bit_count()) // group * group)
    taken |= cpu.take(free & ~taken, missing - taken.bit_count())
    cpu.state.default &= ~taken
    cpu.state.put(pod.uid, container.name, held | taken)
    return held | taken


def _shrink(cpu: StaticCPUPolicy, pod: PodView, container: ContainerView) -> int:
    held = cpu.state.get(pod.uid, container.name) or 0
    baseline = cpu.baseline.get(pod.uid, {}).get(container.name, held)
    if container.cpus < baseline.bit_count():
        raise ResizeRefused(
            f"container {container.name}: {container.cpus} CPUs are fewer than the {baseline.bit_count()} that it started with"
        )
    given_back = 0
    for number in sorted(bits(held & ~baseline), reverse=True)[: held.bit_count() - container.cpus]:
        given_back |= 1 << number
    cpu.state.put(pod.uid, container.name, held & ~given_back)
    cpu.state.default |= given_back & ~cpu.state.held_by(pod.uid)
    return held & ~given_back
