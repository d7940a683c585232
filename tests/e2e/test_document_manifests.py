"""Every complete manifest of the document through real kubectl: accepted, or refused as the real API refuses it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.e2e.stack import Stack
from tests.shared import shared, shared_files

pytestmark = pytest.mark.e2e

REFUSED = {
    # What the API says, and which names the field and how to write it (notes beside the manifests).
    "10-": ("spec.devices[0].attributes", "a valid C identifier"),
    "15-": ("Device.spec.devices.capacity", "each {requestPolicy: ..., value: ...}"),
    "17-": ("spec.driver", "RFC 1123 subdomain"),
    "16-": ("nodeAllocatableResources.overhead.memory", "write nodeAllocatableResources: {memory: {overhead: ...}}"),
}
NOT_API = {"13-": "a configuration file of the scheduler", "18-": "a fragment without a name"}
MANIFESTS = [f for f in shared_files("spec/manifests", "*.yaml") if f.name[:3] not in NOT_API]


def test_there_are_manifests() -> None:
    assert len(list(shared("spec/manifests").glob("*.yaml"))) >= 24


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda f: f.stem)
def test_manifest(api: Stack, file: Path) -> None:
    kubectl = api.kubectl
    admin_only = "adminAccess: true" in file.read_text()
    if admin_only:
        plain = kubectl.run("apply", "-f", str(file), check=False)
        assert plain.returncode != 0
        assert "resource.kubernetes.io/admin-access" in plain.stderr
        kubectl.run("create", "namespace", "admins", check=False)
        kubectl.out("label", "--overwrite", "namespace", "admins", "resource.kubernetes.io/admin-access=true")
    namespace = ["-n", "admins"] if admin_only else []
    done = kubectl.run("apply", "-f", str(file), *namespace, check=False)
    expected = REFUSED.get(file.name[:3])
    if expected:
        assert done.returncode != 0
        for words in expected:
            assert words in done.stderr
        return
    assert done.returncode == 0, done.stderr
    for document in yaml.safe_load_all(file.read_text()):
        name = document["metadata"]["name"]
        stored = kubectl.get(document["kind"].lower(), name, *namespace)
        assert stored["metadata"]["name"] == name
        # Atomic lists with defaulted elements make kubectl send a patch that changes nothing: the version stays.
        kubectl.run("apply", "-f", str(file), *namespace)
        again = kubectl.get(document["kind"].lower(), name, *namespace)
        assert again["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]
        kubectl.run("delete", document["kind"].lower(), name, "--grace-period=0", "--force", *namespace)
