"""The certificate authority, the server's own serving certificate, and the key that signs service account tokens.

Authority and key are made once, by the first of the servers that share their directory (under its lock), EC P-256, private
keys 0600. The serving certificate belongs to one server; it is made anew when the authority or the addresses change or it
is about to end. `cryptography` is imported only when something has to be made or signed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import ipaddress
import os
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayplan.apiserver.authentication import MASTERS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["Authority", "AuthorityError", "locked", "self_signed", "write_private"]

CA_YEARS = 10
LEAF_DAYS = 365
RENEW_DAYS = 30
NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically; only its owner may read it."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the new name survives a power cut too
    finally:
        os.close(directory)


class AuthorityError(Exception):
    """The authority cannot be used as it is; the message is one line that says what would help."""


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Alone with the files of a directory, among all processes that ask."""
    descriptor = os.open(directory / ".lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Authority:
    """`ca.crt`, `ca.key` and `sa.key` of `directory`, which servers may share; `server.*` of `serving`, which is one server's."""

    def __init__(self, directory: Path, serving: Path | None = None) -> None:
        self._directory = directory
        self._serving = serving if serving is not None else directory
        for each in (directory, self._serving):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._ca = directory / "ca.crt"
        self._ca_key = directory / "ca.key"
        self._token_key = directory / "sa.key"
        if not self._ca.exists():
            with locked(directory):
                if not self._ca.exists():
                    self._make_ca()  # the certificate comes last: where it is, its key is
        if not self._ca_key.exists():
            raise AuthorityError(
                f"{self._ca_key} is missing: put it back, or remove {self._ca} to have a new authority made "
                "(kubeconfigs made so far become useless)"
            )

    @property
    def ca_pem(self) -> bytes:
        return self._ca.read_bytes()

    def server_context(self, addresses: Iterable[str]) -> ssl.SSLContext:
        """A TLS context that serves under these addresses and verifies client certificates where one is shown."""
        wanted = sorted({*addresses, "127.0.0.1", "::1"})
        certificate, key = self._leaf("server", "bayplan-apiserver", [], wanted, server=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(self._ca)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def client_certificate(self, user: str, groups: Iterable[str]) -> tuple[bytes, bytes]:
        """A client certificate for a user and the private key, both PEM."""
        return self._issue(user, list(groups), [], server=False)

    def node_client(self) -> tuple[Path, Path]:
        """Certificate and key with which this server asks agents for logs and commands."""
        return self._leaf("apiserver-kubelet-client", "kube-apiserver-kubelet-client", [MASTERS], [], server=False)

    def token_key(self) -> EllipticCurvePrivateKey:
        """The key that signs service account tokens."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        if not self._token_key.exists():
            with locked(self._directory):
                if not self._token_key.exists():
                    write_private(self._token_key, _pem(ec.generate_private_key(ec.SECP256R1())))
        found = serialization.load_pem_private_key(self._token_key.read_bytes(), None)
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{self._token_key} holds no EC key")
        return found

    def _leaf(self, stem: str, user: str, groups: list[str], addresses: list[str], server: bool) -> tuple[Path, Path]:
        """Certificate and key in files named after ``stem``; made anew when they would be others, or end soon."""
        certificate, key, note = (self._serving / f"{stem}.{part}" for part in ("crt", "key", "addresses"))
        wanted = "\n".join([f"authority {hashlib.sha256(self.ca_pem).hexdigest()}", *addresses])
        good = certificate.exists() and key.exists() and note.exists() and note.read_text() == wanted
        if not good or time.time() - certificate.stat().st_mtime > (LEAF_DAYS - RENEW_DAYS) * 86400:
            chain, private = self._issue(user, groups, addresses, server)
            write_private(key, private)
            write_private(certificate, chain)
            write_private(note, wanted.encode())
        return certificate, key

    def _make_ca(self) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("bayplan-ca", [])
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        certificate = (
            _builder(name, name, key, 365 * CA_YEARS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_private(self._ca_key, _pem(key))
        write_private(self._ca, certificate.public_bytes(serialization.Encoding.PEM))

    def _issue(self, user: str, groups: list[str], addresses: list[str], server: bool) -> tuple[bytes, bytes]:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        ca = x509.load_pem_x509_certificate(self.ca_pem)
        ca_key = serialization.load_pem_private_key(self._ca_key.read_bytes(), None)
        if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{self._ca_key} holds no EC key")
        key = ec.generate_private_key(ec.SECP256R1())
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        builder = (
            _builder(_name(user, groups), ca.subject, key, LEAF_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(authority_key, critical=False)
        )
        if server:
            builder = builder.add_extension(x509.SubjectAlternativeName(_alternatives(addresses)), critical=False)
        certificate = builder.sign(ca_key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)


def self_signed(directory: Path, name: str, address: str) -> tuple[Path, Path]:
    """A certificate of nobody's authority for a server that tells its clients which one it has; made anew each time."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate, key_file = directory / "kubelet.crt", directory / "kubelet.key"
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name, [])
    builder = _builder(subject, subject, key, 365 * CA_YEARS)
    builder = builder.add_extension(x509.SubjectAlternativeName(_alternatives([address], ())), critical=False)
    write_private(key_file, _pem(key))
    write_private(certificate, builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return certificate, key_file


def _builder(subject: Any, issuer: Any, key: EllipticCurvePrivateKey, days: int) -> Any:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
    )


def _name(common: str, organizations: list[str]) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternatives(addresses: list[str], names: Sequence[str] = NAMES) -> list[Any]:
    from cryptography import x509

    found: list[Any] = [x509.DNSName(name) for name in names]
    for address in addresses:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            if address not in names:
                found.append(x509.DNSName(address))
    return found


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
