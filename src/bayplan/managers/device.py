"""The Device Manager's core: which devices of a device plugin a container gets.

The gRPC side (registration, ListAndWatch, Allocate) belongs to the agent; here are the sets: healthy, in use, free, and by
NUMA node. The kubelet takes devices of one group in random order; here they go in ascending order of id, resources in
order of name, so that results can be compared.

Source: the documentation of device plugins and the Topology Manager; KEP-693, KEP-3573; behaviour as observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bayplan.managers.assignment import PluginDevice
from bayplan.managers.checkpoint_devices import NO_TOPOLOGY, DeviceCheckpoint, DeviceEntry
from bayplan.managers.hints import Budget, Family, HintSet, Threshold
from bayplan.managers.pod_view import ContainerView, PodView
from bayplan.managers.provider import AllocationError, Hints

PreferredAllocation = Callable[[str, Sequence[str], Sequence[str], int], Sequence[str]]
Allocated = dict[str, dict[str, dict[str, tuple[str, ...]]]]
"""pod uid -> container -> resource -> device ids."""


@dataclass(slots=True)
class DeviceManager:
    """Devices by resource, and who holds which. ``nodes``: NUMA nodes that the machine has, as a mask."""

    nodes: int
    preferred: PreferredAllocation | None = None
    devices: dict[str, dict[str, PluginDevice]] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    """Resources whose plugin is gone: all of their devices count as unhealthy."""
    allocated: Allocated = field(default_factory=dict)
    responses: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    """(pod uid, container, resource) -> the plugin's encoded answer to Allocate."""
    running: set[tuple[str, str]] = field(default_factory=set)
    """Containers that the runtime already runs (agent restart): they keep what they hold, whatever the plugin says."""
    reusable: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """pod uid -> resource -> devices of its finished init containers (one pod only)."""

    def copy(self) -> DeviceManager:
        """An independent copy."""
        return DeviceManager(
            self.nodes,
            self.preferred,
            {resource: dict(devices) for resource, devices in self.devices.items()},
            set(self.stopped),
            {uid: {name: dict(own) for name, own in pod.items()} for uid, pod in self.allocated.items()},
            dict(self.responses),
            set(self.running),
            {uid: {r: set(ids) for r, ids in own.items()} for uid, own in self.reusable.items()},
        )

    # -- sets ---------------------------------------------------------------------------------------------------------

    def update(self, resource: str, devices: Iterable[PluginDevice]) -> None:
        """The plugin's whole list."""
        self.devices[resource] = {device.id: device for device in devices}
        self.stopped.discard(resource)

    def stop(self, resource: str) -> None:
        """The plugin is gone."""
        if resource in self.devices:
            self.stopped.add(resource)

    def healthy(self, resource: str) -> set[str]:
        """Ids of devices that may be given."""
        if resource in self.stopped:
            return set()
        return {device.id for device in self.devices.get(resource, {}).values() if device.healthy}

    def in_use(self, resource: str) -> set[str]:
        """Ids that any container holds."""
        return {i for pod in self.allocated.values() for own in pod.values() for i in own.get(resource, ())}

    def free(self, resource: str) -> list[str]:
        """Healthy ids that nobody holds, sorted."""
        return sorted(self.healthy(resource) - self.in_use(resource))

    def has_topology(self, resource: str) -> bool:
        """Whether any device of the resource reports NUMA nodes."""
        return any(device.numa is not None for device in self.devices.get(resource, {}).values())

    def held(self, uid: str, container: str) -> dict[str, tuple[str, ...]]:
        """Devices of a container by resource."""
        return self.allocated.get(uid, {}).get(container, {})

    def checkpoint(self) -> DeviceCheckpoint:
        """What the state file should say."""
        entries = []
        for uid, containers in self.allocated.items():
            for container, own in containers.items():
                for resource, ids in own.items():
                    by_node: dict[int, list[str]] = {}
                    for i in ids:
                        device = self.devices.get(resource, {}).get(i)
                        for node in (device.numa if device else None) or (NO_TOPOLOGY,):
                            by_node.setdefault(node, []).append(i)
                    devices = {node: tuple(found) for node, found in by_node.items()}
                    response = self.responses.get((uid, container, resource))
                    entries.append(DeviceEntry(uid, container, resource, devices, response))
        return DeviceCheckpoint(tuple(entries), {r: tuple(sorted(self.healthy(r))) for r in self.devices})

    def restore(self, checkpoint: DeviceCheckpoint) -> None:
        """Takes a state file over: what containers hold, and resources whose plugin has yet to register again."""
        for resource in checkpoint.registered:
            if resource not in self.devices:
                self.devices[resource] = {}
                self.stopped.add(resource)
        for entry in checkpoint.entries:
            own = self.allocated.setdefault(entry.uid, {}).setdefault(entry.container, {})
            own[entry.resource] = entry.ids()
            if entry.response is not None:
                self.responses[(entry.uid, entry.container, entry.resource)] = entry.response

    def outside(self, resource: str, ids: Iterable[str], nodes: int) -> list[str]:
        """Those of the devices that report NUMA nodes, none of them in the mask ``nodes``."""
        devices = self.devices.get(resource, {})
        return [i for i in ids if i in devices and (mask := self._mask(devices[i])) and not mask & nodes]

    def release(self, uid: str, container: str | None = None) -> None:
        """The pod, or one container of it, holds nothing any more."""
        for key in [k for k in self.responses if k[0] == uid and container in (None, k[1])]:
            del self.responses[key]
        if container is None:
            self.allocated.pop(uid, None)
        else:
            self.allocated.get(uid, {}).pop(container, None)

    # -- hints --------------------------------------------------------------------------------------------------------

    def container_hints(self, pod: PodView, container: ContainerView) -> Hints:
        """From which NUMA nodes the container's devices could come."""
        hints: dict[str, HintSet | None] = {}
        reusable = self.reusable.get(pod.uid, {})
        held = self.held(pod.uid, container.name)
        for resource, count in container.devices.items():
            if resource not in self.devices:
                continue
            if not self.has_topology(resource):
                hints[resource] = None
            elif held.get(resource):
                own = set(held[resource])
                hints[resource] = self._hints(resource, own, set(), count) if len(own) == count else HintSet(1)
            else:
                hints[resource] = self._available_hints(resource, reusable.get(resource, set()), count)
        return hints

    def pod_hints(self, pod: PodView) -> Hints:
        """The same for a pod as a whole; devices of init containers are not counted as reusable here."""
        hints: dict[str, HintSet | None] = {}
        for resource, count in pod.requested_devices().items():
            if resource not in self.devices:
                continue
            if not self.has_topology(resource):
                hints[resource] = None
                continue
            own = {i for name in self.allocated.get(pod.uid, {}) for i in self.held(pod.uid, name).get(resource, ())}
            if own:
                hints[resource] = self._hints(resource, own, set(), count) if len(own) == count else HintSet(1)
            else:
                hints[resource] = self._available_hints(resource, set(), count)
        return hints

    def _available_hints(self, resource: str, reusable: set[str], count: int) -> HintSet:
        free = set(self.free(resource))
        if len(free | reusable) < count:
            return HintSet(1)
        return self._hints(resource, free, reusable, count)

    def _hints(self, resource: str, free: set[str], reusable: set[str], count: int) -> HintSet:
        devices = self.devices[resource]
        every = self._classes(devices.values())
        universe = 0
        for nodes, _ in every:
            universe |= nodes
        size = _smallest(Family(universe, (Threshold(every, count),)), universe)
        inside = [Threshold(((self._mask(devices[i]), 1),), 1) for i in sorted(reusable) if i in devices]
        usable = self._classes(devices[i] for i in sorted(free | reusable) if i in devices)
        return HintSet(size, (Family(universe, (Threshold(usable, count), *inside)),))

    def _classes(self, devices: Iterable[PluginDevice]) -> tuple[tuple[int, int], ...]:
        """(node mask, number of devices) of devices with topology, the largest classes first."""
        counts: dict[int, int] = {}
        for device in devices:
            mask = self._mask(device)
            if mask:
                counts[mask] = counts.get(mask, 0) + 1
        return tuple(sorted(counts.items(), key=lambda item: -item[1]))

    def _mask(self, device: PluginDevice) -> int:
        mask = 0
        for node in device.numa or ():
            mask |= 1 << node
        return mask & self.nodes

    # -- allocation ---------------------------------------------------------------------------------------------------

    def allocate(self, pod: PodView, container: ContainerView, nodes: int | None) -> bool:
        """Gives the container its devices. Raises :class:`AllocationError`; False when nothing was new."""
        new = False
        for resource, count in container.devices.items():
            if resource not in self.devices:
                continue
            taken = self._take(pod, container, resource, count, nodes)
            if taken:
                self.allocated.setdefault(pod.uid, {}).setdefault(container.name, {})[resource] = tuple(sorted(taken))
                new = True
        self._update_reusable(pod, container)
        return new

    def _take(self, pod: PodView, container: ContainerView, resource: str, count: int, nodes: int | None) -> list[str]:
        held = self.held(pod.uid, container.name).get(resource, ())
        if (pod.uid, container.name) in self.running:
            return []
        healthy = self.healthy(resource)
        needed = count - len(held)
        if held and needed:
            raise AllocationError(
                f'pod "{pod.uid}" container "{container.name}" changed request for resource "{resource}" from '
                f"{len(held)} to {count}"
            )
        if not healthy:
            raise AllocationError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if held and not set(held) <= healthy:
            raise AllocationError(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            )
        if not needed:
            return []
        taken = sorted(self.reusable.get(pod.uid, {}).get(resource, set()) & healthy)[:needed]
        needed -= len(taken)
        if not needed:
            return taken
        available = [i for i in self.free(resource) if i not in taken]
        if len(available) < needed:
            raise AllocationError(
                f"requested number of devices unavailable for {resource}. Requested: {needed}, Available: {len(available)}"
            )
        return taken + self._choose(resource, available, taken, needed, nodes)

    def _choose(
        self, resource: str, available: list[str], taken: list[str], needed: int, nodes: int | None
    ) -> list[str]:
        devices = self.devices[resource]
        if nodes is None or not self.has_topology(resource):
            aligned, rest = [], available
        else:
            aligned = [i for i in available if self._mask(devices[i]) & nodes]
            elsewhere = [i for i in available if i not in aligned and self._mask(devices[i])]
            rest = elsewhere + [i for i in available if not self._mask(devices[i])]
        if needed < len(aligned):
            return self._ask(resource, aligned, taken, needed)
        chosen = aligned[:needed]
        needed -= len(chosen)
        if needed and not chosen:
            return self._ask(resource, rest, taken, needed)
        return chosen + rest[:needed]

    def _ask(self, resource: str, available: list[str], taken: list[str], needed: int) -> list[str]:
        """The plugin's preference among more devices than needed, as far as it is usable; else the lowest ids."""
        if self.preferred is None:
            return available[:needed]
        wanted = self.preferred(resource, tuple(available + taken), tuple(taken), needed + len(taken))
        chosen = [i for i in wanted if i in available][:needed]
        return chosen + [i for i in available if i not in chosen][: needed - len(chosen)]

    def _update_reusable(self, pod: PodView, container: ContainerView) -> None:
        self.reusable = {pod.uid: self.reusable.get(pod.uid, {})}
        own = self.reusable[pod.uid]
        for resource, ids in self.held(pod.uid, container.name).items():
            if container.kind == "init":
                own.setdefault(resource, set()).update(ids)
            else:
                own.setdefault(resource, set()).difference_update(ids)


def _smallest(family: Family, universe: int) -> int:
    """How many nodes all devices of the resource would need; all of them when even they have too few."""
    size = family.smallest(Budget(200_000, "too many sets of NUMA nodes to place the devices"))
    return universe.bit_count() if size is None else size
