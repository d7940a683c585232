"""Random nodes, options and pod sequences: what must hold after every event, with the upstream defects off.

Shared, exclusive and reserved CPUs are disjoint and complete; nothing is given twice; a rejected pod leaves nothing; what a
pod held is free when it is gone; a restart with the state files changes nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.config import decode_kubelet_configuration
from bayplan.api.core import Pod
from bayplan.machine.scenario import machine_from_scenario
from bayplan.machine.topology import Machine
from bayplan.managers.assignment import PluginDevice, StartupError
from bayplan.managers.node_managers import NodeManagers

GPU = "example.com/gpu"
MIB = 1 << 20


@st.composite
def machines(draw: st.DrawFn) -> dict[str, Any]:
    """Up to 2 sockets x 2 NUMA nodes x 4 cores x 2 threads, some threads offline, node ids with holes at times."""
    sockets, per_socket = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    cores, threads = draw(st.integers(2, 4)), draw(st.integers(1, 2))
    step = draw(st.sampled_from([1, 1, 3]))
    total = sockets * per_socket * cores
    rows = []
    for index in range(total):
        node = index // cores
        for thread in range(threads):
            row = {"id": index + thread * total, "core": index, "socket": node // per_socket, "numa": node * step}
            rows.append({**row, "uncore": index // 2})
    for _ in range(draw(st.integers(0, 2))):
        if len(rows) > 3:
            rows.pop(draw(st.integers(0, len(rows) - 1)))
    numa = [
        {"id": n * step, "memory": draw(st.integers(600, 2000)) * MIB, "hugepages": {"2Mi": draw(st.integers(0, 100))}}
        for n in range(sockets * per_socket)
    ]
    for row in numa:
        row["distances"] = [10 if other is row else 20 for other in numa]
    return {"cpus": rows, "numaNodes": numa}


@st.composite
def configurations(draw: st.DrawFn, first_cpu: int) -> dict[str, Any]:
    """Legal configurations with the static policies."""
    options = draw(
        st.sampled_from(
            [
                {},
                {"full-pcpus-only": "true"},
                {"distribute-cpus-across-numa": "true"},
                {"full-pcpus-only": "true", "distribute-cpus-across-numa": "true"},
                {"distribute-cpus-across-cores": "true"},
                {"prefer-align-cpus-by-uncorecache": "true"},
                {"strict-cpu-reservation": "true"},
                {"align-by-socket": "true"},
                {"full-pcpus-only": "true", "prefer-align-cpus-by-uncorecache": "true", "strict-cpu-reservation": "1"},
            ]
        )
    )
    policies = ["none", "best-effort", "restricted", "single-numa-node"]
    policy = draw(st.sampled_from(policies[:3] if "align-by-socket" in options else policies))
    closest = policy != "none" and draw(st.booleans())
    return {
        "cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions": options,
        "reservedSystemCPUs": str(first_cpu),
        "memoryManagerPolicy": "Static",
        "systemReserved": {"memory": "100Mi"},
        "evictionHard": {"memory.available": "100Mi"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "200Mi"}}],
        "topologyManagerPolicy": policy,
        "topologyManagerScope": draw(st.sampled_from(["container", "pod"])),
        "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"} if closest else {},
        "featureGates": {"PodLevelResourceManagers": True, "CPUManagerPolicyAlphaOptions": True},
    }


@st.composite
def containers(draw: st.DrawFn, name: str, pod_level: bool) -> dict[str, Any]:
    """A container with equal requests and limits, or (in pod-level pods) none at all."""
    if pod_level and draw(st.booleans()):
        return {"name": name}
    amounts = {
        "cpu": draw(st.sampled_from(["1", "2", "2", "3", "4", "500m"])),
        "memory": f"{draw(st.sampled_from([32, 64, 300, 900]))}Mi",
    }
    if not pod_level and draw(st.integers(0, 3)) == 0:
        amounts["hugepages-2Mi"] = f"{draw(st.integers(1, 40)) * 2}Mi"
    if draw(st.integers(0, 3)) == 0:
        amounts[GPU] = str(draw(st.integers(1, 2)))
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}}


@st.composite
def pods(draw: st.DrawFn, number: int) -> dict[str, Any]:
    """A Guaranteed pod, at times with init containers, sidecars and pod-level resources."""
    pod_level = draw(st.integers(0, 3)) == 0
    inits = []
    for index in range(draw(st.integers(0, 2))):
        container = draw(containers(f"i{index}", pod_level))
        inits.append({**container, "restartPolicy": "Always"} if draw(st.booleans()) else container)
    spec: dict[str, Any] = {
        "initContainers": inits,
        "containers": [draw(containers(f"c{index}", pod_level)) for index in range(draw(st.integers(1, 2)))],
    }
    if pod_level:
        budget = {"cpu": str(draw(st.integers(2, 6))), "memory": f"{draw(st.integers(200, 1200))}Mi"}
        spec["resources"] = {"requests": budget, "limits": budget}
    return {"metadata": {"name": f"p{number}", "namespace": "d", "uid": f"u{number}"}, "spec": spec}


@st.composite
def stories(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], list[PluginDevice], list[Any]]:
    """A machine, a configuration, devices, and events."""
    machine = draw(machines())
    config = draw(configurations(min(row["id"] for row in machine["cpus"])))
    nodes = [row["id"] for row in machine["numaNodes"]]
    devices = [PluginDevice(f"g{i}", (draw(st.sampled_from(nodes)),)) for i in range(draw(st.integers(1, 4)))]
    events: list[Any] = []
    for number in range(draw(st.integers(1, 7))):
        events.append(draw(pods(number)))
        if draw(st.integers(0, 2)) == 0:
            events.append(f"u{draw(st.integers(0, number))}")
        if draw(st.integers(0, 4)) == 0:
            events.append("restart")
        if draw(st.integers(0, 3)) == 0:
            events.append(("start", f"u{number}"))
    return machine, config, devices, events


def start(
    machine: Machine,
    config: dict[str, Any],
    devices: list[PluginDevice],
    files: dict[str, str] | None = None,
    quirks: frozenset[str] | bool = frozenset(),
) -> NodeManagers:
    return NodeManagers.start(
        machine, decode_kubelet_configuration(config), devices={GPU: devices}, state_files=files, quirks=quirks
    )


def holdings(managers: NodeManagers) -> Any:
    """Who holds what. Memory is summed over each group: on which node of a group bytes are booked depends on the order of
    events, as in the kubelet."""
    cpu, memory = managers.admitter.cpu, managers.admitter.memory
    assert cpu is not None
    assert memory is not None
    books: dict[tuple[tuple[int, ...], str], list[int]] = {}
    for node in memory.state.machine.values():
        for name, table in node.memory.items():
            row = books.setdefault((node.cells, name), [0, 0, 0])
            row[0] += node.assignments
            row[1] += table.reserved
            row[2] += table.free
    return cpu.state.copy(), books, memory.state.containers.copy(), managers.free_devices()


def check(managers: NodeManagers) -> None:
    """The invariants of one moment."""
    cpu, memory = managers.admitter.cpu, managers.admitter.memory
    assert cpu is not None
    assert memory is not None
    strict = cpu.options.strict_reservation
    assigned = 0
    for uid in cpu.state.containers:
        held = cpu.state.held_by(uid) | cpu.state.pods.get(uid, 0)
        assert not held & assigned, "two pods hold a CPU"
        assigned |= held
        if uid in cpu.state.pods:
            assert cpu.state.held_by(uid) & ~cpu.state.pods[uid] == 0, "a container left its pod's bubble"
    assert set(cpu.state.pods) <= set(cpu.state.containers), "a bubble without containers"
    assert not assigned & cpu.state.default, "shared and exclusive CPUs overlap"
    assert assigned | cpu.state.default == cpu.managed(), "a CPU is in nobody's hands"
    assert not assigned & cpu.reserved, "a reserved CPU was given away"
    assert (not cpu.state.default & cpu.reserved) if strict else cpu.reserved & ~cpu.state.default == 0
    for node in memory.state.machine.values():
        for table in node.memory.values():
            assert table.free >= 0
            assert table.reserved >= 0
            assert table.free + table.reserved == table.allocatable
    booked: dict[str, int] = {}
    for uid, blocks_of in memory.state.containers.items():
        for blocks in [memory.state.pods[uid]] if uid in memory.state.pods else blocks_of.values():
            for block in blocks:
                booked[block.type] = booked.get(block.type, 0) + block.size
    for name in {name for node in memory.state.machine.values() for name in node.memory}:
        used = sum(node.memory[name].reserved for node in memory.state.machine.values() if name in node.memory)
        assert used == booked.get(name, 0), f"books and blocks differ for {name}"
    device = managers.admitter.device
    owners: dict[str, str] = {}
    for uid, containers_of in device.allocated.items():
        for own_devices in containers_of.values():
            for identifier in own_devices.get(GPU, ()):
                assert owners.setdefault(identifier, uid) == uid, "two pods hold a device"


def check_pod(managers: NodeManagers, uid: str) -> None:
    """An admitted pod has what it asked for, and its running containers do not share exclusive CPUs."""
    cpu = managers.admitter.cpu
    assert cpu is not None
    view = managers._pods[uid]
    together = 0
    bubble_only = view.pod_level and managers.config.topology_manager_scope == "pod"
    if bubble_only and managers.config.topology_manager_policy != "none":
        assert (managers.pod_cpus(uid) or 0).bit_count() == view.pod_cpus
    for container, own in zip(view.containers, managers.assignments(uid), strict=True):
        if container.cpus:
            assert own.cpus_mask.bit_count() == container.cpus
            if container.kind != "init":
                assert not own.cpus_mask & together, "two running containers share exclusive CPUs"
                together |= own.cpus_mask


@given(stories(), st.sampled_from([frozenset(), False]))
def test_invariants_hold_after_every_event(
    story: tuple[dict[str, Any], dict[str, Any], list[PluginDevice], list[Any]], quirks: frozenset[str] | bool
) -> None:
    """With no defect imitated at all, and with those that bayplan's own agent keeps."""
    raw, config, devices, events = story
    machine = machine_from_scenario(raw)
    try:
        managers = start(machine, config, devices, quirks=quirks)
    except StartupError as error:
        if error.stage not in ("cpuManager", "nodeAllocatable"):
            raise
        return
    empty = managers.state_files()
    alive: list[Pod] = []
    started: set[str] = set()
    for event in events:
        if isinstance(event, dict):
            pod = msgspec.convert(event, Pod)
            before = holdings(managers)
            answer = managers.admit(pod)
            assert answer.reason != "KubeletCrash"
            if answer.admitted:
                alive.append(pod)
                check_pod(managers, answer.uid)
            else:
                assert holdings(managers) == before, "a rejected pod left something"
        elif event == "restart":
            files = managers.state_files()
            held = {uid: managers.assignments(uid) for uid in managers._pods}
            managers = start(machine, config, [], files, quirks)
            found = [as_found(p, started) for p in alive]
            running = [(uid, own.name) for uid, containers_of in held.items() for own in containers_of]
            for again in managers.readmit(found, running):
                assert again.admitted, again.message
                assert [c.cpus_mask for c in again.containers] == [c.cpus_mask for c in held[again.uid]]
                assert [c.memory for c in again.containers] == [c.memory for c in held[again.uid]]
                assert [c.devices for c in again.containers] == [c.devices for c in held[again.uid]]
            managers.update_devices(GPU, devices)
            assert managers.state_files() == files, "re-admission changed the state"
        elif isinstance(event, tuple):
            managers.start_container(event[1], "c0")
            started.add(event[1])
        else:
            managers.remove(event)
            alive = [p for p in alive if p.metadata and p.metadata.uid != event]
        check(managers)
    for pod in alive:
        assert pod.metadata is not None
        assert pod.metadata.uid is not None
        managers.remove(pod.metadata.uid)
    check(managers)
    assert managers.state_files() == empty, "something was not given back"


