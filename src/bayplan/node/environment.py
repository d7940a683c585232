"""The environment of a container: from the pod's ``env`` and ``envFrom``, and expansion of ``$(NAME)``. Pure.

Config maps and secrets come in as objects that were read before (:func:`sources` names them). A value may use names that
were defined before it; ``$$`` is a literal ``$``; a reference to an unknown name stays as it is written. Variables of
``env`` override those of ``envFrom``, later ones earlier ones.

Source: Kubernetes documentation "Define Dependent Environment Variables" and "Downward API".
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bayplan.api.base import RawQuantity
from bayplan.api.core import (
    ConfigMap,
    Container,
    EnvVar,
    EnvVarSource,
    ObjectFieldSelector,
    Pod,
    ResourceFieldSelector,
    Secret,
)
from bayplan.api.quantity import Quantity

__all__ = [
    "MAX_ENVIRONMENT",
    "ContainerConfigError",
    "Lookups",
    "container_environment",
    "expand",
    "expand_all",
    "sources",
]

MAX_ENVIRONMENT = 6 * 1024 * 1024
"""Most characters that variables, or an argument, may have when expanded: Linux executes nothing with more than 6 MiB of
arguments and environment (execve(2)). Without a bound a few variables that double each other fill the node's memory."""

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


class ContainerConfigError(ValueError):
    """The container cannot be configured; it is tried again later (reason CreateContainerConfigError)."""


@dataclass(frozen=True, slots=True)
class Lookups:
    """What lies outside the pod. ``node_allocatable`` stands in for limits that a container does not have."""

    config_maps: Mapping[str, ConfigMap] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    node_name: str = ""
    host_ip: str = ""
    node_allocatable: Mapping[str, RawQuantity] = field(default_factory=dict)


def sources(container: Container) -> tuple[set[str], set[str]]:
    """Names of the config maps and of the secrets that the environment uses."""
    config_maps: set[str] = set()
    secrets: set[str] = set()
    for source in container.env_from or ():
        if source.config_map_ref is not None:
            config_maps.add(source.config_map_ref.name or "")
        if source.secret_ref is not None:
            secrets.add(source.secret_ref.name or "")
    for variable in container.env or ():
        origin = variable.value_from
        if origin is not None and origin.config_map_key_ref is not None:
            config_maps.add(origin.config_map_key_ref.name or "")
        if origin is not None and origin.secret_key_ref is not None:
            secrets.add(origin.secret_key_ref.name or "")
    return config_maps, secrets


def container_environment(pod: Pod, container: Container, lookups: Lookups) -> dict[str, str]:
    """The variables in the order of their definition. Raises :class:`ContainerConfigError`, also where the values are
    longer than :data:`MAX_ENVIRONMENT` together."""
    values: dict[str, str] = {}
    for source in container.env_from or ():
        prefix = source.prefix or ""
        if source.config_map_ref is not None:
            ref = source.config_map_ref
            data = _config_map(lookups, ref.name or "", bool(ref.optional))
        elif source.secret_ref is not None:
            data = _secret(lookups, source.secret_ref.name or "", bool(source.secret_ref.optional))
        else:
            continue
        values.update((prefix + key, text) for key, text in sorted(data.items()) if _NAME.fullmatch(prefix + key))
    length = sum(map(len, values.values()))
    for variable in container.env or ():
        value = _value(pod, container, variable, values, lookups)
        if value is not None:
            length += len(value) - len(values.get(variable.name, ""))
            if length > MAX_ENVIRONMENT:
                raise _too_long(f"env: {variable.name}: the variables")
            values[variable.name] = value
    return values


def expand(text: str, values: Mapping[str, str]) -> str:
    """``$(NAME)`` replaced by the variable's value. Raises :class:`ContainerConfigError` where the result is longer than
    :data:`MAX_ENVIRONMENT`; no longer text is ever made."""
    left = MAX_ENVIRONMENT - len(text)

    def replace(match: re.Match[str]) -> str:
        nonlocal left
        name = match[1]
        if name is None:
            return "$"
        value = values.get(name, match[0])
        left -= len(value)
        if left < 0:
            raise _too_long(f"{text[:40]!r}: the text")
        return value

    # Behind the last ")" no reference can end; looking for its end at every "$(" there would take quadratic time.
    end = text.rfind(")") + 1
    return _REFERENCE.sub(replace, text[:end]) + text[end:].replace("$$", "$")


