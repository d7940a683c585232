"""A driver of the kit and the node's DRA manager over their real sockets, with a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bayplan.api.core import Node, Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import ResourceClaim, ResourceSlice
from bayplan.client.inprocess import InProcessClient
from bayplan.components.agent import NodeSettings, running_node
from bayplan.driver import AllocatedDevice, ClaimReference, Driver, DriverPaths, Pool, PreparationError, PreparedDevice
from bayplan.driver.example import gpu_pool
from bayplan.machine.describe import describe
from bayplan.node.dra_manager import ClaimsNotReady, DRAManager
from bayplan.node.plugins import DriverRegistry, PluginWatcher
from bayplan.wire import dra
from bayplan.wire.cdi import Cache, ContainerEdits, DeviceNode
from bayplan.wire.registration import PluginInfo
from tests.cluster import api, eventually, gone, make, until

GATES = FeatureGates.all_enabled()
GPU = "gpu.example.com"
MACHINE = describe("1s1n4c8Gi")


@dataclass
class Preparer:
    """Counts the calls; fails or returns what a test wants."""

    log: list[str] = field(default_factory=list)
    fail: str = ""
    edits: ContainerEdits | None = None
    hold: asyncio.Event | None = None

    async def prepare(self, claim: ResourceClaim, devices: Sequence[AllocatedDevice]) -> Sequence[PreparedDevice]:
        self.log.append("prepare " + ",".join(one.device for one in devices))
        if self.hold is not None:
            await self.hold.wait()
        if self.fail:
            raise PreparationError(self.fail)
        return [PreparedDevice(edits=self.edits or ContainerEdits(env=[f"DEVICE={one.device}"])) for one in devices]

    async def unprepare(self, claim: ClaimReference, devices: Sequence[tuple[str, str]]) -> None:
        self.log.append("unprepare " + ",".join(device for _, device in devices))
        if self.fail:
            raise PreparationError(self.fail)


@dataclass
class Lab:
    client: InProcessClient
    root: Path
    registry: DriverRegistry
    watcher: PluginWatcher
    preparer: Preparer

    def manager(self) -> DRAManager:
        """The node's manager, from what is on disk."""
        return DRAManager(self.client, self.registry, self.root, GATES)

    def driver(self, name: str = GPU, **options: Any) -> Driver:
        paths = DriverPaths.under(self.root, name, self.root / "cdi")
        return Driver(name=name, node_name="n1", client=self.client, preparer=self.preparer, paths=paths, **options)

    async def pod(self, name: str, *claims: str, ready: bool = True, **spec: Any) -> Pod:
        """A pod on the node with these claims, reserved for it."""
        containers = [{"name": "c", "image": "x", "resources": {"claims": [{"name": claim} for claim in claims]}}]
        entries = [{"name": claim, "resourceClaimName": claim} for claim in claims]
        body = {"nodeName": "n1", "containers": containers, "resourceClaims": entries, **spec}
        pod = await self.client.create(make(Pod, name, spec=body))
        assert pod.metadata is not None
        for claim in claims if ready else ():
            found = await self.client.get(ResourceClaim, claim, "default")
            status: Any = msgspec.to_builtins(found.status) if found.status else {}
            users = [*status.get("reservedFor", ()), {"resource": "pods", "name": name, "uid": pod.metadata.uid}]
            await self.client.patch(
                ResourceClaim, claim, "default", {"status": {"reservedFor": users}}, subresource="status"
            )
        return pod

    async def claim(self, name: str, *devices: str, driver: str = GPU, skip: list[str] | None = None) -> ResourceClaim:
        """An allocated claim."""
        request = {
            "name": "r",
            "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": len(devices)},
        }
        await self.client.create(make(ResourceClaim, name, spec={"devices": {"requests": [request]}}))
        results = [
            {
                "request": "r",
                "driver": driver,
                "pool": "n1",
                "device": d,
                **({"skipNodeOperations": skip} if skip else {}),
            }
            for d in devices
        ]
        patch = {"status": {"allocation": {"devices": {"results": results}}}}
        return await self.client.patch(ResourceClaim, name, "default", patch, subresource="status")


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    # Socket paths are limited to 107 bytes; pytest's own temporary paths are too long for some.
    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        root = Path(folder)
        async with api() as client:
            await client.create(make(Node, "n1", None))
            registry = DriverRegistry()
            watcher = PluginWatcher(root / "plugins_registry", registry)
            try:
                yield Lab(client, root, registry, watcher, Preparer())
            finally:
                await registry.close()


