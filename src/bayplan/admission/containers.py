"""Containers of a pod: names, images, ports, environment, mounts, probes, restart policies, resources."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

from bayplan.admission.errors import Errors
from bayplan.admission.names import check_label
from bayplan.admission.pod_resources import validate_container_resources
from bayplan.admission.volumes import validate_mounts

Object: TypeAlias = dict[str, Any]

PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
MESSAGE_POLICIES: Final = ("File", "FallbackToLogsOnError")
PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")

_ENV_NAME: Final = re.compile(r"[ -<>-~]+")
_PORT_NAME: Final = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc")


def validate_containers(errors: Errors, spec: Object, claims: list[str]) -> None:
    """All containers of a pod; names are unique among all of them."""
    containers = spec.get("containers") or ()
    if not containers:
        errors.required("spec.containers")
    volumes = {v.get("name") for v in spec.get("volumes") or ()}
    seen: set[str] = set()
    for index, container in enumerate(containers):
        _validate_container(errors, f"spec.containers[{index}]", container, seen, volumes, claims)
    for index, container in enumerate(spec.get("initContainers") or ()):
        where = f"spec.initContainers[{index}]"
        _validate_container(errors, where, container, seen, volumes, claims)
        _validate_init(errors, where, container)
    for index, container in enumerate(spec.get("ephemeralContainers") or ()):
        validate_ephemeral(errors, f"spec.ephemeralContainers[{index}]", container, seen, volumes)


def _validate_container(
    errors: Errors, field: str, container: Object, seen: set[str], volumes: set[str], claims: list[str]
) -> None:
    name, image = container.get("name") or "", container.get("image") or ""
    if not name:
        errors.required(f"{field}.name")
    else:
        check_label(errors, f"{field}.name", name)
        if name in seen:
            errors.duplicate(f"{field}.name", name)
        seen.add(name)
    if not image:
        errors.required(f"{field}.image")
    elif image != image.strip():
        errors.invalid(f"{field}.image", image, "must not have leading or trailing whitespace")
    for key, allowed in (("imagePullPolicy", PULL_POLICIES), ("terminationMessagePolicy", MESSAGE_POLICIES)):
        value = container.get(key) or ""
        if not value:
            errors.required(f"{field}.{key}")
        elif value not in allowed:
            errors.not_supported(f"{field}.{key}", value, allowed)
    if ports := container.get("ports"):
        _validate_ports(errors, f"{field}.ports", ports)
    if variables := container.get("env"):
        _validate_env(errors, f"{field}.env", variables)
    if mounts := container.get("volumeMounts"):
        validate_mounts(errors, f"{field}.volumeMounts", mounts, volumes)
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(probe):
            _validate_probe(errors, f"{field}.{probe}", container[probe], probe)
    policy = container.get("restartPolicy")
    if policy is not None and policy not in RESTART_POLICIES:
        errors.not_supported(f"{field}.restartPolicy", policy, RESTART_POLICIES)
    if resources := container.get("resources"):
        validate_container_resources(errors, f"{field}.resources", resources, claims)


def _validate_init(errors: Errors, field: str, container: Object) -> None:
    if container.get("restartPolicy") == "Always":
        return
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(probe):
            errors.forbidden(f"{field}.{probe}", "may not be set for init containers without restartPolicy=Always")
    if container.get("lifecycle"):
        errors.forbidden(f"{field}.lifecycle", "may not be set for init containers without restartPolicy=Always")


def validate_ephemeral(errors: Errors, field: str, container: Object, seen: set[str], volumes: set[str]) -> None:
    """An ephemeral container: no ports, probes, resources or lifecycle."""
    _validate_container(errors, field, container, seen, volumes, [])
    for key in ("ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resources"):
        if container.get(key):
            errors.forbidden(f"{field}.{key}", "cannot be set for an Ephemeral Container")


def _validate_ports(errors: Errors, field: str, ports: list[Object]) -> None:
    seen: set[str] = set()
    for index, port in enumerate(ports):
        where, name = f"{field}[{index}]", port.get("name") or ""
        if name:
            if len(name) > 15 or _PORT_NAME.fullmatch(name) is None or "--" in name:
                text = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-), and be no more than 15 characters"
                errors.invalid(f"{where}.name", name, text)
            elif name in seen:
                errors.duplicate(f"{where}.name", name)
            seen.add(name)
        number = port.get("containerPort") or 0
        if number == 0:
            errors.required(f"{where}.containerPort")
        elif not 1 <= number <= 65535:
            errors.invalid(f"{where}.containerPort", number, "must be between 1 and 65535, inclusive")
        host = port.get("hostPort") or 0
        if host and not 1 <= host <= 65535:
            errors.invalid(f"{where}.hostPort", host, "must be between 1 and 65535, inclusive")
        protocol = port.get("protocol") or ""
        if not protocol:
            errors.required(f"{where}.protocol")
        elif protocol not in PROTOCOLS:
            errors.not_supported(f"{where}.protocol", protocol, PROTOCOLS)


def _validate_env(errors: Errors, field: str, variables: list[Object]) -> None:
    for index, variable in enumerate(variables):
        where, name = f"{field}[{index}]", variable.get("name") or ""
        if not name:
            errors.required(f"{where}.name")
        elif _ENV_NAME.fullmatch(name) is None:
            errors.invalid(
                f"{where}.name",
                name,
                "a valid environment variable name must consist only of printable ASCII characters other than '='",
            )
        source = variable.get("valueFrom")
        if source is None:
            continue
        given = [key for key, value in source.items() if value is not None]
        if not given:
            text = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
            errors.invalid(f"{where}.valueFrom", "", text)
        elif variable.get("value"):
            errors.invalid(f"{where}.valueFrom", "", "may not be specified when `value` is not empty")
        elif len(given) > 1:
            errors.invalid(f"{where}.valueFrom", "", "may not have more than one field specified at a time")


def _validate_probe(errors: Errors, field: str, probe: Object, kind: str) -> None:
    given = [h for h in _HANDLERS if probe.get(h) is not None]
    if not given:
        errors.required(field, "must specify a handler type")
    for extra in given[1:]:
        errors.forbidden(f"{field}.{extra}", "may not specify more than 1 handler type")
    for key in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        value = probe.get(key) or 0
        if value < 0:
            errors.invalid(f"{field}.{key}", value, "must be greater than or equal to 0")
    if kind != "readinessProbe" and (probe.get("successThreshold") or 1) != 1:
        errors.invalid(f"{field}.successThreshold", probe["successThreshold"], "must be 1")
    if probe.get("exec") is not None and not probe["exec"].get("command"):
        errors.required(f"{field}.exec.command")
