"""Configuration reaches the driver in order; the example driver reads it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bayplan.api.resource import ResourceClaim
from bayplan.driver.example import CONFIG_VERSION, ExampleGPUs, gpu_pool
from bayplan.driver.plugin import PreparationError, allocated_devices

DRIVER = "gpu.example.com"


def claim(results: list[dict[str, Any]], config: list[dict[str, Any]]) -> ResourceClaim:
    return msgspec.convert(
        {"status": {"allocation": {"devices": {"results": results, "config": config}}}}, ResourceClaim
    )


def result(request: str, device: str, driver: str = DRIVER) -> dict[str, Any]:
    return {"request": request, "driver": driver, "pool": "n1", "device": device}


def config(
    parameters: Any, requests: list[str] | None = None, driver: str = DRIVER, source: str = "FromClaim"
) -> dict[str, Any]:
    return {"source": source, "requests": requests or [], "opaque": {"driver": driver, "parameters": parameters}}


def test_own_devices_with_the_configuration_of_class_then_claim() -> None:
    found = allocated_devices(
        claim(
            [result("a", "gpu-0"), result("b/small", "gpu-1"), result("a", "nic-0", "nic.example.com")],
            [
                config("class", source="FromClass"),
                config("for b", ["b"]),
                config("for a", ["a"]),
                config("not ours", driver="nic.example.com"),
                config("for small", ["b/small"]),
            ],
        ),
        DRIVER,
    )
    assert [(one.device, one.configs) for one in found] == [
        ("gpu-0", ("class", "for a")),
        ("gpu-1", ("class", "for b", "for small")),
    ]


def test_nothing_allocated_is_nothing() -> None:
    assert allocated_devices(ResourceClaim(), DRIVER) == []


def gpu_config(strategy: str) -> dict[str, Any]:
    return {"apiVersion": CONFIG_VERSION, "kind": "GpuConfig", "sharing": {"strategy": strategy}}


async def test_the_example_driver_says_in_the_environment_what_was_given() -> None:
    obj = claim([result("a", "gpu-1"), result("b", "gpu-3")], [config(gpu_config("TimeSlicing"), ["b"])])
    prepared = await ExampleGPUs(4).prepare(obj, allocated_devices(obj, DRIVER))
    assert [one.edits.env for one in prepared] == [
        ["GPU_DEVICE_1=gpu-1"],
        ["GPU_DEVICE_3=gpu-3", "GPU_DEVICE_3_SHARING_STRATEGY=TimeSlicing"],
    ]


@pytest.mark.parametrize(
    ("device", "parameters", "says"),
    [
        ("gpu-9", None, "there is no device gpu-9"),
        ("gpu-0", {"kind": "Other"}, "must be a GpuConfig"),
        ("gpu-0", gpu_config("Wishing"), "sharing.strategy: 'Wishing'"),
    ],
)
async def test_the_example_driver_refuses_with_the_reason(device: str, parameters: Any, says: str) -> None:
    obj = claim([result("a", device)], [config(parameters)] if parameters else [])
    with pytest.raises(PreparationError, match=says):
        await ExampleGPUs(4).prepare(obj, allocated_devices(obj, DRIVER))


def test_the_example_pool_is_the_same_at_every_start() -> None:
    assert gpu_pool("n1", 8, numa_nodes=(0, 1)) == gpu_pool("n1", 8, numa_nodes=(0, 1))
    numa = [
        (d.attributes or {})["resource.kubernetes.io/numaNode"].int_
        for d in gpu_pool("n1", 8, numa_nodes=(0, 1)).devices
    ]
    assert numa == [0, 0, 0, 0, 1, 1, 1, 1]