def expand_all(texts: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Each text expanded, :data:`MAX_ENVIRONMENT` in total."""
    found: list[str] = []
    length = 0
    for text in texts:
        found.append(expand(text, values))
        length += len(found[-1])
        if length > MAX_ENVIRONMENT:
            raise _too_long("the command with its arguments")
    return tuple(found)


def _too_long(what: str) -> ContainerConfigError:
    return ContainerConfigError(
        f"{what} would be longer than {MAX_ENVIRONMENT} characters after the expansion of $(NAME); "
        "no program can be started with so much"
    )


def _value(pod: Pod, container: Container, variable: EnvVar, values: Mapping[str, str], lookups: Lookups) -> str | None:
    origin = variable.value_from
    if origin is None:
        return expand(variable.value or "", values)
    if origin.field_ref is not None:
        return _field(pod, origin.field_ref, lookups)
    if origin.resource_field_ref is not None:
        return _resource(pod, container, origin.resource_field_ref, lookups)
    return _keyed(origin, lookups)


def _keyed(origin: EnvVarSource, lookups: Lookups) -> str | None:
    """A value from a config map or secret; None for an optional one that is absent."""
    if origin.config_map_key_ref is not None:
        ref, kind = origin.config_map_key_ref, "ConfigMap"
        data = _config_map(lookups, ref.name or "", bool(ref.optional))
        key, optional, name = ref.key, bool(ref.optional), ref.name
    elif origin.secret_key_ref is not None:
        secret, kind = origin.secret_key_ref, "Secret"
        data = _secret(lookups, secret.name or "", bool(secret.optional))
        key, optional, name = secret.key, bool(secret.optional), secret.name
    else:
        raise ContainerConfigError("valueFrom.fileKeyRef is not supported on this node")
    if key in data:
        return data[key]
    if optional:
        return None
    raise ContainerConfigError(f"couldn't find key {key} in {kind} {name}")


def _config_map(lookups: Lookups, name: str, optional: bool) -> Mapping[str, str]:
    found = lookups.config_maps.get(name)
    if found is None:
        if optional:
            return {}
        raise ContainerConfigError(f'configmap "{name}" not found')
    return found.data or {}


def _secret(lookups: Lookups, name: str, optional: bool) -> Mapping[str, str]:
    found = lookups.secrets.get(name)
    if found is None:
        if optional:
            return {}
        raise ContainerConfigError(f'secret "{name}" not found')
    texts = dict(found.string_data or {})
    for key, encoded in (found.data or {}).items():
        try:
            texts[key] = base64.b64decode(encoded).decode("utf-8", "surrogateescape")
        except (binascii.Error, ValueError) as error:
            raise ContainerConfigError(f'secret "{name}": data[{key}] is not base64: {error}') from error
    return texts


def _field(pod: Pod, ref: ObjectFieldSelector, lookups: Lookups) -> str:
    metadata, spec = pod.metadata, pod.spec
    assert metadata is not None
    path = ref.field_path
    match = _SUBSCRIPT.fullmatch(path)
    if match:
        mapping = metadata.labels if match[1] == "labels" else metadata.annotations
        return (mapping or {}).get(match[2], "")
    simple = {
        "metadata.name": metadata.name,
        "metadata.namespace": metadata.namespace,
        "metadata.uid": metadata.uid,
        "spec.nodeName": lookups.node_name,
        "spec.serviceAccountName": spec.service_account_name if spec else "",
        "status.hostIP": lookups.host_ip,
        "status.hostIPs": lookups.host_ip,
        "status.podIP": lookups.host_ip,
        "status.podIPs": lookups.host_ip,
    }
    if path not in simple:
        raise ContainerConfigError(f"fieldRef.fieldPath: {path!r} is none of {', '.join(sorted(simple))}")
    return simple[path] or ""


def _resource(pod: Pod, container: Container, ref: ResourceFieldSelector, lookups: Lookups) -> str:
    spec = pod.spec
    everybody = [*((spec.init_containers if spec else None) or ()), *((spec.containers if spec else None) or ())]
    target = next((c for c in everybody if c.name == ref.container_name), container)
    if ref.container_name and target.name != ref.container_name:
        raise ContainerConfigError(f"resourceFieldRef.containerName: the pod has no container {ref.container_name!r}")
    kind, _, resource = ref.resource.partition(".")
    if kind not in ("limits", "requests") or not resource:
        raise ContainerConfigError(f"resourceFieldRef.resource: {ref.resource!r} is not limits.* or requests.*")
    limits = (target.resources.limits if target.resources else None) or {}
    requests = (target.resources.requests if target.resources else None) or {}
    raw = (
        limits.get(resource, lookups.node_allocatable.get(resource, 0))
        if kind == "limits"
        else requests.get(resource, 0)
    )
    value = Quantity.parse(raw)
    divisor = Quantity.parse(ref.divisor or 1)
    divisor = divisor if divisor.nano else Quantity.of(1)
    return str(-(-value.nano // divisor.nano))
