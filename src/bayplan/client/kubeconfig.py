"""Where the API server is and who we are: the current context of a kubeconfig file.

Paths inside the file are relative to the file. Data fields (`...-data`) win over file fields, as with kubectl.
Every refusal is one line that names the file and the entry.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import yaml

__all__ = ["Connection", "KubeconfigError", "read_kubeconfig"]


class KubeconfigError(ValueError):
    """The kubeconfig cannot be used; the message is one complete line."""


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to talk to one API server.

    `token_file` is read anew from time to time, since it rotates. Certificates are PEM bytes.
    """

    server: str
    namespace: str = "default"
    token: str = ""
    token_file: str = ""
    ca: bytes = b""
    client_certificate: bytes = b""
    client_key: bytes = b""
    insecure: bool = False
    tls_server_name: str = ""

    def ssl_context(self) -> ssl.SSLContext | None:
        """A context that trusts the cluster's CA and shows the client certificate; None for a plain http server."""
        if not self.server.startswith("https://"):
            return None
        try:
            context = ssl.create_default_context(cadata=self.ca.decode() if self.ca else None)
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise KubeconfigError(
                f"the certificate authority of {self.server} is no PEM certificate: {error}"
            ) from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_certificate:
            self._load_client_certificate(context)
        return context

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        # The ssl module reads a client certificate from files only; ours are private and live as long as the call.
        with tempfile.TemporaryDirectory(prefix="bayplan-") as directory:
            certificate, key = Path(directory, "client.crt"), Path(directory, "client.key")
            certificate.write_bytes(self.client_certificate)
            key.touch(mode=0o600)
            key.write_bytes(self.client_key)
            try:
                context.load_cert_chain(certificate, key)
            except (ssl.SSLError, ValueError) as error:
                raise KubeconfigError(
                    f"the client certificate and key for {self.server} cannot be used: {error}"
                ) from None


def _named(config: dict[str, Any], section: str, key: str, name: str, path: Path) -> dict[str, Any]:
    entries = config.get(section) or []
    if not isinstance(entries, list):
        raise KubeconfigError(f"kubeconfig {path}: {section} must be a list")
    for entry in entries:
        if isinstance(entry, dict) and entry.get("name") == name:
            value = entry.get(key)
            if isinstance(value, dict):
                return value
            raise KubeconfigError(f"kubeconfig {path}: the entry {name!r} of {section} has no {key!r}")
    raise KubeconfigError(f"kubeconfig {path}: {section} has no entry named {name!r}")


def _bytes(entry: dict[str, Any], key: str, path: Path) -> bytes:
    data = entry.get(f"{key}-data")
    if data:
        try:
            return base64.b64decode(str(data), validate=True)
        except binascii.Error:
            raise KubeconfigError(f"kubeconfig {path}: {key}-data is not base64") from None
    name = entry.get(key)
    if not name:
        return b""
    file = path.parent / str(name)
    try:
        return file.read_bytes()
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {path}: {key} {file}: {error.strerror or error}") from None


def read_kubeconfig(path: str | os.PathLike[str], context: str = "") -> Connection:
    """The connection of the current (or the named) context. Raises :class:`KubeconfigError`."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise KubeconfigError(f"kubeconfig {file} is not UTF-8 text") from None
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise KubeconfigError(f"kubeconfig {file} is not YAML{where}: {getattr(error, 'problem', error)}") from None
    if not isinstance(config, dict):
        raise KubeconfigError(f"kubeconfig {file} is empty or no mapping")
    name = context or config.get("current-context")
    if not name:
        raise KubeconfigError(f"kubeconfig {file} has no current-context")
    chosen = _named(config, "contexts", "context", str(name), file)
    cluster = _named(config, "clusters", "cluster", str(chosen.get("cluster") or ""), file)
    user = _named(config, "users", "user", str(chosen["user"]), file) if chosen.get("user") else {}
    return _connection(file, chosen, cluster, user)


def _connection(file: Path, context: dict[str, Any], cluster: dict[str, Any], user: dict[str, Any]) -> Connection:
    server = str(cluster.get("server") or "").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise KubeconfigError(f"kubeconfig {file}: cluster server must be an http(s) URL, not {server!r}")
    for unsupported in ("exec", "auth-provider", "username"):
        if user.get(unsupported) and not user.get("token"):
            raise KubeconfigError(
                f"kubeconfig {file}: users with {unsupported!r} are not supported; "
                "use token, tokenFile or client-certificate"
            )
    certificate, key = _bytes(user, "client-certificate", file), _bytes(user, "client-key", file)
    if bool(certificate) != bool(key):
        raise KubeconfigError(f"kubeconfig {file}: client-certificate and client-key belong together, one is missing")
    token_file = user.get("tokenFile")
    return Connection(
        server=server,
        namespace=str(context.get("namespace") or "default"),
        token=str(user.get("token") or ""),
        token_file=str(file.parent / str(token_file)) if token_file else "",
        ca=_bytes(cluster, "certificate-authority", file),
        client_certificate=certificate,
        client_key=key,
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        tls_server_name=str(cluster.get("tls-server-name") or ""),
    )
