"""`bayplan apiserver`: the API server with its data directory, TLS, kubeconfig and store.

The data directory holds everything: `lock` (one server at a time), `pki/`, `tokens.json`, `store.db`, `kubeconfig` (the
administrator's, 0600), `port` (taken again at the next start, so that kubeconfigs stay good), `audit.log`. Servers with one
etcd may share a directory for what clients know them by: authority, key of service account tokens, `tokens.json`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import fcntl
import gc
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayplan.api.gates import FeatureGates
from bayplan.apiserver.audit import AuditLog
from bayplan.apiserver.authentication import MASTERS
from bayplan.apiserver.http import Listener
from bayplan.apiserver.server import APIServer
from bayplan.components.certificates import Authority, AuthorityError, write_private
from bayplan.components.tokenfile import TokenFile, TokenFileError
from bayplan.storage.contract import StorageError, Store

__all__ = ["APIServerError", "RunningAPIServer", "Settings", "kubeconfig_text", "run", "start"]

log = logging.getLogger("bayplan.apiserver")

DEFAULT_PORT = 6443
LOOPBACK = ("127.0.0.1", "::1", "localhost")
AUDIT_FLUSH_SECONDS = 0.5
EXPIRY_SECONDS = 60.0
AUDIT_MAX_BYTES = 64 << 20
ADMIN_NAME = "kubernetes-admin"


class APIServerError(Exception):
    """The server cannot start; the message is one line that says why and what would help."""


@dataclass
class Settings:
    """How an API server is to run. `port` None: the port of the last start, else 6443, else a free one."""

    data_dir: Path
    gates: FeatureGates = field(default_factory=FeatureGates.defaults)
    port: int | None = None
    bind_address: str = "127.0.0.1"
    store: str = "sqlite"
    etcd_servers: tuple[str, ...] = ("http://127.0.0.1:2379",)
    pki_dir: Path | None = None
    """Authority, key of service account tokens and tokens, to be shared by several servers. None: this server's own."""
    audit: bool = True
    freeze: bool = True
    """Tell the garbage collector to leave what was imported alone (a process of its own wants that)."""


class RunningAPIServer:
    """A started server: where it is, and kubeconfigs for whoever should use it."""

    def __init__(
        self, settings: Settings, api: APIServer, authority: Authority, tokens: TokenFile, address: str, port: int
    ) -> None:
        self.settings = settings
        self.api = api
        self.port = port
        self.url = f"https://[{address}]:{port}" if ":" in address else f"https://{address}:{port}"
        self.kubeconfig = settings.data_dir / "kubeconfig"
        self._authority = authority
        self._tokens = tokens
        self._closers: list[Callable[[], Any]] = []
        self._stopped = False

    @property
    def ca(self) -> bytes:
        """The certificate authority, PEM."""
        return self._authority.ca_pem

    def headers_for(self, user: str, groups: tuple[str, ...] = ()) -> dict[str, str]:
        """Headers that identify a component in this process to `api.handle`."""
        return {"Authorization": f"Bearer {self.token_for(user, groups)}", "User-Agent": user.rpartition(":")[2]}

    def token_for(self, user: str, groups: tuple[str, ...] = ()) -> str:
        """The user's token; the same one at every start."""
        return self._tokens.token_for(user, groups)

    def kubeconfig_text(self, user: str, groups: tuple[str, ...] = ()) -> str:
        """A kubeconfig with the user's token."""
        return kubeconfig_text(self.url, self.ca, user, self.token_for(user, groups))

    def write_kubeconfig(self, path: Path, user: str, groups: tuple[str, ...] = ()) -> Path:
        """Write a kubeconfig for a user, readable by the owner only."""
        write_private(path, self.kubeconfig_text(user, groups).encode())
        return path

    def on_stop(self, closer: Callable[[], Any]) -> None:
        """Called at the end, newest first; may return an awaitable."""
        self._closers.append(closer)

    async def stop(self) -> None:
        """End watches, let requests finish, close the store, give up the lock. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        for closer in reversed(self._closers):
            result = closer()
            if result is not None:
                await result


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set."""
    running = await start(settings)
    log.info("serving on %s, kubeconfig %s", running.url, running.kubeconfig)
    try:
        await stop.wait()
    finally:
        await running.stop()


async def start(settings: Settings) -> RunningAPIServer:
    """Start a server; raises `APIServerError` when it cannot be."""
    undo: list[Callable[[], Any]] = []
    try:
        return await _start(settings, undo)
    except BaseException as error:
        for closer in reversed(undo):
            result = closer()
            if result is not None:
                await result
        if isinstance(error, StorageError | AuthorityError | TokenFileError):
            raise APIServerError(str(error)) from error
        if isinstance(error, OSError):
            raise APIServerError(_os_error(settings, error)) from error
        raise


