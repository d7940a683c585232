"""State files: read in every version, written in the form of each kubelet, verified."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.cpuset import parse
from bayplan.managers.assignment import MemoryBlock, StartupError
from bayplan.managers.checkpoint_cpu import checksum_v1, read_cpu, write_cpu
from bayplan.managers.checkpoint_devices import DeviceEntry, read_devices, write_devices
from bayplan.managers.checkpoint_memory import read_memory, write_memory
from bayplan.managers.checksum import CheckpointError, fnv32a, string_checksum
from bayplan.managers.cpu_state import CPUState
from bayplan.managers.memory_state import MemoryState, MemoryTable, NodeState
from tests.shared import shared
from tests.unit.managers.building import machine, node, simple

STATE = CPUState(parse("0,3-7"), {"uid-1": {"c0": 2, "c1": 4}})
POD_STATE = CPUState(parse("0,3-7"), {"uid-1": {"c0": 2, "c1": 4}}, {"uid-1": 6})


def test_checksum_vectors() -> None:
    lines = shared("spec/checksum-vectors.txt").read_text().splitlines()
    for dump, result in zip(lines[::2], lines[1::2], strict=True):
        assert fnv32a(dump) == int(result.split("->")[1]), dump
    assert string_checksum("abc") == 2241406447


def test_files_of_real_nodes_are_read() -> None:
    for line in shared("cases/files/cpu_manager_state-samples.tsv").read_text().splitlines():
        label, _, text = line.partition("\t")
        if line.startswith("#") or "[uid-free]" not in label or "static-1cpu" in label:
            continue
        checkpoint = read_cpu(text, v3=True, v4=False)
        assert json.loads(text)["policyName"] == checkpoint.policy
        if checkpoint.version == 2:
            assert write_cpu(checkpoint.policy, checkpoint.state, 2) == text
    for line in shared("cases/files/memory_manager_state-samples.tsv").read_text().splitlines():
        label, _, text = line.partition("\t")
        if "[uid-free]" in label and not line.startswith("#"):
            memory = read_memory(text, v3=False, v4=False)
            assert write_memory(memory.policy, memory.state, 1) == text


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('{"policyName":"static","defaultCpuSet":"0-7","checksum":14413152}', 2),
        ('{"policyName":"static","defaultCpuSet":"12-31","entries":{"a":{"c":"0-11"}},"checksum":4225404005}', 2),
        (
            '{"policyName":"static","defaultCpuSet":"0,7-8,15","entries":{"uid-1":{"c0":"1,9"},"uid-3":{"c0":'
            '"2-3,10-11"},"uid-4":{"c0":"4-6,12-13","c1":"14","init0":"4-6,12-14"}},"podEntries":{"uid-4":{"cpuSet":'
            '"4-6,12-14"}},"checksum":849133184}',
            3,
        ),
    ],
)
def test_what_a_real_kubelet_wrote_comes_back_byte_for_byte(text: str, version: int) -> None:
    checkpoint = read_cpu(text, v3=version == 3, v4=False)
    assert checkpoint.version == version
    assert write_cpu(checkpoint.policy, checkpoint.state, version) == text


def test_version_1_needs_the_runtimes_containers() -> None:
    entries = {"id-1": "1", "id-2": "2-3"}
    body = {"policyName": "static", "defaultCpuSet": "0,4", "entries": entries}
    text = json.dumps({**body, "checksum": checksum_v1("static", "0,4", entries)})
    owners = {"id-1": ("u", "a"), "id-2": ("u", "b")}
    assert read_cpu(text, v3=False, v4=False, container_ids=owners).state.containers == {"u": {"a": 2, "b": 12}}
    with pytest.raises(CheckpointError, match='containerID "id-1" not found'):
        read_cpu(text, v3=False, v4=False)
    with pytest.raises(CheckpointError, match="corrupted"):
        read_cpu(text.replace('"0,4"', '"0,5"'), v3=False, v4=False, container_ids=owners)
    with pytest.raises(CheckpointError):
        read_cpu(text, v3=True, v4=True, container_ids=owners)  # 1.37 no longer reads version 1


def test_version_3_cannot_be_read_with_the_gate_off() -> None:
    text = write_cpu("static", POD_STATE, 3)
    with pytest.raises(CheckpointError) as refused:
        read_cpu(text, v3=False, v4=False)
    assert str(refused.value) == (
        "json: cannot unmarshal object into Go struct field CPUManagerCheckpointV1.entries.uid-1 of type string"
    )
    assert read_cpu(text, v3=False, v4=True).state == POD_STATE


def test_version_4_carries_everything_twice() -> None:
    text = write_cpu("static", POD_STATE, 4)
    body = json.loads(text)
    assert list(body) == ["policyName", "defaultCpuSet", "entries", "podEntries", "checksum", "data", "dataChecksum"]
    assert body["checksum"] == 0
    assert body["data"] == (
        '{"policyName":"static","defaultCpuSet":"0,3-7","entries":{"uid-1":{"c0":"1","c1":"2"}},'
        '"podEntries":{"uid-1":{"cpuSet":"1-2"}}}'
    )
    assert body["dataChecksum"] == string_checksum(body["data"])
    assert read_cpu(text, v3=False, v4=True).state == POD_STATE
    older = read_cpu(text, v3=False, v4=False)
    assert (older.version, older.state) == (2, STATE)


@pytest.mark.parametrize("damage", ["data", "dataChecksum"])
def test_a_version_4_file_that_does_not_verify_is_an_error_without_fallback(damage: str) -> None:
    body: dict[str, Any] = json.loads(write_cpu("static", STATE, 4))
    body[damage] = body[damage].replace("0,3-7", "0,4-7") if damage == "data" else body[damage] + 1
    with pytest.raises(CheckpointError, match="checkpoint is corrupted"):
        read_cpu(json.dumps(body), v3=True, v4=True)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"entries":[]}', '{"defaultCpuSet":"x"}'])
def test_garbage_is_an_error_never_an_empty_state(text: str) -> None:
    with pytest.raises(CheckpointError):
        read_cpu(text, v3=True, v4=True)


@given(st.integers(0, 300), st.integers(0, 120))
def test_no_single_changed_byte_goes_unnoticed(position: int, byte: int) -> None:
    text = write_cpu("static", CPUState(parse("0,5-7"), {"u": {"a": parse("1-2"), "b": parse("3-4")}}), 2)
    at = position % len(text)
    changed = text[:at] + chr(byte + 1) + text[at + 1 :]
    if changed == text:
        return
    try:
        checkpoint = read_cpu(changed, v3=False, v4=False)
    except CheckpointError:
        return
    # what is read in spite of the change means the same, or the change took the checksum itself away
    same = (checkpoint.policy, checkpoint.state) == ("static", read_cpu(text, v3=False, v4=False).state)
    assert same or not json.loads(changed).get("checksum")


def memory_state() -> MemoryState:
    table = MemoryTable(100, 1, 99, 10, 89)
    return MemoryState(
        {0: NodeState(1, (0, 1), {"memory": table}), 1: NodeState(1, (0, 1), {"memory": table.copy()})},
        {"uid-1": {"c0": (MemoryBlock((0, 1), "memory", 20),)}},
        {"uid-2": (MemoryBlock((0,), "memory", 5), MemoryBlock((0,), "hugepages-2Mi", 7))},
    )


@pytest.mark.parametrize(("version", "v3", "v4"), [(3, True, False), (4, True, True), (4, False, True)])
def test_memory_state_comes_back(version: int, v3: bool, v4: bool) -> None:
    state = memory_state()
    again = read_memory(write_memory("Static", state, version), v3=v3, v4=v4)
    assert (again.policy, again.state, again.version) == ("Static", state, version)


def test_memory_version_1_has_no_pods() -> None:
    state = memory_state()
    again = read_memory(write_memory("Static", state, 1), v3=False, v4=False)
    assert again.state == MemoryState(state.machine, state.containers)
    with pytest.raises(CheckpointError, match="corrupted"):
        read_memory(write_memory("Static", state, 3), v3=False, v4=False)


REAL_EMPTY = (
    '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":'
    '["GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"]}},"Checksum":3952659280}'
)
REAL_HELD = (
    '{"Data":{"PodDeviceEntries":[{"PodUID":"bf52b2cd-b611-4e79-86b1-280b283185c3","ContainerName":"check",'
    '"ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["tegra"]},'
    '"AllocResp":"Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh"}],"RegisteredDevices":{"nvidia.com/gpu":["tegra"]}},'
    '"Checksum":3660592824}'
)


@pytest.mark.parametrize("text", [REAL_EMPTY, REAL_HELD])
def test_device_files_that_kubelets_wrote(text: str) -> None:
    assert write_devices(read_devices(text)) == text


def test_a_device_file_says_who_holds_what() -> None:
    [entry] = read_devices(REAL_HELD).entries
    uid = "bf52b2cd-b611-4e79-86b1-280b283185c3"
    assert entry == DeviceEntry(uid, "check", "nvidia.com/gpu", {-1: ("tegra",)}, entry.response)
    assert entry.response is not None
    assert b"NVIDIA_VISIBLE_DEVICES" in entry.response
    with pytest.raises(CheckpointError, match="corrupted"):
        read_devices(REAL_HELD.replace("tegra", "other"))


def test_damaged_files_stop_the_start() -> None:
    managers = node(machine({0: "0-3"}), reservedSystemCPUs="0")
    managers.admit(simple("a", 1))
    files = managers.state_files()
    for name, stage in (("cpu_manager_state", "cpuManagerStart"), ("memory_manager_state", "memoryManagerStart")):
        for text in ("", files[name][:-2], files[name].replace("static", "statix").replace("None", "Nine")):
            with pytest.raises(StartupError) as refused:
                node(machine({0: "0-3"}), reservedSystemCPUs="0", files={**files, name: text})
            assert refused.value.stage == stage
            assert f"delete /var/lib/kubelet/{name}" in refused.value.advice
    with pytest.raises(StartupError) as refused:
        node(machine({0: "0-3"}), reservedSystemCPUs="0", files={"kubelet_internal_checkpoint": REAL_HELD[:-5]})
    assert refused.value.stage == "deviceManagerStart"
