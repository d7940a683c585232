"""A kubeconfig that cannot be used is refused in one line that names file and entry."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayplan.client.kubeconfig import KubeconfigError, read_kubeconfig


def document(**cluster: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443/", **cluster}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }


def write(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_current_context_is_read(tmp_path: Path) -> None:
    connection = read_kubeconfig(write(tmp_path, document()))
    assert (connection.server, connection.token, connection.namespace) == ("https://127.0.0.1:6443", "secret", "team")


def test_files_are_relative_to_the_kubeconfig_and_data_wins(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"from file")
    assert read_kubeconfig(write(tmp_path, document(**{"certificate-authority": "ca.pem"}))).ca == b"from file"
    data = base64.b64encode(b"from data").decode()
    both = document(**{"certificate-authority": "ca.pem", "certificate-authority-data": data})
    assert read_kubeconfig(write(tmp_path, both)).ca == b"from data"


def test_another_context_can_be_named(tmp_path: Path) -> None:
    content = document()
    content["contexts"].append({"name": "other", "context": {"cluster": "c"}})
    assert read_kubeconfig(write(tmp_path, content), "other").token == ""


def broken(change: str) -> Any:
    content = document()
    match change:
        case "no context":
            del content["current-context"]
        case "unknown cluster":
            content["contexts"][0]["context"]["cluster"] = "elsewhere"
        case "bad server":
            content["clusters"][0]["cluster"]["server"] = "127.0.0.1:6443"
        case "exec":
            content["users"][0]["user"] = {"exec": {"command": "aws"}}
        case "half a certificate":
            content["users"][0]["user"] = {"client-certificate-data": base64.b64encode(b"x").decode()}
        case "bad base64":
            content["clusters"][0]["cluster"]["certificate-authority-data"] = "%%%"
        case "missing file":
            content["clusters"][0]["cluster"]["certificate-authority"] = "nowhere.pem"
        case "not yaml":
            return "clusters: ["
        case "empty":
            return ""
        case "clusters no list":
            content["clusters"] = "c"
    return content


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("no context", "no current-context"),
        ("unknown cluster", "no entry named 'elsewhere'"),
        ("bad server", "must be an http(s) URL"),
        ("exec", "'exec' are not supported"),
        ("half a certificate", "client-certificate and client-key belong together"),
        ("bad base64", "certificate-authority-data is not base64"),
        ("missing file", "nowhere.pem: No such file"),
        ("not yaml", "is not YAML"),
        ("empty", "is empty"),
        ("clusters no list", "clusters must be a list"),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path: Path, change: str, said: str) -> None:
    path = write(tmp_path, broken(change))
    with pytest.raises(KubeconfigError) as error:
        read_kubeconfig(path)
    text = str(error.value)
    assert said in text
    assert str(path) in text
    assert "\n" not in text


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="cannot be read: No such file"):
        read_kubeconfig(tmp_path / "absent")
