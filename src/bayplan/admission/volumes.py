"""Volumes and mounts of a pod: names, exactly one source, and what the sources need."""

from __future__ import annotations

from typing import Any, TypeAlias

from bayplan.admission.errors import Errors
from bayplan.admission.names import check_label

Object: TypeAlias = dict[str, Any]

_NEEDS = {
    "hostPath": ("path",),
    "secret": ("secretName",),
    "configMap": ("name",),
    "persistentVolumeClaim": ("claimName",),
    "nfs": ("server", "path"),
    "csi": ("driver",),
}


def validate_volumes(errors: Errors, volumes: list[Object]) -> None:
    """``spec.volumes``."""
    seen: set[str] = set()
    for index, volume in enumerate(volumes):
        where, name = f"spec.volumes[{index}]", volume.get("name") or ""
        if not name:
            errors.required(f"{where}.name")
        else:
            check_label(errors, f"{where}.name", name)
            if name in seen:
                errors.duplicate(f"{where}.name", name)
            seen.add(name)
        sources = [key for key, value in volume.items() if key != "name" and value is not None]
        if not sources:
            errors.required(where, "must specify a volume type")
        for extra in sources[1:]:
            errors.forbidden(f"{where}.{extra}", "may not specify more than 1 volume type")
        if sources:
            _validate_source(errors, f"{where}.{sources[0]}", sources[0], volume[sources[0]])


def _validate_source(errors: Errors, field: str, kind: str, source: Object) -> None:
    for key in _NEEDS.get(kind, ()):
        if not source.get(key):
            errors.required(f"{field}.{key}")
    path = source.get("path") if kind == "hostPath" else None
    if path and ".." in path.split("/"):
        errors.invalid(f"{field}.path", path, "must not contain '..'")


def validate_mounts(errors: Errors, field: str, mounts: list[Object], volumes: set[str]) -> None:
    """``volumeMounts`` of a container: known volumes, each place once."""
    places: set[str] = set()
    for index, mount in enumerate(mounts):
        where, name, path = f"{field}[{index}]", mount.get("name") or "", mount.get("mountPath") or ""
        if not name:
            errors.required(f"{where}.name")
        elif name not in volumes:
            errors.not_found(f"{where}.name", name)
        if not path:
            errors.required(f"{where}.mountPath")
        elif path in places:
            errors.invalid(f"{where}.mountPath", path, "must be unique")
        places.add(path)
        sub = mount.get("subPath") or ""
        if sub.startswith("/"):
            errors.invalid(f"{where}.subPath", sub, "must be a relative path")
        elif ".." in sub.split("/"):
            errors.invalid(f"{where}.subPath", sub, "must not contain '..'")