@contextlib.asynccontextmanager
async def registered(lab: Lab, *drivers: Driver) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for driver in drivers:
            await stack.enter_async_context(driver)
        await lab.watcher.scan()
        for driver in drivers:
            assert driver.registered.is_set()
        yield


async def test_a_driver_registers_with_its_name_and_the_newest_version(lab: Lab) -> None:
    async with registered(lab, lab.driver()):
        assert lab.registry.get(GPU).version == dra.V1
    await lab.watcher.scan()
    assert lab.registry.names() == []


async def test_claims_are_prepared_with_cdi_names_and_given_back(lab: Lab) -> None:
    await lab.claim("c1", "gpu-1", "gpu-3")
    pod = await lab.pod("p", "c1")
    async with registered(lab, lab.driver()):
        manager = lab.manager()
        await manager.prepare(pod)
        names = manager.cdi_devices(pod, "c")
        assert len(names) == 2
        assert Cache([lab.root / "cdi"]).resolve(names).env == ["DEVICE=gpu-3"]  # one variable, the later device wins
        await manager.prepare(pod)
        assert lab.preparer.log == ["prepare gpu-1,gpu-3"]
        await manager.unprepare(pod.metadata.uid or "" if pod.metadata else "")
        assert lab.preparer.log == ["prepare gpu-1,gpu-3", "unprepare gpu-1,gpu-3"]
        assert manager.claims() == []
        assert list((lab.root / "cdi").iterdir()) == []


async def test_a_restarted_node_knows_what_is_prepared_and_asks_again_without_harm(lab: Lab) -> None:
    await lab.claim("c1", "gpu-1")
    pod = await lab.pod("p", "c1")
    async with registered(lab, lab.driver()):
        first = lab.manager()
        await first.prepare(pod)
        second = lab.manager()
        assert second.cdi_devices(pod, "c") == first.cdi_devices(pod, "c")
        await second.prepare(pod)
        assert second.cdi_devices(pod, "c") == first.cdi_devices(pod, "c")


async def test_two_pods_share_a_claim_and_the_last_one_gives_it_back(lab: Lab) -> None:
    await lab.claim("c1", "gpu-1")
    one, two = await lab.pod("p1", "c1"), await lab.pod("p2", "c1")
    async with registered(lab, lab.driver()):
        manager = lab.manager()
        await asyncio.gather(manager.prepare(one), manager.prepare(two))
        assert lab.preparer.log == ["prepare gpu-1"]
        await manager.unprepare(uid(one))
        assert lab.preparer.log == ["prepare gpu-1"]
        await manager.unprepare(uid(two))
        assert lab.preparer.log[-1] == "unprepare gpu-1"


def uid(pod: Pod) -> str:
    return (pod.metadata.uid or "") if pod.metadata else ""


async def test_a_missing_driver_is_named_with_those_that_are_there(lab: Lab) -> None:
    await lab.claim("c1", "x", driver="absent.example.com")
    pod = await lab.pod("p", "c1")
    async with registered(lab, lab.driver()):
        with pytest.raises(
            ClaimsNotReady, match=r"absent\.example\.com is not registered on this node \(registered: gpu"
        ):
            await lab.manager().prepare(pod)


