"""CDI documents: what is valid, how edits are merged, what a directory resolves to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bayplan.wire.cdi import (
    Cache,
    CDIError,
    ContainerEdits,
    Device,
    DeviceNode,
    Document,
    Hook,
    IntelRdt,
    Mount,
    merge_edits,
    merge_env,
    minimum_version,
    parse_document,
    split_qualified_name,
    write_document,
)


def document(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "cdiVersion": "0.6.0",
        "kind": "vendor.com/gpu",
        "devices": [{"name": "gpu0", "containerEdits": {"env": ["GPU=0"]}}],
    }
    return {**base, **changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cdiVersion": "9.9.9"}, "cdiVersion: '9.9.9'"),
        ({"kind": "gpu"}, "kind: 'gpu'"),
        ({"devices": []}, "needs at least one device"),
        ({"devices": [{"name": "a", "containerEdits": {}}]}, "devices[0].containerEdits: the device 'a' has no edits"),
        ({"devices": [{"name": "a", "containerEdits": {"env": ["X=1"]}}] * 2}, "devices[1].name: 'a' stands twice"),
        ({"devices": [{"name": "-", "containerEdits": {"env": ["X=1"]}}]}, "devices[0].name: '-' is not a device name"),
        ({"devices": [{"name": "a", "containerEdits": {"env": ["X"]}}]}, "env[0]: 'X' is not \"NAME=value\""),
        ({"devices": [{"name": "a", "containerEdits": {"hooks": [{"hookName": "x", "path": "/x"}]}}]}, "hookName: 'x'"),
        ({"devices": [{"name": "a", "containerEdits": {"deviceNodes": [{"path": "/d", "type": "z"}]}}]}, "type: 'z'"),
        (
            {"devices": [{"name": "a", "containerEdits": {"deviceNodes": [{"path": "/d", "permissions": "x"}]}}]},
            "permissions",
        ),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_invalid_documents_are_refused_with_the_field(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CDIError) as caught:
        parse_document(json.dumps(document(**changes)), source="/etc/cdi/x.json")
    assert says in str(caught.value)
    assert str(caught.value).startswith("/etc/cdi/x.json: ")


def test_yaml_is_read_too() -> None:
    text = "cdiVersion: 0.5.0\nkind: vendor.com/gpu\ndevices:\n- name: gpu0\n  containerEdits: {env: [A=1]}\n"
    assert parse_document(text).devices[0].name == "gpu0"


def test_merged_environment_replaces_in_place() -> None:
    assert merge_env(["A=1", "B=2"], ["A=3", "C=4", "C=5"]) == ["A=3", "B=2", "C=5"]


def test_merge_is_the_effect_of_applying_one_after_the_other() -> None:
    one = ContainerEdits(
        env=["A=1"],
        device_nodes=[DeviceNode(path="/dev/a", permissions="r")],
        mounts=[Mount(host_path="/h/deep", container_path="/c/deep"), Mount(host_path="/h", container_path="/c")],
        hooks=[Hook(hook_name="createContainer", path="/bin/one")],
        additional_gids=[5, 0],
        intel_rdt=IntelRdt(clos_id="one"),
    )
    two = ContainerEdits(
        env=["A=2"],
        device_nodes=[DeviceNode(path="/dev/a", permissions="rw")],
        mounts=[Mount(host_path="/other", container_path="/c")],
        hooks=[Hook(hook_name="createContainer", path="/bin/two")],
        additional_gids=[5, 7],
        intel_rdt=IntelRdt(clos_id="two"),
    )
    merged = merge_edits([one, two])
    assert merged.env == ["A=2"]
    assert merged.device_nodes == [DeviceNode(path="/dev/a", permissions="rw")]
    assert merged.mounts == [
        Mount(host_path="/other", container_path="/c"),
        Mount(host_path="/h/deep", container_path="/c/deep"),
    ]
    assert [hook.path for hook in merged.hooks or ()] == ["/bin/one", "/bin/two"]
    assert merged.additional_gids == [5, 7]
    assert merged.intel_rdt == IntelRdt(clos_id="two")


def test_nothing_merged_is_nothing() -> None:
    assert merge_edits([]).empty()


@pytest.mark.parametrize(
    ("device", "version"),
    [
        (Device(name="a", container_edits=ContainerEdits(env=["A=1"])), "0.3.0"),
        (
            Device(
                name="a", container_edits=ContainerEdits(mounts=[Mount(host_path="/", container_path="/", type="bind")])
            ),
            "0.4.0",
        ),
        (Device(name="0a", container_edits=ContainerEdits(env=["A=1"])), "0.5.0"),
        (
            Device(name="a", container_edits=ContainerEdits(device_nodes=[DeviceNode(path="/d", host_path="/h")])),
            "0.5.0",
        ),
        (Device(name="a", annotations={"x": "y"}, container_edits=ContainerEdits(env=["A=1"])), "0.6.0"),
        (Device(name="a", container_edits=ContainerEdits(additional_gids=[4])), "0.7.0"),
        (Device(name="a", container_edits=ContainerEdits(intel_rdt=IntelRdt(schemata=["x"]))), "1.1.0"),
    ],
)
def test_minimum_version_follows_the_fields(device: Device, version: str) -> None:
    assert minimum_version(Document(cdi_version="0.3.0", kind="vendor.com/gpu", devices=[device])) == version


def test_qualified_names() -> None:
    assert split_qualified_name("vendor.com/gpu=uid-1") == ("vendor.com/gpu", "uid-1")
    for bad in ("gpu0", "vendor.com/gpu", "vendor.com=gpu", "vendor.com/gpu=", "/gpu=a"):
        with pytest.raises(CDIError):
            split_qualified_name(bad)


def test_a_directory_resolves_general_edits_once_and_before_the_devices(tmp_path: Path) -> None:
    devices = [{"name": f"gpu{i}", "containerEdits": {"env": [f"GPU{i}=1"]}} for i in range(2)]
    (tmp_path / "a.json").write_text(json.dumps(document(devices=devices, containerEdits={"env": ["LIB=/x"]})))
    edits = Cache([tmp_path]).resolve(["vendor.com/gpu=gpu1", "vendor.com/gpu=gpu0"])
    assert edits.env == ["LIB=/x", "GPU1=1", "GPU0=1"]


def test_later_directories_win_and_two_in_one_directory_are_a_conflict(tmp_path: Path) -> None:
    low, high = tmp_path / "etc", tmp_path / "run"
    low.mkdir()
    high.mkdir()
    (low / "a.json").write_text(json.dumps(document()))
    (high / "b.yaml").write_text(
        json.dumps(document(devices=[{"name": "gpu0", "containerEdits": {"env": ["GPU=high"]}}]))
    )
    assert Cache([low, high]).resolve(["vendor.com/gpu=gpu0"]).env == ["GPU=high"]
    (high / "c.json").write_text(json.dumps(document()))
    with pytest.raises(CDIError, match=r"defined in both .*b\.yaml and .*c\.json"):
        Cache([low, high]).resolve(["vendor.com/gpu=gpu0"])


def test_what_cannot_be_resolved_is_named_with_the_broken_document(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "half.json.tmp").write_text("{")
    with pytest.raises(CDIError, match=r"unresolvable CDI devices vendor.com/gpu=gpu0 \(.*broken\.json"):
        Cache([tmp_path, tmp_path / "absent"]).resolve(["vendor.com/gpu=gpu0"])


def test_writing_validates_and_leaves_an_equal_file_alone(tmp_path: Path) -> None:
    good = parse_document(json.dumps(document()))
    path = write_document(tmp_path / "cdi", "x", good)
    before = path.stat().st_ino
    assert write_document(tmp_path / "cdi", "x", good).stat().st_ino == before
    assert parse_document(path.read_bytes()) == good
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]
    with pytest.raises(CDIError):
        write_document(tmp_path / "cdi", "y", Document(cdi_version="0.5.0", kind="vendor.com/gpu", devices=[]))
    assert not (tmp_path / "cdi" / "y.json").exists()
