"""Which pod and container fields this node acts on, and what is told about the rest.

``docs/container-fields.md`` shows this table; a test keeps both in step. A field that a user has set and that nobody
acts on is named in an event, so that nobody believes in a probe or a volume that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from bayplan.api.core import Container, Pod

__all__ = ["CONTAINER_FIELDS", "POD_FIELDS", "FieldRule", "ignored_fields", "table"]

Standing = Literal["honoured", "others", "ignored"]


@dataclass(frozen=True, slots=True)
class FieldRule:
    """``others``: not the node's business (API server, scheduler, controllers). ``defaults``: values that say nothing."""

    standing: Standing
    note: str
    defaults: tuple[Any, ...] = ()


def _honoured(note: str) -> FieldRule:
    return FieldRule("honoured", note)


def _others(note: str) -> FieldRule:
    return FieldRule("others", note)


def _ignored(note: str, *defaults: Any) -> FieldRule:
    return FieldRule("ignored", note, defaults)


POD_FIELDS: dict[str, FieldRule] = {
    "activeDeadlineSeconds": _honoured("the pod fails with reason DeadlineExceeded"),
    "affinity": _others("scheduler"),
    "automountServiceAccountToken": _ignored("no service account token is mounted", True, False),
    "containers": _honoured("see the container fields"),
    "dnsConfig": _ignored("processes use the host's resolver"),
    "dnsPolicy": _ignored("processes use the host's resolver", "ClusterFirst", "Default", "ClusterFirstWithHostNet"),
    "enableServiceLinks": _ignored("no service variables are set", True, False),
    "ephemeralContainers": _ignored("they are not started"),
    "evictionResponders": _others("eviction"),
    "hostAliases": _ignored("the host's /etc/hosts is used"),
    "hostIPC": _ignored("processes always use the host's namespaces", True, False),
    "hostNetwork": _ignored("processes always use the host's network", True, False),
    "hostPID": _ignored("processes always use the host's namespaces", True, False),
    "hostUsers": _ignored("processes always use the host's users", True),
    "hostname": _honoured("variable HOSTNAME only"),
    "hostnameOverride": _honoured("variable HOSTNAME only"),
    "imagePullSecrets": _ignored("no image is pulled"),
    "initContainers": _honoured("one after the other; restartPolicy Always makes a sidecar"),
    "nodeName": _honoured(""),
    "nodeSelector": _others("scheduler"),
    "os": _others("scheduler"),
    "overhead": _others("scheduler"),
    "preemptionPolicy": _others("scheduler"),
    "priority": _others("scheduler"),
    "priorityClassName": _others("scheduler"),
    "readinessGates": _honoured("counted in the condition Ready"),
    "resourceClaims": _honoured("prepared through the drivers' sockets before the first container starts"),
    "resources": _honoured("pod-level resources, with the gates PodLevelResources and PodLevelResourceManagers"),
    "restartPolicy": _honoured(""),
    "runtimeClassName": _ignored("there is one runtime"),
    "schedulerName": _others("scheduler"),
    "schedulingGates": _others("scheduler"),
    "schedulingGroup": _others("scheduler"),
    "securityContext": _ignored("processes run as the agent's user", {}),
    "serviceAccount": _others("API server"),
    "serviceAccountName": _others("API server"),
    "setHostnameAsFQDN": _ignored("the host's name is not changed", False),
    "shareProcessNamespace": _ignored("processes always use the host's namespaces", False),
    "subdomain": _ignored("there is no cluster DNS"),
    "terminationGracePeriodSeconds": _honoured("SIGTERM, then SIGKILL; 0 kills at once"),
    "tolerations": _others("scheduler"),
    "topologySpreadConstraints": _others("scheduler"),
    "volumes": _ignored("nothing is mounted"),
}

