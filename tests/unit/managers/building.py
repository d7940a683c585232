"""Nodes and pods for the tests of the resource managers, in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bayplan.api.config import decode_kubelet_configuration
from bayplan.api.core import Pod
from bayplan.api.cpuset import bits, format_mask, parse
from bayplan.machine.scenario import machine_from_scenario
from bayplan.machine.topology import Machine
from bayplan.managers.assignment import Admission, PluginDevice
from bayplan.managers.node_managers import NodeManagers

GI = 1 << 30
MI = 1 << 20


def machine(
    numa: Mapping[int, str],
    *,
    cores: Sequence[str] | None = None,
    sockets: Mapping[int, int] | None = None,
    memory: Mapping[int, int] | int = 16 * GI,
    hugepages: Mapping[str, int] | None = None,
    uncore: Mapping[int, str] | None = None,
    distances: Mapping[int, Sequence[int]] | None = None,
) -> Machine:
    """``numa``: node -> CPU list; ``cores``: lists of thread siblings (else a core per CPU); ``sockets``: node -> socket
    (else one each)."""
    core_of = {cpu: number for number, text in enumerate(cores or ()) for cpu in bits(parse(text))}
    cache_of = {cpu: cache for cache, text in (uncore or {}).items() for cpu in bits(parse(text))}
    rows = []
    for node, text in numa.items():
        for cpu in bits(parse(text)):
            row = {"id": cpu, "core": core_of.get(cpu, cpu), "socket": (sockets or {}).get(node, node), "numa": node}
            rows.append({**row, "uncore": cache_of[cpu]} if cpu in cache_of else row)
    nodes = [
        {
            "id": node,
            "memory": memory if isinstance(memory, int) else memory[node],
            "hugepages": dict(hugepages or {}),
            "distances": list((distances or {}).get(node, ())),
        }
        for node in numa
    ]
    return machine_from_scenario({"cpus": rows, "numaNodes": nodes})


def node(
    what: Machine,
    *,
    devices: Mapping[str, Sequence[PluginDevice]] | None = None,
    files: Mapping[str, str] | None = None,
    kubelet: str = "1.37",
    quirks: frozenset[str] | bool = True,
    **config: Any,
) -> NodeManagers:
    """A started node with the static CPU policy; ``evictionHard`` is empty unless it is given."""
    document = {"cpuManagerPolicy": "static", "evictionHard": {}, **config}
    return NodeManagers.start(
        what,
        decode_kubelet_configuration(document),
        devices=devices,
        state_files=files,
        kubelet_version=kubelet,
        quirks=quirks,
    )


def container(
    name: str, cpu: str | int = "", memory: str = "1Gi", sidecar: bool = False, **more: Any
) -> dict[str, Any]:
    """A container with equal requests and limits; no resources where ``cpu`` is empty."""
    body: dict[str, Any] = {"name": name, "image": "i"}
    if cpu != "":
        amounts = {"cpu": str(cpu), "memory": memory, **{k.replace("__", "/"): str(v) for k, v in more.items()}}
        body["resources"] = {"requests": dict(amounts), "limits": dict(amounts)}
    return {**body, "restartPolicy": "Always"} if sidecar else body


def pod(
    name: str,
    *containers: dict[str, Any],
    init: Sequence[dict[str, Any]] = (),
    resources: Mapping[str, str] | None = None,
    status: Mapping[str, Any] | None = None,
) -> Pod:
    """A pod whose uid is its name."""
    spec: dict[str, Any] = {"containers": list(containers)}
    if init:
        spec["initContainers"] = list(init)
    if resources:
        spec["resources"] = {"requests": dict(resources), "limits": dict(resources)}
    body: dict[str, Any] = {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec}
    return msgspec.convert({**body, "status": dict(status)} if status else body, Pod)


def simple(name: str, cpu: str | int, memory: str = "1Gi", **more: Any) -> Pod:
    """A Guaranteed pod with one container ``app``."""
    return pod(name, container("app", cpu, memory, **more))


def cpus(admission: Admission, name: str = "app") -> str:
    """The CPU list that a container was given."""
    return format_mask(next(c.cpus_mask for c in admission.containers if c.name == name))
