"""Extended resources that DRA serves: which class provides a name, and the claim that a pod's requests amount to.

A name is a class's `extendedResourceName`, or `deviceclass.resource.kubernetes.io/<class>`, which works for every class.
Of several classes with one name the youngest wins, then the one whose name sorts first. On a node that offers
the resource itself (a device plugin) the pod uses that; so the claim depends on which names are left to DRA there.

The claim has a request per container and resource, `container-<index>-request-<n>` (init containers are counted first, the
resources of a container in name order). A plain init container runs alone, so it uses the devices of requests that
exist already; only where these do not add up to what it needs it gets a request of its own, which later ones share.

Source: KEP-5004; names and mappings as kube-scheduler 1.36.2 writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from bayplan.api.core import Container, ContainerExtendedResourceRequest, Pod
from bayplan.api.meta import ObjectMeta, OwnerReference
from bayplan.api.resource import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from bayplan.scheduling.requests import is_extended_resource, units

__all__ = ["ANNOTATION", "IMPLICIT_PREFIX", "ClassNames", "extended_requests", "special_claim"]

IMPLICIT_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
ANNOTATION: Final = "resource.kubernetes.io/extended-resource-claim"


class ClassNames:
    """Resource name -> name of the DeviceClass that provides it."""

    def __init__(self, classes: Iterable[DeviceClass] = ()) -> None:
        self._by_name: dict[str, str] = {}
        youngest: dict[str, tuple[str, str]] = {}
        for device_class in classes:
            metadata: Any = device_class.metadata
            name = metadata.name or ""
            self._by_name[IMPLICIT_PREFIX + name] = name
            explicit = device_class.spec.extended_resource_name if device_class.spec is not None else None
            if not explicit:
                continue
            created = metadata.creation_timestamp or ""
            known = youngest.get(explicit)
            if known is None or created > known[0] or (created == known[0] and name < known[1]):
                youngest[explicit] = (created, name)
        for explicit, (_, name) in youngest.items():
            self._by_name[explicit] = name
        self.names: frozenset[str] = frozenset(self._by_name)

    def get(self, resource: str) -> str | None:
        return self._by_name.get(resource)


def _asked(container: Container) -> dict[str, int]:
    resources = container.resources
    if resources is None:
        return {}
    raw = {**(resources.limits or {}), **(resources.requests or {})}
    return {n: c for n, r in sorted(raw.items()) if is_extended_resource(n) and (c := units(n, r)) > 0}


def extended_requests(pod: Pod) -> frozenset[str]:
    """The extended resources that any container of the pod asks for."""
    spec = pod.spec
    if spec is None:
        return frozenset()
    names: set[str] = set()
    for container in (*(spec.init_containers or ()), *(spec.containers or ())):
        if container.resources is not None and (container.resources.requests or container.resources.limits):
            names.update(_asked(container))
    return frozenset(names)


def special_claim(pod: Pod, classes: Mapping[str, str]) -> tuple[ResourceClaim, list[ContainerExtendedResourceRequest]]:
    """The claim for the resources in `classes` (resource -> class), and which container uses which of its requests."""
    spec: Any = pod.spec
    init, apps = list(spec.init_containers or ()), list(spec.containers or ())
    requests: dict[int, list[DeviceRequest]] = {}
    by_resource: dict[str, list[tuple[str, int]]] = {}
    mappings: list[ContainerExtendedResourceRequest] = []

    def add(index: int, container: Container, resource: str, count: int) -> str:
        mine = requests.setdefault(index, [])
        name = f"container-{index}-request-{len(mine)}"
        exact = ExactDeviceRequest(device_class_name=classes[resource], allocation_mode="ExactCount", count=count)
        mine.append(DeviceRequest(name=name, exactly=exact))
        by_resource.setdefault(resource, []).append((name, count))
        return name

    def use(container: Container, resource: str, name: str) -> None:
        mappings.append(
            ContainerExtendedResourceRequest(container_name=container.name, resource_name=resource, request_name=name)
        )

    lasting = [(i, c) for i, c in enumerate([*init, *apps]) if i >= len(init) or c.restart_policy == "Always"]
    for index, container in lasting:
        for resource, count in _asked(container).items():
            if resource in classes:
                use(container, resource, add(index, container, resource, count))
    for index, container in enumerate(init):
        if container.restart_policy == "Always":
            continue
        for resource, count in _asked(container).items():
            if resource not in classes:
                continue
            left = count
            for name, size in sorted(by_resource.get(resource, ()), key=lambda r: -r[1]):
                if size <= left:
                    use(container, resource, name)
                    left -= size
            if left:
                use(container, resource, add(index, container, resource, left))
    mappings.sort(key=lambda m: (m.resource_name, m.container_name))
    ordered = [request for index in sorted(requests) for request in requests[index]]
    return _claim(pod, ordered), mappings


def _claim(pod: Pod, requests: list[DeviceRequest]) -> ResourceClaim:
    metadata: Any = pod.metadata
    name = metadata.name or ""
    return ResourceClaim(
        metadata=ObjectMeta(
            generate_name=f"{name}-extended-resources-",
            namespace=metadata.namespace,
            annotations={ANNOTATION: "true"},
            owner_references=[
                OwnerReference(
                    api_version="v1",
                    kind="Pod",
                    name=name,
                    uid=metadata.uid or "",
                    controller=True,
                )
            ],
        ),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=requests)),
    )
