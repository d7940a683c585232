"""The authority that several servers share, and each server's own certificate."""

from __future__ import annotations

import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bayplan.components.certificates import Authority, AuthorityError


def test_servers_that_start_together_have_one_authority_and_one_key(tmp_path: Path) -> None:
    together = Barrier(8)

    def work(n: int) -> tuple[bytes, bytes]:
        together.wait()
        authority = Authority(tmp_path / "shared", serving=tmp_path / f"server-{n}")
        authority.server_context({"127.0.0.1"})
        public = authority.token_key().public_key()
        return authority.ca_pem, public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(8)))
    assert len(set(found)) == 1
    ca = x509.load_pem_x509_certificate(found[0][0])
    serving = [x509.load_pem_x509_certificate((tmp_path / f"server-{n}" / "server.crt").read_bytes()) for n in range(8)]
    for certificate in serving:
        certificate.verify_directly_issued_by(ca)
    assert len({certificate.serial_number for certificate in serving}) == 8
    assert sorted(p.name for p in (tmp_path / "shared").iterdir()) == [".lock", "ca.crt", "ca.key", "sa.key"]


def test_another_authority_means_another_serving_certificate(tmp_path: Path) -> None:
    for shared in ("first", "second", "second"):
        authority = Authority(tmp_path / shared, serving=tmp_path / "server")
        context = authority.server_context({"127.0.0.1"})
        assert context.verify_mode == ssl.CERT_OPTIONAL
        certificate = x509.load_pem_x509_certificate((tmp_path / "server" / "server.crt").read_bytes())
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.ca_pem))


def test_a_start_that_broke_off_is_repeated(tmp_path: Path) -> None:
    """The authority's certificate is written last: a key alone is what a crash leaves."""
    before = Authority(tmp_path).ca_pem
    (tmp_path / "ca.crt").unlink()
    authority = Authority(tmp_path)
    assert authority.ca_pem != before
    authority.client_certificate("alice", ["team"])


def test_a_lost_key_is_not_replaced_silently(tmp_path: Path) -> None:
    Authority(tmp_path)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(AuthorityError, match=r"ca\.key is missing: put it back, or remove .*ca\.crt"):
        Authority(tmp_path)
