"""Services from descriptors, over real unix sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from bayplan.wire import deviceplugin, dra, drahealth, podresources, registration
from bayplan.wire.rpc import MAX_SOCKET_PATH, SocketPathError, dial, unix_target


def test_the_services_have_the_names_of_the_published_protocols() -> None:
    assert dra.SERVICES[dra.V1].full_name == "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
    assert dra.SERVICES[dra.V1BETA1].full_name == "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"
    assert registration.SERVICE.full_name == "pluginregistration.Registration"
    assert deviceplugin.REGISTRATION.full_name == "v1beta1.Registration"
    assert deviceplugin.DEVICE_PLUGIN.full_name == "v1beta1.DevicePlugin"
    assert podresources.LISTER.full_name == "v1.PodResourcesLister"
    assert podresources.LISTER.methods == ("List", "GetAllocatableResources", "Get")
    assert drahealth.SERVICES[drahealth.V1].full_name == "v1.DRAResourceHealth"
    assert drahealth.SERVICES[drahealth.V1ALPHA1].full_name == "v1alpha1.DRAResourceHealth"


def test_the_wire_form_of_a_device_is_that_of_the_protocol() -> None:
    device = dra.v1.Device(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s")
    assert device.SerializeToString() == b"\n\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s"
    claim = dra.v1beta1.Claim(namespace="n", uid="u", name="c")
    assert claim.SerializeToString() == b"\n\x01n\x12\x01u\x1a\x01c"


class Server:
    async def GetInfo(self, _request: Any, _context: Any) -> registration.PluginInfo:
        return registration.PluginInfo(type="DRAPlugin", name="gpu.example.com")


async def test_calls_over_a_socket_and_methods_that_are_missing(tmp_path: Path) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((registration.SERVICE.handler(Server()),))
    server.add_insecure_port(unix_target(tmp_path / "s.sock"))
    await server.start()
    async with dial(tmp_path / "s.sock") as channel:
        info = await registration.SERVICE.unary(channel, "GetInfo")(registration.InfoRequest(), timeout=5)
        assert info.name == "gpu.example.com"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await registration.SERVICE.unary(channel, "NotifyRegistrationStatus")(
                registration.RegistrationStatus(), timeout=5
            )
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(None)


def test_a_path_that_is_too_long_says_how_long_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 200)
    with pytest.raises(SocketPathError, match=f"the operating system allows {MAX_SOCKET_PATH}"):
        unix_target(path)