async def _start(settings: Settings, undo: list[Callable[[], Any]]) -> RunningAPIServer:
    directory = settings.data_dir
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    undo.append(_lock(directory))
    shared = settings.pki_dir
    authority = Authority(shared or directory / "pki", serving=directory / "pki")
    tokens = TokenFile((shared or directory) / "tokens.json")
    store = await _open_store(settings)
    undo.append(store.close)
    audit, closers = _audit(settings)
    undo.extend(closers)
    api = APIServer(
        store,
        settings.gates,
        authenticator=tokens.authenticator,
        signing_key=authority.token_key,
        node_client=authority.node_client,
        audit=audit,
    )
    await api.start()
    undo.append(_regularly(api, tokens))
    address = _reachable(settings.bind_address)
    listener = Listener(api)
    undo.append(listener.stop)
    port = await _listen(settings, listener, authority, address)
    write_private(directory / "port", str(port).encode())
    running = RunningAPIServer(settings, api, authority, tokens, address, port)
    for closer in undo:
        running.on_stop(closer)
    running.write_kubeconfig(running.kubeconfig, ADMIN_NAME, (MASTERS,))
    if settings.freeze:
        # Requests make trees of dicts without cycles: full collections would only cost.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 50, 100)
    return running


async def _listen(settings: Settings, listener: Listener, authority: Authority, address: str) -> int:
    context = authority.server_context({settings.bind_address, address, socket.gethostname()} - {"0.0.0.0", "::"})
    if settings.port is not None:
        return await listener.start(settings.bind_address, settings.port, context)
    for port in (_last_port(settings.data_dir), DEFAULT_PORT):
        if port:
            try:
                return await listener.start(settings.bind_address, port, context)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
    return await listener.start(settings.bind_address, 0, context)


async def _open_store(settings: Settings) -> Store:
    if settings.store == "memory":
        from bayplan.storage.memory import MemoryStore

        return MemoryStore()
    if settings.store == "etcd":
        from bayplan.storage.etcd import EtcdStore

        return await EtcdStore.connect(settings.etcd_servers)
    from bayplan.storage.sqlite import SQLiteStore

    return SQLiteStore(settings.data_dir / "store.db")


def _lock(directory: Path) -> Callable[[], None]:
    """Take the data directory; the lock goes with the process, however it ends."""
    file = (directory / "lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        raise APIServerError(
            f"{directory} is in use by another bayplan{f' (process {holder})' if holder else ''}: "
            "stop it, or choose another --data-dir"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file.close


def _regularly(api: APIServer, tokens: TokenFile) -> Callable[[], Any]:
    """Remove expired objects and see which tokens are good, once a minute."""

    async def work() -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            tokens.refresh()
            try:
                await api.expire()
            except StorageError as error:
                log.warning("expired events stay for now: %s", error)

    task = asyncio.get_running_loop().create_task(work())

    async def close() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    return close


def _audit(settings: Settings) -> tuple[AuditLog | None, list[Callable[[], Any]]]:
    if not settings.audit:
        return None, []
    path = settings.data_dir / "audit.log"
    file = path.open("ab", buffering=0)
    os.fchmod(file.fileno(), 0o600)
    audit = AuditLog(file.write)

    async def flush() -> None:
        while True:
            await asyncio.sleep(AUDIT_FLUSH_SECONDS)
            audit.flush()
            if file.tell() > AUDIT_MAX_BYTES:
                with contextlib.suppress(OSError):  # tried again: the disk may be full, the log must go on
                    os.replace(path, path.with_suffix(".log.1"))
                    replacement = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                    os.dup2(replacement, file.fileno())
                    os.close(replacement)

    task = asyncio.get_running_loop().create_task(flush())

    async def close() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        audit.flush()
        file.close()

    return audit, [close]


def _last_port(directory: Path) -> int:
    try:
        return int((directory / "port").read_text())
    except (OSError, ValueError):
        return 0


def _reachable(bind_address: str) -> str:
    """The address that clients on this machine use."""
    if bind_address in ("0.0.0.0", ""):
        return "127.0.0.1"
    return "::1" if bind_address == "::" else bind_address


def kubeconfig_text(url: str, ca: bytes, user: str, token: str) -> str:
    """A kubeconfig for one server (with its certificate authority, PEM) and one user's token."""
    return f"""apiVersion: v1
kind: Config
clusters:
- name: bayplan
  cluster:
    server: {url}
    certificate-authority-data: {base64.b64encode(ca).decode()}
users:
- name: {user}
  user:
    token: {token}
contexts:
- name: bayplan
  context:
    cluster: bayplan
    user: {user}
current-context: bayplan
preferences: {{}}
"""


def _os_error(settings: Settings, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {settings.port} on {settings.bind_address} is in use: choose another --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{settings.bind_address} is no address of this machine: choose another --bind-address"
    if error.errno in (errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EPERM) and error.filename:
        shared = settings.pki_dir is not None and Path(os.fsdecode(error.filename)).is_relative_to(settings.pki_dir)
        return f"{error.filename} cannot be written: choose another {'--pki-dir' if shared else '--data-dir'}"
    return str(error)
