"""Pod defaults: what a pod gets when its author says nothing.

Also here are the defaults that the API server's own plugins give: tolerations for nodes that just failed, the priority, the
service account. Source: API documentation of core/v1, "Pod Priority and Preemption", "Taints and Tolerations".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.pod_resources import default_pod_level_requests, round_to_milli

Object: TypeAlias = dict[str, Any]

DEFAULT_MODE: Final = 0o644
TOKEN_SECONDS: Final = 3600
NOT_READY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
TOLERATION_SECONDS: Final = 300

_SPEC: Final = (
    ("restartPolicy", "Always"),
    ("terminationGracePeriodSeconds", 30),
    ("dnsPolicy", "ClusterFirst"),
    ("schedulerName", "default-scheduler"),
)
_PROBE: Final = (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3))
_TAG: Final = re.compile(r"(?:.*/)?[^/@]*?(?::(?P<tag>[^/@]+))?(?P<digest>@.+)?")


def containers_of(spec: Object) -> Iterator[Object]:
    """Init containers, containers, ephemeral containers."""
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()
    yield from spec.get("ephemeralContainers") or ()


def default_pod(obj: Object, context: Context) -> None:
    """The defaults of the pod's own API."""
    spec = obj.get("spec")
    if spec is None:
        spec = obj["spec"] = {}
    for key, value in _SPEC:
        if spec.get(key) in (None, ""):
            spec[key] = value
    if spec.get("enableServiceLinks") is None:
        spec["enableServiceLinks"] = True
    if spec.get("securityContext") is None:
        spec["securityContext"] = {}
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    host_network = spec.get("hostNetwork")
    for container in containers_of(spec):
        _default_container(container, host_network)
    for volume in spec.get("volumes") or ():
        _default_volume(volume)
    round_to_milli(spec.get("overhead"))
    if spec.get("resources") and context.gates.enabled("PodLevelResources"):
        round_to_milli(spec["resources"].get("limits"))
        round_to_milli(spec["resources"].get("requests"))
        default_pod_level_requests(spec)


def _default_container(container: Object, host_network: bool | None) -> None:
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = pull_policy(container.get("image") or "")
    if not container.get("terminationMessagePath"):
        container["terminationMessagePath"] = "/dev/termination-log"
    if not container.get("terminationMessagePolicy"):
        container["terminationMessagePolicy"] = "File"
    resources = container.get("resources")
    if resources:
        round_to_milli(resources.get("limits"))
        round_to_milli(resources.get("requests"))
    if resources and (limits := resources.get("limits")):
        requests = resources.setdefault("requests", {})
        for name, amount in limits.items():
            if name not in requests:
                requests[name] = amount
    for port in container.get("ports") or ():
        if not port.get("protocol"):
            port["protocol"] = "TCP"
        if host_network and not port.get("hostPort"):
            port["hostPort"] = port.get("containerPort") or 0
    for variable in container.get("env") or ():
        if field_ref := (variable.get("valueFrom") or {}).get("fieldRef"):
            field_ref.setdefault("apiVersion", "v1")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if (probe := container.get(name)) is not None:
            for key, value in _PROBE:
                if not probe.get(key):
                    probe[key] = value
            _default_handler(probe)
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict):
            _default_handler(handler)


def _default_handler(handler: Object) -> None:
    if (get := handler.get("httpGet")) is not None:
        if not get.get("path"):
            get["path"] = "/"
        if not get.get("scheme"):
            get["scheme"] = "HTTP"
    if (grpc := handler.get("grpc")) is not None and grpc.get("service") is None:
        grpc["service"] = ""


def pull_policy(image: str) -> str:
    """Always for the tag ``latest`` or none at all, IfNotPresent for any other tag or a digest."""
    match = _TAG.fullmatch(image)
    if match is None or match["digest"]:
        return "IfNotPresent"
    return "Always" if match["tag"] in (None, "latest") else "IfNotPresent"


def _default_volume(volume: Object) -> None:
    sources = [key for key, value in volume.items() if key != "name" and value is not None]
    if not sources:
        volume["emptyDir"] = {}
        return
    for key in ("secret", "configMap", "downwardAPI", "projected"):
        if (source := volume.get(key)) is not None:
            if source.get("defaultMode") is None:
                source["defaultMode"] = DEFAULT_MODE
            _default_items(source.get("items") or ())
            for projection in source.get("sources") or ():
                _default_items((projection.get("downwardAPI") or {}).get("items") or ())
                token = projection.get("serviceAccountToken")
                if token is not None and token.get("expirationSeconds") is None:
                    token["expirationSeconds"] = TOKEN_SECONDS
    if (host := volume.get("hostPath")) is not None and host.get("type") is None:
        host["type"] = ""


def _default_items(items: Iterable[Object]) -> None:
    for item in items:
        if field_ref := item.get("fieldRef"):
            field_ref.setdefault("apiVersion", "v1")


def default_tolerations(spec: Object) -> None:
    """A pod stays for five minutes on a node that became not ready or unreachable, unless it says otherwise."""
    tolerations = spec.get("tolerations") or []
    added = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS}
        for key in (NOT_READY, UNREACHABLE)
        if not any(_tolerates(toleration, key) for toleration in tolerations)
    ]
    if added:
        spec["tolerations"] = [*tolerations, *added]


def _tolerates(toleration: Object, key: str) -> bool:
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", "NoExecute")
