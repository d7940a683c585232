"""The main job, shown: real pods, placed on this machine and on a simulated one, from the manifests in ``examples/``.

`play` drives a running stack through the API only, as a user would, and returns what it saw: for every pod its node, QoS
class, exclusive CPUs, the CPUs its process really may run on, its devices, or why it is not running.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
import yaml

from bayplan.api.core import Namespace, Node, Pod
from bayplan.api.cpuset import format_mask
from bayplan.api.kinds import by_api_version
from bayplan.api.meta import ObjectMeta
from bayplan.api.quantity import Quantity
from bayplan.api.resource import ResourceClaim
from bayplan.client.transport import TransportClient, collection_path
from bayplan.dra.pod_claims import claim_names
from bayplan.machine.stowage import Holder, Stowage
from bayplan.machine.topology import Machine
from bayplan.managers.checkpoint_cpu import read_cpu
from bayplan.managers.manager_state import ANNOTATION, ManagerState, decode_state

SIMULATED_NODE: Final = "sim-2s8n"
SIMULATED_MACHINE: Final = "2s8n128c2t512Gi"
HOSTNAME: Final = "kubernetes.io/hostname"
WAIT_SECONDS: Final = 40.0
_MANY_CPUS: Final = 5


class DemoError(RuntimeError):
    """Something did not become true in time; the message says what."""


@dataclass(frozen=True)
class Seen:
    """One pod as it was seen. ``affinity``: what the kernel says of its process; "" on a simulated node."""

    name: str
    node: str
    phase: str
    qos: str
    exclusive: str = ""
    numa: str = ""
    affinity: str = ""
    devices: tuple[str, ...] = ()
    message: str = ""


@dataclass
class Act:
    """A part of the demonstration: a title, what it shows, the pods."""

    title: str
    says: str
    pods: list[Seen] = field(default_factory=list)
    drawing: tuple[Machine, Stowage] | None = None


def manifests(name: str) -> list[dict[str, Any]]:
    """The objects of an example file."""
    text = resources.files("bayplan").joinpath("examples", name).read_text(encoding="utf-8")
    return [document for document in yaml.safe_load_all(text) if document]


async def play(client: TransportClient, node: str, runs: Path) -> AsyncIterator[Act]:
    """All acts, each yielded when its pods have got where they should.

    ``node`` is this machine's node, ``runs`` the directory in which its process runtime keeps its runs.
    """
    stage = _Stage(client, node, runs)
    yield await stage.qos_simulated()
    yield await stage.qos_here()
    yield await stage.devices()
    yield await stage.refused()


class _Stage:
    def __init__(self, client: TransportClient, node: str, runs: Path) -> None:
        self._client, self._node, self._runs = client, node, runs

    async def qos_simulated(self) -> Act:
        act = Act(
            "Six pods on a simulated machine with 2 sockets, 8 NUMA nodes and 128 CPUs",
            "Only Guaranteed pods that ask for whole CPUs get CPUs of their own: 0, 0, 0, 2, 0 and 2.",
        )
        names = await self._apply("01-qos-pods.yaml", "simulated", _on(SIMULATED_NODE))
        act.pods = await self._see("simulated", names)
        act.drawing = await self._drawing(SIMULATED_NODE, "simulated")
        return act

    async def qos_here(self) -> Act:
        """All at once where there are CPUs for it, else one after the other with one CPU."""
        act = Act("The same six pods on this machine, as real processes", "")
        cpus = await self._allocatable_cpus()
        if cpus >= _MANY_CPUS:
            act.says = "The last columns compare what was decided with the affinity that the kernel reports."
            names = await self._apply("01-qos-pods.yaml", "here", _on(self._node))
            act.pods = await self._see("here", names)
            act.drawing = await self._drawing(self._node, "here")
            return act
        act.says = (
            "This machine has few CPUs, so they ask for 1 CPU instead of 2 and run one after the other; "
            "the last columns compare what was decided with the affinity that the kernel reports."
        )
        for manifest in manifests("01-qos-pods.yaml"):
            names = await self._create([manifest], "here", _on(self._node), _small)
            act.pods += await self._see("here", names)
            if act.drawing is None and act.pods[-1].exclusive:
                act.drawing = await self._drawing(self._node, "here")
            await self._delete("here", names)
        return act

    async def devices(self) -> Act:
        act = Act(
            "Claims: a shared GPU, a GPU from a template, and a prioritized list",
            "Two pods share the claim that a person made; a template gives each pod its own; the list falls back to two GPUs.",
        )
        await self._apply("02-device-class.yaml", "", _as_is)
        names: list[str] = []
        for file in ("03-claim.yaml", "04-claim-template.yaml", "05-prioritized-list.yaml"):
            names += await self._apply(file, "devices", _as_is)
        act.pods = await self._see("devices", names)
        return act

    async def refused(self) -> Act:
        act = Act(
            "A pod that its node refuses",
            "It wants 40 CPUs, no NUMA node has more than 16, and the node's Topology Manager has the policy single-numa-node.",
        )
        names = await self._apply("06-refused.yaml", "refused", _as_is)
        act.pods = await self._see("refused", names, wanted="Failed")
        return act

    # -- doing

    async def _apply(self, file: str, namespace: str, change: Callable[[dict[str, Any]], None]) -> list[str]:
        return await self._create(manifests(file), namespace, change)

    async def _create(
        self, objects: Iterable[dict[str, Any]], namespace: str, *changes: Callable[[dict[str, Any]], None]
    ) -> list[str]:
        """Create the objects in the namespace (made if it is missing); the names of the pods among them."""
        if namespace:
            await self._namespace(namespace)
        names = []
        for given in objects:
            obj = copy.deepcopy(given)
            kind = by_api_version(obj["apiVersion"], obj["kind"])
            if kind is None:
                raise DemoError(f"{obj['apiVersion']} {obj['kind']} is not served")
            if kind.kind == "Pod":
                names.append(obj["metadata"]["name"])
                for change in changes:
                    change(obj)
            await self._client.request("POST", collection_path(kind, namespace), None, msgspec.json.encode(obj))
        return names

    async def _namespace(self, name: str) -> None:
        existing, _version = await self._client.list(Namespace)
        if name not in {n.metadata.name for n in existing if n.metadata is not None}:
            await self._client.create(Namespace(metadata=ObjectMeta(name=name)))

    async def _delete(self, namespace: str, names: Iterable[str]) -> None:
        for name in names:
            await self._client.delete(Pod, name, namespace)
        await self._until(f"pods of {namespace} gone", lambda: self._gone(namespace))

    async def _gone(self, namespace: str) -> bool:
        return not (await self._client.list(Pod, namespace))[0]

    async def _until(self, what: str, true: Callable[[], Any]) -> None:
        deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
        while not await true():
            if asyncio.get_running_loop().time() > deadline:
                raise DemoError(f"after {WAIT_SECONDS:g} s: {what} did not come true")
            await asyncio.sleep(0.05)

    # -- seeing

    async def _see(self, namespace: str, names: list[str], wanted: str = "Running") -> list[Seen]:
        async def there() -> bool:
            pods, _version = await self._client.list(Pod, namespace)
            phases = {p.metadata.name: p.status.phase for p in pods if p.metadata is not None and p.status is not None}
            return all(phases.get(name) == wanted for name in names)

        await self._until(f"{', '.join(names)} in phase {wanted}", there)
        pods, _version = await self._client.list(Pod, namespace)
        claims, _version = await self._client.list(ResourceClaim, namespace)
        held = {c.metadata.name or "": _devices_of(c) for c in claims if c.metadata is not None}
        found = {p.metadata.name: p for p in pods if p.metadata is not None}
        return [await self._seen(found[name], held) for name in names]

    async def _seen(self, pod: Pod, held: Mapping[str, tuple[str, ...]]) -> Seen:
        assert pod.metadata is not None
        assert pod.spec is not None
        assert pod.status is not None
        node = pod.spec.node_name or ""
        exclusive = numa = ""
        if pod.status.phase == "Running":
            exclusive, numa = await self._exclusive(node, pod.metadata.uid or "")
        return Seen(
            name=pod.metadata.name or "",
            node=node,
            phase=pod.status.phase or "",
            qos=pod.status.qos_class or "",
            exclusive=exclusive,
            numa=numa,
            affinity=_affinity(self._runs, pod.metadata.uid or "")
            if node == self._node and pod.status.phase == "Running"
            else "",
            devices=tuple(d for name in claim_names(pod) for d in held.get(name, ())),
            message=f"{pod.status.reason}: {pod.status.message}" if pod.status.reason else "",
        )

    async def _state(self, node: str) -> ManagerState | None:
        obj = await self._client.get(Node, node)
        text = ((obj.metadata.annotations if obj.metadata else None) or {}).get(ANNOTATION)
        return decode_state(text) if text else None

    async def _exclusive(self, node: str, uid: str) -> tuple[str, str]:
        """The pod's exclusive CPUs and their NUMA nodes, once the node says that its managers hold the pod."""
        state: ManagerState | None = None

        async def told() -> bool:
            nonlocal state
            state = await self._state(node)
            return state is not None and uid in state.pods

        await self._until(f"node {node} telling of pod {uid}", told)
        assert state is not None
        masks = read_cpu(state.state_files["cpu_manager_state"], v3=True, v4=True).state.containers.get(uid, {})
        held = 0
        for mask in masks.values():
            held |= mask
        nodes = sum(1 << n.id for n in state.machine().numa_nodes if n.cpus_mask & held)
        return format_mask(held), format_mask(nodes)

    async def _drawing(self, node: str, namespace: str) -> tuple[Machine, Stowage] | None:
        state = await self._state(node)
        if state is None:
            return None
        pods, _version = await self._client.list(Pod, namespace)
        names = {p.metadata.uid: p.metadata.name or "" for p in pods if p.metadata is not None}
        cpus = read_cpu(state.state_files["cpu_manager_state"], v3=True, v4=True).state
        holders = tuple(
            Holder(name=names.get(uid, uid), cpus_mask=mask)
            for uid, own in sorted(cpus.containers.items(), key=lambda item: names.get(item[0], ""))
            for mask in own.values()
        )
        return state.machine(), Stowage(holders=holders, shared_mask=cpus.default)

    async def _allocatable_cpus(self) -> int:
        node = await self._client.get(Node, self._node)
        allocatable = (node.status.allocatable if node.status else None) or {}
        return Quantity.parse(allocatable.get("cpu", 0)).milli_value() // 1000


