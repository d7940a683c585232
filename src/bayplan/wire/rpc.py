"""gRPC over unix sockets, from service descriptors.

A :class:`Service` knows the methods of one service of a generated module. It makes the server side from any object that
has coroutine methods of the same names, and the client side as plain callables. There is no generated service code, so
nothing here depends on the release of grpcio that generated it.

Unix socket paths are limited by the operating system (107 bytes on Linux); :func:`unix_target` says so before gRPC
reports something less clear.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf import descriptor as protobuf_descriptor
from google.protobuf import message_factory

__all__ = ["MAX_SOCKET_PATH", "Service", "SocketPathError", "dial", "unix_target"]

MAX_SOCKET_PATH = 107 if sys.platform == "linux" else 103
"""Longest usable unix socket path in bytes."""

_OPTIONS = (
    # A plugin that was away must be reachable again soon after it is back, not after gRPC's two minutes.
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Channels to the same path must not share a connection: the file behind the path may be another socket by now.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class SocketPathError(ValueError):
    """The path cannot be the path of a unix socket."""


def unix_target(path: str | os.PathLike[str]) -> str:
    """The gRPC target of a unix socket. Raises :class:`SocketPathError` where the path is too long."""
    text = os.path.abspath(path)
    length = len(os.fsencode(text))
    if length > MAX_SOCKET_PATH:
        raise SocketPathError(
            f"socket path {text} has {length} bytes, the operating system allows {MAX_SOCKET_PATH}: "
            "choose a shorter root directory (--root-dir, or --data-dir of bayplan up)"
        )
    return f"unix:{text}"


def dial(path: str | os.PathLike[str]) -> grpc.aio.Channel:
    """A client channel to a unix socket. It connects at the first call and reconnects by itself."""
    return grpc.aio.insecure_channel(unix_target(path), options=_OPTIONS)


class Service:
    """One service of a generated module, e.g. ``Service(api_pb2, "DRAPlugin")``."""

    def __init__(self, module: ModuleType, name: str) -> None:
        descriptor: protobuf_descriptor.ServiceDescriptor = module.DESCRIPTOR.services_by_name[name]
        self.full_name: str = descriptor.full_name
        self._methods = {method.name: method for method in descriptor.methods}

    def __repr__(self) -> str:
        return f"Service({self.full_name})"

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in the order of the .proto file."""
        return tuple(self._methods)

    def handler(self, implementation: object) -> grpc.GenericRpcHandler[Any, Any]:
        """The server side. Methods that ``implementation`` does not have answer UNIMPLEMENTED.

        Unary methods are coroutines ``(request, context) -> response``, streaming ones asynchronous generators.
        """
        handlers = {}
        for name, method in self._methods.items():
            behaviour = getattr(implementation, name, None) or _unimplemented
            make = (
                grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
            )
            handlers[name] = make(
                behaviour,
                request_deserializer=_class(method.input_type).FromString,
                response_serializer=_class(method.output_type).SerializeToString,
            )
        return grpc.method_handlers_generic_handler(self.full_name, handlers)

    def unary(self, channel: grpc.aio.Channel, name: str) -> Callable[..., Awaitable[Any]]:
        """The client side of a unary method: ``await call(request, timeout=seconds)``."""
        method = self._methods[name]
        call: Callable[..., Awaitable[Any]] = channel.unary_unary(
            f"/{self.full_name}/{name}",
            request_serializer=_class(method.input_type).SerializeToString,
            response_deserializer=_class(method.output_type).FromString,
        )
        return call

    def stream(self, channel: grpc.aio.Channel, name: str) -> Callable[..., Any]:
        """The client side of a method that answers with a stream: ``async for message in call(request)``."""
        method = self._methods[name]
        call: Callable[..., Any] = channel.unary_stream(
            f"/{self.full_name}/{name}",
            request_serializer=_class(method.input_type).SerializeToString,
            response_deserializer=_class(method.output_type).FromString,
        )
        return call


def _class(descriptor: protobuf_descriptor.Descriptor) -> Any:
    return message_factory.GetMessageClass(descriptor)


async def _unimplemented(_request: Any, context: Any) -> NoReturn:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this plugin does not implement the method")
    raise AssertionError("abort raises")