async def test_a_driver_that_is_deregistered_in_the_middle_of_a_call_fails_it(lab: Lab) -> None:
    """A driver that is killed and started again: whoever waits for the old one must be told, and ask the new one."""
    await lab.claim("c1", "gpu-0")
    pod = await lab.pod("p", "c1")
    manager = lab.manager()
    lab.preparer.hold = asyncio.Event()
    async with registered(lab, lab.driver()):
        preparing = asyncio.create_task(manager.prepare(pod))

        async def asked() -> bool:
            return bool(lab.preparer.log)

        await eventually(asked, "the driver is asked")
        (socket,) = (lab.root / "plugins_registry").glob("*.sock")
        await lab.registry.deregister(socket)
        with pytest.raises(ClaimsNotReady, match="was deregistered before it answered NodePrepareResources"):
            await preparing
        lab.preparer.hold.set()


async def test_claims_that_are_not_ready_say_why(lab: Lab) -> None:
    manager = lab.manager()
    with pytest.raises(ClaimsNotReady, match="default/c1 does not exist"):
        await manager.prepare(await lab.pod("p0", "c1", ready=False))
    await lab.client.create(
        make(
            ResourceClaim, "c1", spec={"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
        )
    )
    with pytest.raises(ClaimsNotReady, match="default/c1 is not allocated"):
        await manager.prepare(await lab.pod("p1", "c1", ready=False))
    await lab.claim("c2", "gpu-0")
    with pytest.raises(ClaimsNotReady, match="default/c2 is not reserved for this pod"):
        await manager.prepare(await lab.pod("p2", "c2", ready=False))
    template = make(
        Pod,
        "p3",
        spec={
            "nodeName": "n1",
            "containers": [{"name": "c", "image": "x"}],
            "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}],
        },
    )
    with pytest.raises(
        ClaimsNotReady, match="no ResourceClaim has been generated yet for pod claim 'g' from template 't'"
    ):
        await manager.prepare(await lab.client.create(template))


async def test_a_failing_driver_is_asked_to_undo_even_after_a_restart_of_the_node(lab: Lab) -> None:
    await lab.claim("c1", "gpu-1")
    pod = await lab.pod("p", "c1")
    lab.preparer.fail = "no power"
    async with registered(lab, lab.driver()):
        with pytest.raises(ClaimsNotReady, match=r"gpu\.example\.com: ResourceClaim default/c1: no power"):
            await lab.manager().prepare(pod)
        again = lab.manager()
        with pytest.raises(ClaimsNotReady, match="no power"):
            await again.unprepare(uid(pod))
        assert again.holds(uid(pod))
        lab.preparer.fail = ""
        await again.unprepare(uid(pod))
        assert not again.holds(uid(pod))
        assert lab.preparer.log[-1] == "unprepare gpu-1"


async def test_a_device_that_another_claim_still_holds_is_refused_until_it_is_free(lab: Lab) -> None:
    """kubernetes/kubernetes#141471: after a forced deletion the device is given away before the old claim is back."""
    await lab.claim("old", "gpu-1")
    await lab.claim("new", "gpu-1")
    first, second = await lab.pod("p1", "old"), await lab.pod("p2", "new")
    async with registered(lab, lab.driver()):
        manager = lab.manager()
        await manager.prepare(first)
        with pytest.raises(ClaimsNotReady, match="device n1/gpu-1 is still prepared for claim default/old"):
            await manager.prepare(second)
        await manager.unprepare(uid(first))
        await manager.prepare(second)
        assert lab.preparer.log == ["prepare gpu-1", "unprepare gpu-1", "prepare gpu-1"]


async def test_documents_lost_in_a_reboot_come_back_with_the_next_prepare(lab: Lab) -> None:
    await lab.claim("c1", "gpu-1")
    pod = await lab.pod("p", "c1")
    async with registered(lab, lab.driver()):
        manager = lab.manager()
        await manager.prepare(pod)
        names = manager.cdi_devices(pod, "c")
        for path in (lab.root / "cdi").iterdir():
            path.unlink()
        rebooted = lab.manager()
        await rebooted.prepare(pod)
        assert rebooted.cdi_devices(pod, "c") == names
        assert Cache([lab.root / "cdi"]).resolve(names).env == ["DEVICE=gpu-1"]


async def test_device_nodes_that_do_not_exist_are_refused(lab: Lab) -> None:
    await lab.claim("c1", "gpu-1")
    pod = await lab.pod("p", "c1")
    lab.preparer.edits = ContainerEdits(device_nodes=[DeviceNode(path="/dev/x", host_path=str(lab.root / "nothing"))])
    async with registered(lab, lab.driver()):
        with pytest.raises(ClaimsNotReady, match="device nodes do not exist"):
            await lab.manager().prepare(pod)


@pytest.mark.parametrize(
    ("skip", "calls"),
    [
        (["*"], []),
        (["NodePrepareResources", "NodeUnprepareResources"], []),
        (["NodeUnprepareResources"], ["prepare gpu-1"]),
        (None, ["prepare gpu-1", "unprepare gpu-1"]),
    ],
)
async def test_operations_that_a_driver_does_without_are_skipped(
    lab: Lab, skip: list[str] | None, calls: list[str]
) -> None:
    await lab.claim("c1", "gpu-1", skip=skip)
    pod = await lab.pod("p", "c1")
    async with registered(lab, lab.driver()):
        manager = lab.manager()
        await manager.prepare(pod)
        manager = lab.manager()  # the skipping of the second call is remembered over a restart
        await manager.unprepare(uid(pod))
        assert lab.preparer.log == calls
        assert manager.claims() == []


async def test_an_upgrade_with_two_instances_is_seamless(lab: Lab) -> None:
    await lab.claim("c1", "gpu-1")
    pod = await lab.pod("p", "c1")
    old = lab.driver(instance="old")
    await old.start()
    await lab.watcher.scan()
    async with lab.driver(instance="zz-new"):
        await lab.watcher.scan()
        await old.stop()
        await lab.watcher.scan()
        await lab.manager().prepare(pod)
        assert lab.preparer.log == ["prepare gpu-1"]


async def test_a_plugin_of_another_type_is_told_that_it_is_not_wanted(lab: Lab) -> None:
    driver = lab.driver()
    driver.plugin_info = lambda: dra_info("CSIPlugin", ["1.0.0"])  # type: ignore[method-assign]
    async with driver:
        await lab.watcher.scan()
        assert not driver.registered.is_set()
        assert driver.registration_error == "plugin type 'CSIPlugin' is not supported here, only DRAPlugin"


async def test_a_driver_of_a_version_that_nobody_speaks_is_told_so(lab: Lab) -> None:
    driver = lab.driver()
    driver.plugin_info = lambda: dra_info(dra.PLUGIN_TYPE, ["v7.DRAPlugin"])  # type: ignore[method-assign]
    async with driver:
        await lab.watcher.scan()
        assert "v1.DRAPlugin or v1beta1.DRAPlugin is needed" in driver.registration_error


async def test_the_older_version_of_the_protocol_works_as_well(lab: Lab) -> None:
    await lab.claim("c1", "gpu-1")
    pod = await lab.pod("p", "c1")
    driver = lab.driver()
    info = driver.plugin_info()
    driver.plugin_info = lambda: dra_info(dra.PLUGIN_TYPE, [dra.V1BETA1], info.endpoint)  # type: ignore[method-assign]
    async with registered(lab, driver):
        assert lab.registry.get(GPU).version == dra.V1BETA1
        manager = lab.manager()
        await manager.prepare(pod)
        assert len(manager.cdi_devices(pod, "c")) == 1


def dra_info(kind: str, versions: list[str], endpoint: str = "/nowhere") -> PluginInfo:
    return PluginInfo(type=kind, name=GPU, endpoint=endpoint, supported_versions=versions)


async def slices(lab: Lab) -> list[ResourceSlice]:
    return (await lab.client.list(ResourceSlice))[0]


async def test_published_slices_are_kept_as_the_driver_wants_them(lab: Lab) -> None:
    async with lab.driver() as driver:
        await driver.publish({"n1": gpu_pool("n1", 4)})
        (one,) = await slices(lab)
        assert one.metadata is not None
        assert one.spec is not None
        assert [o.kind for o in one.metadata.owner_references or ()] == ["Node"]
        one.spec.devices = (one.spec.devices or [])[:1]
        await lab.client.update(one)
        name = one.metadata.name or ""
        await until(lab.client, ResourceSlice, name, lambda s: s.spec and len(s.spec.devices or ()) == 4, None)
        await lab.client.delete(ResourceSlice, name)
        await until(lab.client, ResourceSlice, name, lambda s: s.spec and len(s.spec.devices or ()) == 4, None)
        await driver.publish({"n1": gpu_pool("n1", 2)})
        (one,) = await slices(lab)
        assert one.spec is not None
        assert len(one.spec.devices or ()) == 2


async def test_a_slice_deleted_right_after_our_own_write_comes_back(lab: Lab) -> None:
    """kubernetes/kubernetes#132683: the node agent wipes slices just when the driver has written them."""
    async with lab.driver() as driver:
        await driver.publish({"n1": gpu_pool("n1", 4)})
        for _ in range(3):
            (one,) = await slices(lab)
            assert one.metadata is not None
            await lab.client.delete(ResourceSlice, one.metadata.name or "")

            async def back() -> bool:
                return len(await slices(lab)) == 1

            await eventually(back)


async def test_slices_follow_a_node_that_is_registered_anew(lab: Lab) -> None:
    """The old Node's uid in the owner reference would make every new slice garbage."""
    async with lab.driver() as driver:
        await driver.publish({"n1": gpu_pool("n1", 4)})
        (one,) = await slices(lab)
        assert one.metadata is not None
        await lab.client.delete(Node, "n1")
        node = await lab.client.create(make(Node, "n1", None))
        await lab.client.delete(ResourceSlice, one.metadata.name or "")

        async def owners() -> list[str]:
            found = await slices(lab)
            return [o.uid for s in found if s.metadata is not None for o in s.metadata.owner_references or ()]

        async def back() -> bool:
            return bool(await owners())

        await eventually(back)
        assert node.metadata is not None
        assert await owners() == [node.metadata.uid]


async def test_pools_without_a_node_are_not_touched_by_a_nodes_driver(lab: Lab) -> None:
    network = Driver(
        name=GPU,
        node_name="",
        client=lab.client,
        preparer=lab.preparer,
        paths=DriverPaths.under(lab.root / "other", GPU, lab.root / "cdi"),
    )
    async with network, lab.driver() as driver:
        await network.publish({"everywhere": Pool(gpu_pool("x", 1).devices, all_nodes=True)})
        await driver.publish({"n1": gpu_pool("n1", 1)})
        await driver.publish({})
        (one,) = await slices(lab)
        assert one.spec is not None
        assert one.spec.pool is not None
        assert one.spec.pool.name == "everywhere"


@pytest.mark.parametrize(("grace", "forced"), [(0, False), (0, True), (1, False), (30, False)])
async def test_the_pod_object_stays_until_its_claims_are_given_back(lab: Lab, grace: int, forced: bool) -> None:
    """kubernetes/kubernetes#131513: with a grace period of 0 the object went first, and the claim looked free."""
    seen: list[str] = []

    class Watching(Preparer):
        async def unprepare(self, claim: ClaimReference, devices: Sequence[tuple[str, str]]) -> None:
            pods, _ = await lab.client.list(Pod)
            found = await lab.client.get(ResourceClaim, "c1", "default")
            users = (found.status.reserved_for if found.status else None) or ()
            seen.append(f"{len(pods)} pod, {len(users)} user, {len(node.agents['n1'].runtime.runs())} run")
            running = [run for run in node.agents["n1"].runtime.runs() if run.exit is None]
            assert not running

    lab.preparer = Watching()
    settings = NodeSettings(node_name="n1", root_dir=lab.root, machine=MACHINE, runtime="none", gates=GATES)
    async with lab.driver(), running_node(lab.client, settings) as node:
        await lab.claim("c1", "gpu-1")
        await lab.pod("p", "c1", terminationGracePeriodSeconds=grace)
        await until(lab.client, Pod, "p", lambda p: p.status and p.status.phase == "Running")
        await lab.client.delete(Pod, "p", "default", grace_period_seconds=0 if forced else None)
        await gone(lab.client, Pod, "p")
    assert seen == ["1 pod, 1 user, 1 run"]
