"""An example driver: GPUs that do not exist, with everything a real driver has to do.

    python -m bayplan.driver.example --kubeconfig KUBECONFIG --node-name NODE --root-dir DIR --devices 8

It publishes one pool named after the node, with attributes (index, uuid, model, driver version, NUMA node) and a memory
capacity, and injects environment variables through CDI, so that a container can show what it was given:

    GPU_DEVICE_<index>=<device name>
    GPU_DEVICE_<index>_SHARING_STRATEGY=<strategy>      from a GpuConfig in the class or claim

The parameters are ``{apiVersion: gpu.example.com/v1alpha1, kind: GpuConfig, sharing: {strategy: TimeSlicing}}``.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from bayplan.api.resource import Device, DeviceAttribute, DeviceCapacity, ResourceClaim
from bayplan.driver.plugin import AllocatedDevice, ClaimReference, PreparationError, PreparedDevice
from bayplan.driver.slices import Pool
from bayplan.wire.cdi import ContainerEdits

__all__ = ["DRIVER_NAME", "ExampleGPUs", "gpu_pool"]

DRIVER_NAME = "gpu.example.com"
CONFIG_VERSION = "gpu.example.com/v1alpha1"
STRATEGIES = ("TimeSlicing", "SpacePartitioning")
MODELS = ("LATEST-GPU-MODEL", "PREVIOUS-GPU-MODEL")
_NAMESPACE = uuid.UUID("6f8b4bb1-3c1c-5d10-8d4f-2a8d0a3f9a11")


def gpu_pool(node_name: str, count: int, *, numa_nodes: Sequence[int] = (), memory: str = "80Gi") -> Pool:
    """``count`` devices ``gpu-0``, ``gpu-1``, ...; spread over ``numa_nodes`` in blocks. Uuids are the same at every start."""
    devices = []
    for index in range(count):
        attributes = {
            "index": DeviceAttribute(int_=index),
            "uuid": DeviceAttribute(string=f"gpu-{uuid.uuid5(_NAMESPACE, f'{node_name}/{index}')}"),
            "model": DeviceAttribute(string=MODELS[0]),
            "driverVersion": DeviceAttribute(version="1.0.0"),
        }
        if numa_nodes:
            numa = numa_nodes[index * len(numa_nodes) // count]
            attributes["resource.kubernetes.io/numaNode"] = DeviceAttribute(int_=numa)
        devices.append(
            Device(name=f"gpu-{index}", attributes=attributes, capacity={"memory": DeviceCapacity(value=memory)})
        )
    return Pool(devices=devices)


class ExampleGPUs:
    """Prepares the devices: nothing has to be done but to say which environment a container gets."""

    def __init__(self, count: int) -> None:
        self._names = {f"gpu-{index}": index for index in range(count)}

    async def prepare(self, claim: ResourceClaim, devices: Sequence[AllocatedDevice]) -> Sequence[PreparedDevice]:
        """See :class:`bayplan.driver.plugin.DevicePreparer`."""
        return [self._prepare(one) for one in devices]

    def _prepare(self, one: AllocatedDevice) -> PreparedDevice:
        index = self._names.get(one.device)
        if index is None:
            raise PreparationError(f"there is no device {one.device}; this node has {len(self._names)} devices")
        variable = f"GPU_DEVICE_{index}"
        env = [f"{variable}={one.device}"]
        strategy = _strategy(one.configs)
        if strategy:
            env.append(f"{variable}_SHARING_STRATEGY={strategy}")
        return PreparedDevice(edits=ContainerEdits(env=env))

    async def unprepare(self, claim: ClaimReference, devices: Sequence[tuple[str, str]]) -> None:
        """Nothing of a device outlives its containers."""


def _strategy(configs: Sequence[Any]) -> str:
    """The sharing strategy of the last configuration that names one. Raises :class:`PreparationError`."""
    strategy = ""
    for config in configs:
        if (
            not isinstance(config, dict)
            or config.get("apiVersion") != CONFIG_VERSION
            or config.get("kind") != "GpuConfig"
        ):
            raise PreparationError(f"parameters must be a GpuConfig of {CONFIG_VERSION}, not {config!r}")
        named = (config.get("sharing") or {}).get("strategy", "")
        if named and named not in STRATEGIES:
            raise PreparationError(f"sharing.strategy: {named!r} is none of {', '.join(STRATEGIES)}")
        strategy = named or strategy
    return strategy


if __name__ == "__main__":
    from bayplan.driver.example_main import main

    main()
