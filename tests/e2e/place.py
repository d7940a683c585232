"""Short words for end-to-end tests: the objects they need, and a namespace of a running stack to put them in."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import yaml

from tests.e2e.stack import Kubectl, wait_until
from tests.shared import shared

Object = dict[str, Any]
RESOURCE = {"apiVersion": "resource.k8s.io/v1"}


def manifest(start: str) -> list[Object]:
    """The document's manifest whose file name begins so, as objects."""
    (file,) = shared("spec/manifests").glob(f"{start}-*")
    return [d for d in yaml.safe_load_all(file.read_text()) if d]


def device_class(name: str, driver: str, **spec: Any) -> Object:
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {**RESOURCE, "kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": [selector], **spec}}


def devices(*names: str, **fields: Any) -> list[Object]:
    return [{"name": name, **fields} for name in names]


def resource_slice(name: str, driver: str, node: str | None, found: list[Object], **spec: Any) -> Object:
    """One pool of one slice, named like the slice, for a node or (None) for all nodes."""
    where: Object = {"nodeName": node} if node else {"allNodes": True}
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    body = {"driver": driver, "pool": pool, **where, "devices": found, **spec}
    return {**RESOURCE, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": body}


def request(device_class: str, name: str = "r", **fields: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": device_class, **fields}}


def claim(name: str, *requests: Object, **devices: Any) -> Object:
    spec = {"devices": {"requests": list(requests), **devices}}
    return {**RESOURCE, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def template(name: str, *requests: Object, **devices: Any) -> Object:
    spec = {"spec": {"devices": {"requests": list(requests), **devices}}}
    return {**RESOURCE, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec}


def by_name(name: str, entry: str = "c") -> Object:
    return {"name": entry, "resourceClaimName": name}


def by_template(name: str, entry: str = "c") -> Object:
    return {"name": entry, "resourceClaimTemplateName": name}


def pod(name: str, *claims: Object, resources: Object | None = None, **spec: Any) -> Object:
    """A pod of one container that refers to all the claims."""
    container: Object = {"name": "c", "image": "pause", "resources": dict(resources or {})}
    if claims:
        container["resources"]["claims"] = [{"name": c["name"]} for c in claims]
        spec["resourceClaims"] = list(claims)
    body = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


def pod_group(name: str, *claims: Object, **policy: Any) -> Object:
    spec = {"schedulingPolicy": policy or {"basic": {}}, "resourceClaims": list(claims)}
    return {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


class Place:
    """A namespace, and the cluster-wide objects put beside it; `leave` removes all of them."""

    def __init__(self, kubectl: Kubectl, namespace: str, **labels: str) -> None:
        self.kubectl, self.namespace = kubectl, namespace
        self._wide: list[str] = []
        meta = {"name": namespace, "labels": labels}
        kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})

    def run(self, *args: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.kubectl.run("-n", self.namespace, *args, stdin=stdin, check=check)

    def out(self, *args: str) -> str:
        return self.run(*args).stdout.strip()

    def get(self, *args: str) -> Any:
        return json.loads(self.out("get", *args, "-o", "json"))

    def apply(self, *objects: Object) -> None:
        for found in objects:
            if found["kind"] in ("DeviceClass", "ResourceSlice", "DeviceTaintRule", "ResourcePoolStatusRequest"):
                self._wide.append(f"{found['kind'].lower()}/{found['metadata']['name']}")
        text = "\n---\n".join(json.dumps(o) for o in objects)
        self.run("apply", "-f", "-", stdin=text)

    def wait(self, condition: str, *what: str, timeout: int = 30) -> None:
        """``kubectl wait --for=CONDITION``."""
        self.run("wait", f"--for={condition}", f"--timeout={timeout}s", *what)

    def running(self, *pods: str) -> None:
        self.wait("jsonpath={.status.phase}=Running", *(f"pod/{p}" for p in pods))

    def unschedulable(self, name: str, *words: str) -> str:
        """The message with which the pod is refused, once it says all the words."""
        self.wait("condition=PodScheduled=false", f"pod/{name}")
        (condition,) = [c for c in self.get("pod", name)["status"]["conditions"] if c["type"] == "PodScheduled"]
        assert condition["reason"] == "Unschedulable", condition
        for word in words:
            assert word in condition["message"], condition["message"]
        return str(condition["message"])

    def until_free(self, name: str) -> None:
        """Wait until a claim is neither allocated nor reserved."""

        def free() -> bool:
            found = self.get("resourceclaim", name)
            return "allocation" not in found.get("status", {}) and not reserved_for(found)

        wait_until(f"end of the allocation of {name}", free)

    def node(self, name: str) -> str:
        return str(self.get("pod", name)["spec"].get("nodeName", ""))

    def claim_of(self, name: str, entry: str = "c") -> Any:
        """The claim generated for an entry of the pod."""
        statuses = self.get("pod", name)["status"]["resourceClaimStatuses"]
        return self.get("resourceclaim", next(s["resourceClaimName"] for s in statuses if s["name"] == entry))

    def leave(self) -> None:
        self.run("delete", "pods", "--all", "--wait=false", "--grace-period=0", "--force", check=False)
        if self._wide:
            self.run("delete", "--ignore-not-found", "--wait=false", *self._wide, check=False)
        self.run("delete", "namespace", self.namespace, "--wait=false", check=False)


def results(found: Any) -> list[Any]:
    """What a claim is allocated, a result per device."""
    return list(found.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []))


def reserved_for(found: Any) -> list[tuple[str, str]]:
    """(resource, name) of a claim's consumers."""
    return sorted((r["resource"], r["name"]) for r in found.get("status", {}).get("reservedFor", []))
