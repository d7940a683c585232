"""The kubelet's file of prepared claims."""

from __future__ import annotations

import json
import zlib

import pytest

from bayplan.node.checkpoints import CheckpointError
from bayplan.node.claim_info import ClaimInfo, DriverState, PreparedDevice, decode_checkpoint, encode_checkpoint
from tests.shared import shared

# A checkpoint as a kubelet writes it, with the CRC-32 that stands in it.
KUBELET_FILE = (
    '{"Data":"{\\"kind\\":\\"DRACheckpoint\\",\\"apiVersion\\":\\"checkpoint.dra.kubelet.k8s.io/v1\\",\\"ClaimInfoStateList\\":'
    '[{\\"ClaimUID\\":\\"067798be-454e-4be4-9047-1aa06aea63f7\\",\\"ClaimName\\":\\"example\\",\\"Namespace\\":\\"default\\",'
    '\\"PodUIDs\\":{\\"139cdb46-f989-4f17-9561-ca10cfb509a6\\":{}},\\"DriverState\\":{\\"test-driver.cdi.k8s.io\\":{\\"Devices\\":'
    '[{\\"PoolName\\":\\"worker-1\\",\\"DeviceName\\":\\"dev-1\\",\\"RequestNames\\":[\\"test request\\"],'
    '\\"CDIDeviceIDs\\":[\\"example.com/example=cdi-example\\"]}]}}}]}","Checksum":1656016162}'
)


def wrapped(data: str) -> str:
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())})


INFO = ClaimInfo(
    "067798be-454e-4be4-9047-1aa06aea63f7",
    "example",
    "default",
    {"139cdb46-f989-4f17-9561-ca10cfb509a6"},
    {
        "test-driver.cdi.k8s.io": DriverState(
            devices=[
                PreparedDevice(
                    pool="worker-1",
                    device="dev-1",
                    requests=["test request"],
                    cdi_devices=["example.com/example=cdi-example"],
                )
            ]
        )
    },
)


def test_the_file_is_that_of_a_kubelet_to_the_byte() -> None:
    assert encode_checkpoint([INFO]) == KUBELET_FILE + "\n"
    assert decode_checkpoint(KUBELET_FILE) == [INFO]


def test_the_empty_file_is_the_recorded_one() -> None:
    assert encode_checkpoint([]) == shared("cases/files/dra_manager_state-empty.json").read_text()


def test_a_share_and_a_skipped_call_survive() -> None:
    info = ClaimInfo(
        "u",
        "c",
        "n",
        {"p"},
        {"d": DriverState(devices=[PreparedDevice(pool="p", device="d", share_id="s")], skip_unprepare=True)},
    )
    assert decode_checkpoint(encode_checkpoint([info])) == [info]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (KUBELET_FILE.replace("dev-1", "dev-2"), "corrupted"),
        ("{", "cannot be decoded"),
        (wrapped('{"kind":"Other","apiVersion":"v2"}'), "checkpoint is a Other of v2"),
    ],
)
def test_a_file_that_is_not_to_be_trusted_stops_with_advice(text: str, says: str) -> None:
    with pytest.raises(CheckpointError, match=says) as caught:
        decode_checkpoint(text, "/root/dra_manager_state")
    assert str(caught.value).startswith("/root/dra_manager_state: ")
    assert "drain this node and delete it" in str(caught.value)


def test_which_requests_a_device_serves() -> None:
    assert PreparedDevice(requests=None).serves("gpu")
    assert PreparedDevice(requests=["gpu"]).serves("")
    assert PreparedDevice(requests=["gpu/big"]).serves("gpu")
    assert PreparedDevice(requests=["gpu/big"]).serves("gpu/big")
    assert not PreparedDevice(requests=["gpu"]).serves("nic")
