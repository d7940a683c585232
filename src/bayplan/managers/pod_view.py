"""A pod as the managers see it: containers in admission order with whole numbers instead of quantities.

Compiled once per admission; everything that later asks "does this container get exclusive CPUs" or "how much memory"
reads a field here. Source: the documentation of the static policies, KEP-753 (sidecars), KEP-5526 (pod-level resource
managers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bayplan.api.base import RawQuantity
from bayplan.api.core import Container, Pod, ResourceRequirements
from bayplan.api.gates import FeatureGates
from bayplan.api.quantity import Quantity
from bayplan.managers.assignment import ContainerKind
from bayplan.managers.qos import has_resources, qos_class

NANO = 10**9
HUGEPAGES = "hugepages-"


@dataclass(slots=True)
class ContainerView:
    """One container. CPU counts and memory are what the managers act on, 0 or empty where they do not."""

    name: str
    kind: ContainerKind
    cpus: int = 0
    """Exclusive CPUs that the container is to get."""
    memory: dict[str, int] = field(default_factory=dict)
    """``memory`` and ``hugepages-*`` requests in bytes; empty for a container of which the memory manager keeps off."""
    devices: dict[str, int] = field(default_factory=dict)
    """Limits of extended resources."""
    eligible: bool = True
    """Whether the container may hold exclusive resources (container-level Guaranteed, in a pod-level pod)."""
    finished: bool = False
    """The pod's status says that this init container has run to its end."""


@dataclass(slots=True)
class PodView:
    """One pod. ``pod_level`` is True when ``spec.resources`` is set and the managers act on it (both gates on)."""

    pod: Pod
    uid: str
    name: str
    qos: str
    containers: list[ContainerView]
    pod_level: bool = False
    ignored: bool = False
    """Pod-level resources with a gate off: CPU and memory managers leave the pod alone."""
    pod_cpus: int = 0
    """Whole CPUs of the pod-level budget; 0 where the number is not whole."""
    pod_memory: dict[str, int] = field(default_factory=dict)
    """Memory types of the pod-level budget."""

    def requested_cpus(self) -> int:
        """Exclusive CPUs that the pod as a whole needs at most at one time (pod scope)."""
        return _peak([(c.kind, c.cpus) for c in self.containers])

    def requested_memory(self, drop_init_only: bool) -> dict[str, int]:
        """The same for memory. ``drop_init_only``: types that only init containers (sidecars too) request are
        forgotten, an upstream defect (kubernetes#140816)."""
        names = {name for c in self.containers for name in c.memory}
        if drop_init_only:
            names = {name for c in self.containers if c.kind == "app" for name in c.memory}
        return {n: _peak([(c.kind, c.memory.get(n, 0)) for c in self.containers]) for n in sorted(names)}

    def requested_devices(self) -> dict[str, int]:
        """The same for each extended resource."""
        names = sorted({name for c in self.containers for name in c.devices})
        return {n: _peak([(c.kind, c.devices.get(n, 0)) for c in self.containers]) for n in names}


def _peak(containers: list[tuple[ContainerKind, int]]) -> int:
    """max over init containers of (own + sidecars declared before), against sidecars + app containers."""
    sidecars = apps = peak = 0
    for kind, amount in containers:
        if kind == "sidecar":
            sidecars += amount
        elif kind == "init":
            peak = max(peak, sidecars + amount)
        else:
            apps += amount
    return max(peak, sidecars + apps)


def compile_pod(pod: Pod, gates: FeatureGates) -> PodView:
    """The view of a pod. Raises QuantityError for an amount that is none."""
    spec, meta = pod.spec, pod.metadata
    uid = (meta.uid if meta else None) or ""
    qos = qos_class(pod, gates)
    resources = spec.resources if spec else None
    declared = has_resources(resources)
    on = gates.enabled("PodLevelResources") and gates.enabled("PodLevelResourceManagers")
    view = PodView(
        pod=pod,
        uid=uid,
        name=(meta.name if meta else None) or "",
        qos=qos,
        containers=[],
        pod_level=declared and on,
        ignored=declared and not on,
    )
    finished = _finished(pod)
    for container in (spec.init_containers or ()) if spec else ():
        view.containers.append(
            _container(container, "sidecar" if container.restart_policy == "Always" else "init", view)
        )
    for init in view.containers:
        init.finished = init.kind == "init" and init.name in finished
    for container in (spec.containers or ()) if spec else ():
        view.containers.append(_container(container, "app", view))
    if view.pod_level and resources is not None and qos == "Guaranteed":
        budget = _requests(resources)
        nano = budget.get("cpu", 0)
        view.pod_cpus = nano // NANO if nano % NANO == 0 else 0
        view.pod_memory = _memory(budget)
    return view


def _finished(pod: Pod) -> set[str]:
    """Init containers that ended with success, by the pod's status."""
    statuses = (pod.status.init_container_statuses if pod.status else None) or ()
    return {
        status.name
        for status in statuses
        if status.state and status.state.terminated and not status.state.terminated.exit_code
    }


def _container(container: Container, kind: ContainerKind, pod: PodView) -> ContainerView:
    view = ContainerView(name=container.name or "", kind=kind)
    resources = container.resources
    if resources is None:
        view.eligible = not pod.pod_level
        return view
    limits = _nano(resources.limits)
    requests = {**limits, **_nano(resources.requests)}
    view.devices = {n: v // NANO for n, v in sorted(limits.items()) if v > 0 and _is_extended(n)}
    if pod.qos != "Guaranteed" or pod.ignored:
        return view
    if pod.pod_level:
        view.eligible = all(requests.get(n, 0) > 0 and requests[n] == limits.get(n) for n in ("cpu", "memory"))
        if not view.eligible:
            return view
    nano = requests.get("cpu", 0)
    view.cpus = nano // NANO if nano > 0 and nano % NANO == 0 else 0
    view.memory = _memory(requests)
    return view


def _requests(resources: ResourceRequirements) -> dict[str, int]:
    return {**_nano(resources.limits), **_nano(resources.requests)}


def _memory(requests: Mapping[str, int]) -> dict[str, int]:
    return {
        name: -(-nano // NANO)
        for name, nano in sorted(requests.items())
        if nano > 0 and (name == "memory" or name.startswith(HUGEPAGES))
    }


def _is_extended(name: str) -> bool:
    return "/" in name and not name.startswith("requests.")


def _nano(quantities: Mapping[str, RawQuantity] | None) -> dict[str, int]:
    return {name: Quantity.parse(raw).nano for name, raw in quantities.items()} if quantities else {}