def _as_is(pod: dict[str, Any]) -> None:
    del pod


def _on(node: str) -> Callable[[dict[str, Any]], None]:
    def change(pod: dict[str, Any]) -> None:
        pod["spec"]["nodeSelector"] = {HOSTNAME: node}

    return change


def _small(pod: dict[str, Any]) -> None:
    for container in pod["spec"]["containers"]:
        for amounts in container.get("resources", {}).values():
            if "cpu" in amounts:
                amounts["cpu"] = {"2": "1", "1.5": "500m", "1": "500m"}[amounts["cpu"]]


def _devices_of(claim: ResourceClaim) -> tuple[str, ...]:
    allocation = claim.status.allocation if claim.status is not None else None
    results = (allocation.devices.results if allocation is not None and allocation.devices is not None else None) or ()
    return tuple(r.device for r in results)


def _affinity(runs: Path, uid: str) -> str:
    """What the kernel says of the pod's processes: their affinities as CPU lists."""
    masks = set()
    for file in runs.glob(f"{uid}-*/run.json"):
        try:
            process = psutil.Process(msgspec.json.decode(file.read_bytes())["pid"])
            masks.add(sum(1 << cpu for cpu in process.cpu_affinity()))
        except psutil.NoSuchProcess:
            continue
    return ",".join(sorted(map(format_mask, masks)))
