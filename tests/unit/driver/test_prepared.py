"""The record of prepared claims and its CDI documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.driver.plugin import PreparedDevice
from bayplan.driver.prepared import PreparedClaim, PreparedClaims, StoredDevice, StoreError
from bayplan.wire.cdi import Cache, CDIError, ContainerEdits

UID = "uid-1"


def store(path: Path) -> PreparedClaims:
    return PreparedClaims("gpu.example.com", path / "data" / "prepared.json", path / "cdi")


def claim(*devices: str, uid: str = UID, share: str | None = None, admin: bool = False) -> PreparedClaim:
    return PreparedClaim(
        namespace="default",
        name="c",
        uid=uid,
        devices=[StoredDevice(pool="n1", device=d, request="r", share_id=share, admin=admin) for d in devices],
    )


def edits(text: str) -> PreparedDevice:
    return PreparedDevice(edits=ContainerEdits(env=[text]))


def test_a_prepared_claim_resolves_and_survives_a_restart(tmp_path: Path) -> None:
    first = store(tmp_path)
    first.begin(claim("gpu-0", "gpu-1"))
    done = first.complete(UID, [edits("A=1"), edits("B=2")])
    ids = [id for device in done.devices for id in device.cdi_ids(first.kind)]
    assert ids == ["k8s.gpu.example.com/claim=uid-1-gpu-0", "k8s.gpu.example.com/claim=uid-1-gpu-1"]
    assert Cache([tmp_path / "cdi"]).resolve(ids).env == ["A=1", "B=2"]
    again = store(tmp_path).get(UID)
    assert again is not None
    assert again.complete
    assert [d.cdi_ids(first.kind) for d in again.devices] == [[ids[0]], [ids[1]]]


def test_documents_that_a_reboot_has_emptied_are_made_again(tmp_path: Path) -> None:
    """ROCm/k8s-gpu-dra-driver#75: the record says prepared, the directory is empty."""
    first = store(tmp_path)
    first.begin(claim("gpu-0"))
    first.complete(UID, [edits("A=1")])
    for path in (tmp_path / "cdi").iterdir():
        path.unlink()
    second = store(tmp_path)
    known = second.get(UID)
    assert known is not None
    second.ensure_document(known)
    assert Cache([tmp_path / "cdi"]).resolve(["k8s.gpu.example.com/claim=uid-1-gpu-0"]).env == ["A=1"]


def test_an_invalid_document_is_refused_before_anything_says_prepared(tmp_path: Path) -> None:
    one = store(tmp_path)
    one.begin(claim("gpu-0"))
    with pytest.raises(CDIError, match="NAME=value"):
        one.complete(UID, [edits("no equals sign")])
    known = store(tmp_path).get(UID)
    assert known is not None
    assert not known.complete
    assert not (tmp_path / "cdi").exists()


def test_devices_without_edits_have_no_document(tmp_path: Path) -> None:
    one = store(tmp_path)
    one.begin(claim("gpu-0"))
    done = one.complete(UID, [PreparedDevice(cdi_devices=["vendor.com/gpu=all"])])
    assert done.devices[0].cdi_ids(one.kind) == ["vendor.com/gpu=all"]
    assert not (tmp_path / "cdi").exists()


def test_the_same_device_name_in_two_pools_gets_two_names(tmp_path: Path) -> None:
    one = store(tmp_path)
    both = claim("gpu-0", "gpu-0")
    both.devices[1].pool = "n2"
    one.begin(both)
    done = one.complete(UID, [edits("A=1"), edits("B=2")])
    assert len({device.cdi_name for device in done.devices}) == 2


def test_who_holds_a_device(tmp_path: Path) -> None:
    one = store(tmp_path)
    one.begin(claim("gpu-0", uid="mine"))
    one.begin(claim("gpu-1", uid="shared", share="s1"))
    one.begin(claim("gpu-2", uid="admin", admin=True))
    assert one.holder("n1", "gpu-0", None, "other") is one.get("mine")
    assert one.holder("n1", "gpu-0", None, "mine") is None
    assert one.holder("n1", "gpu-1", "s2", "other") is None
    assert one.holder("n1", "gpu-1", "s1", "other") is one.get("shared")
    assert one.holder("n1", "gpu-2", None, "other") is None


def test_forgetting_removes_document_and_record(tmp_path: Path) -> None:
    one = store(tmp_path)
    one.begin(claim("gpu-0"))
    one.complete(UID, [edits("A=1")])
    one.forget(UID)
    one.forget(UID)
    assert store(tmp_path).all() == []
    assert list((tmp_path / "cdi").iterdir()) == []


def test_a_damaged_record_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "prepared.json").write_text("{")
    with pytest.raises(StoreError, match=r"prepared\.json"):
        store(tmp_path)