CONTAINER_FIELDS: dict[str, FieldRule] = {
    "args": _honoured("with command"),
    "command": _honoured("runs on the host; without it a built-in pause process runs"),
    "env": _honoured("value, fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef; not fileKeyRef"),
    "envFrom": _honoured(""),
    "image": _ignored("no image is pulled; an event of its own says so"),
    "imagePullPolicy": _ignored("no image is pulled", "Always", "IfNotPresent", "Never"),
    "lifecycle": _ignored("no hooks are run"),
    "livenessProbe": _ignored("no probes are run"),
    "name": _honoured(""),
    "ports": _ignored("processes open the host's ports themselves; informative in Kubernetes too"),
    "readinessProbe": _ignored("no probes are run: a container is ready when it runs"),
    "resizePolicy": _ignored(
        "no resize in place",
        [],
        [
            {"resourceName": "cpu", "restartPolicy": "NotRequired"},
            {"resourceName": "memory", "restartPolicy": "NotRequired"},
        ],
    ),
    "resources": _honoured("CPU affinity, CFS quota, weight, memory limit where the host allows; claims through CDI"),
    "restartPolicy": _honoured(""),
    "restartPolicyRules": _honoured(""),
    "securityContext": _ignored("processes run as the agent's user", {}),
    "startupProbe": _ignored("no probes are run: a container has started when it runs"),
    "stdin": _ignored("the input is empty; `kubectl exec -i` has one", False),
    "stdinOnce": _ignored("the input is empty", False),
    "terminationMessagePath": _ignored("no termination message is read", "/dev/termination-log"),
    "terminationMessagePolicy": _ignored("no termination message is read", "File"),
    "tty": _ignored("no terminal; `kubectl exec -t` has one", False),
    "volumeDevices": _ignored("nothing is mounted"),
    "volumeMounts": _ignored("nothing is mounted"),
    "workingDir": _honoured("a path on the host"),
}
_SILENT = {"image", "ports"}
"""Ignored fields that would be named for nearly every pod: one has an event of its own, one is informative anyway."""


def ignored_fields(pod: Pod) -> list[str]:
    """Paths of fields that are set and that this node does not act on."""
    spec = pod.spec
    if spec is None:
        return []
    found = [f"spec.{name}" for name in _set_and_ignored(spec, POD_FIELDS)]
    for kind, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for container in containers or ():
            found += (f"spec.{kind}[{container.name}].{name}" for name in _container_fields(container))
    return found


def _container_fields(container: Container) -> Iterable[str]:
    return (name for name in _set_and_ignored(container, CONTAINER_FIELDS) if name not in _SILENT)


def _set_and_ignored(struct: msgspec.Struct, rules: dict[str, FieldRule]) -> Iterator[str]:
    for attribute, name in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
        rule = rules.get(name)
        value = getattr(struct, attribute)
        if value is None or rule is None or rule.standing != "ignored":
            continue
        plain = msgspec.to_builtins(value)
        if plain in ([], {}) or plain in rule.defaults or _is_token_volume(name, plain):
            continue
        yield name


def _is_token_volume(name: str, plain: Any) -> bool:
    """The volume and mount that an API server adds by itself for the service account's token."""
    return name in ("volumes", "volumeMounts") and all(
        str(one.get("name", "")).startswith("kube-api-access-") for one in plain
    )


def table() -> list[tuple[str, str, str]]:
    """Rows (field, what happens, note) of the documentation, container fields first."""
    words = {"honoured": "honoured", "others": "not the node's business", "ignored": "ignored"}
    rows = [(f"containers[].{name}", words[rule.standing], rule.note) for name, rule in CONTAINER_FIELDS.items()]
    return rows + [(name, words[rule.standing], rule.note) for name, rule in POD_FIELDS.items()]


def markdown() -> str:
    """The table of ``docs/container-fields.md``."""
    lines = ["| field | this node | note |", "|---|---|---|"]
    lines += [f"| `{name}` | {what} | {note} |" for name, what, note in table()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
