"""From a pod, its assignment and its CDI edits to the run that a runtime starts. Pure."""

from __future__ import annotations

from bayplan.api.base import RawQuantity
from bayplan.api.core import Container, Pod
from bayplan.api.quantity import Quantity
from bayplan.managers.assignment import ContainerAssignment
from bayplan.node.environment import Lookups, container_environment, expand_all
from bayplan.node.runtime.contract import ContainerSpec, Resources
from bayplan.wire.cdi import ContainerEdits, merge_env

__all__ = ["build_spec", "container_resources", "find_container", "run_id"]

MIN_SHARES = 2
MAX_SHARES = 262_144
MIN_QUOTA_US = 1_000


def run_id(pod_uid: str, container: str, restart_count: int) -> str:
    """The id of one run: the same attempt always has the same id, so that starting it twice starts it once."""
    return f"{pod_uid}-{container}-{restart_count}"


def find_container(pod: Pod, name: str) -> Container:
    """The init or app container of that name. Raises KeyError."""
    spec = pod.spec
    for container in (*((spec.init_containers if spec else None) or ()), *((spec.containers if spec else None) or ())):
        if container.name == name:
            found: Container = container
            return found
    raise KeyError(name)


def container_resources(
    container: Container, assignment: ContainerAssignment | None, *, cfs_quota: bool = True, period_us: int = 100_000
) -> Resources:
    """CPUs and memory nodes of the assignment; limits and weight of the spec.

    A container with exclusive CPUs has no CFS quota: it may use its CPUs in full (document section 1).
    """
    limits = (container.resources.limits if container.resources else None) or {}
    requests = (container.resources.requests if container.resources else None) or {}
    milli_limit = _milli(limits.get("cpu"))
    milli_request = _milli(requests.get("cpu", limits.get("cpu"))) or 0
    exclusive = assignment is not None and assignment.cpu_isolation == "container"
    quota = -1
    if milli_limit and cfs_quota and not exclusive:
        quota = max(MIN_QUOTA_US, milli_limit * period_us // 1000)
    memory = limits.get("memory")
    return Resources(
        cpus_mask=assignment.cpuset_mask if assignment is not None else 0,
        mems_mask=sum(1 << node for node in assignment.mems) if assignment is not None else 0,
        memory_limit_bytes=Quantity.parse(memory).value() or None if memory is not None else None,
        cpu_quota_us=quota,
        cpu_period_us=period_us,
        cpu_shares=min(MAX_SHARES, max(MIN_SHARES, milli_request * 1024 // 1000)),
    )


def build_spec(
    pod: Pod,
    container: Container,
    restart_count: int,
    resources: Resources,
    edits: ContainerEdits,
    lookups: Lookups,
    *,
    log_path: str | None = None,
) -> ContainerSpec:
    """The run. Raises :class:`bayplan.node.environment.ContainerConfigError`.

    CDI variables override the pod's, as in a container runtime. ``$(NAME)`` in command and args is expanded.
    """
    metadata = pod.metadata
    assert metadata is not None
    uid, name = metadata.uid or "", metadata.name or ""
    own = container_environment(pod, container, lookups)
    hostname = (pod.spec.hostname_override or pod.spec.hostname if pod.spec else None) or name
    listed = [f"{key}={value}" for key, value in {"HOSTNAME": hostname, **own}.items()]
    env = dict(_split(text) for text in merge_env(listed, edits.env or ()))
    command = expand_all(container.command or (), own)
    return ContainerSpec(
        id=run_id(uid, container.name, restart_count),
        pod_uid=uid,
        pod_name=name,
        pod_namespace=metadata.namespace or "",
        name=container.name,
        restart_count=restart_count,
        command=command,
        # Without a command the image's own would run, which nobody has: args alone mean nothing here.
        args=expand_all(container.args or (), own) if command else (),
        env=env,
        working_dir=container.working_dir or None,
        resources=resources,
        log_path=log_path,
    )


def _split(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _milli(raw: RawQuantity | None) -> int | None:
    return Quantity.parse(raw).milli_value() if raw is not None else None
