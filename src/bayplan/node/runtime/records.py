"""What a shim and the runtime write down about a run, and how it is read back (see :mod:`bayplan.node.runtime.shim`)."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from bayplan.node.runtime.contract import ExitStatus, Resources, Run


def boot_id() -> str:
    """Names the time since the last boot; "" where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def read_record(path: Path) -> dict[str, Any] | None:
    """A record; None when it is missing or no JSON (it is written in one go, so that is damage from outside)."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def is_locked(path: Path) -> bool:
    """Whether a living shim holds the run."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def run_of(spec: dict[str, Any], known: dict[str, Any], resources: Resources) -> Run:
    """The run of ``spec.json`` and ``run.json``."""
    return Run(
        id=spec["id"],
        pod_uid=spec["podUid"],
        pod_name=spec["podName"],
        pod_namespace=spec["podNamespace"],
        name=spec["name"],
        restart_count=spec["restartCount"],
        pid=known.get("pid"),
        start_ticks=known.get("startTicks"),
        started_at=known.get("startedAt", 0.0),
        resources=resources,
        log_path=spec["logPath"],
        notes=tuple(known.get("notes", ())),
    )


def exit_of(data: dict[str, Any]) -> ExitStatus:
    """The status in ``exit.json``."""
    return ExitStatus(
        exit_code=data["exitCode"],
        signal=data["signal"],
        finished_at=data["finishedAt"],
        reason=data["reason"],
        message=data.get("message", ""),
    )


def resources_of(data: dict[str, Any]) -> Resources:
    """The resources in ``resources.json``; fields of other versions are passed over."""
    known = {item.name for item in fields(Resources)}
    return Resources(**{key: value for key, value in data.items() if key in known})


def merged_resources(old: Resources, new: Resources) -> Resources:
    """``new`` where it says something, else ``old``."""
    return replace(
        old,
        **{
            item.name: getattr(new, item.name)
            for item in fields(Resources)
            if getattr(new, item.name) not in (None, 0)
            and (item.name != "cpu_period_us" or new.cpu_quota_us is not None)
        },
    )