def as_found(pod: Pod, started: set[str]) -> Pod:
    """The pod as the agent finds it after a restart: with the status of its finished init containers."""
    data = msgspec.to_builtins(pod)
    if data["metadata"]["uid"] in started:
        data["status"] = {
            "initContainerStatuses": [
                {"name": c["name"], "state": {"terminated": {"exitCode": 0}}}
                for c in data["spec"].get("initContainers") or ()
                if c.get("restartPolicy") != "Always"
            ]
        }
    return msgspec.convert(data, Pod)


@given(stories())
def test_a_clone_is_independent_and_answers_the_same(
    story: tuple[dict[str, Any], dict[str, Any], list[PluginDevice], list[Any]],
) -> None:
    raw, config, devices, events = story
    machine = machine_from_scenario(raw)
    try:
        managers = start(machine, config, devices)
    except StartupError:
        return
    for event in events:
        if not isinstance(event, dict):
            continue
        pod = msgspec.convert(event, Pod)
        before = managers.state_files()
        predicted = managers.clone().admit(pod)
        assert managers.state_files() == before
        answer = managers.admit(pod, record=True)
        assert (answer.admitted, answer.reason, answer.message) == (
            predicted.admitted,
            predicted.reason,
            predicted.message,
        )
        assert answer.containers == predicted.containers
        assert answer.record is not None
        msgspec.json.encode(answer.record.as_dict())
