"""KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1): what bayplan's scheduler honours of it, strictly read.

Unknown fields are errors that name the field. Fields that Kubernetes has and bayplan gives no meaning to (client
connection tuning, plugin sets, extenders) are accepted where they are harmless and refused where they would change
decisions silently. Durations are text (``60s``, ``1m30s``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

__all__ = ["LeaderElection", "Profile", "SchedulerConfig", "SchedulerConfigError", "duration", "parse_scheduler_config"]

API_VERSION: Final = "kubescheduler.config.k8s.io/v1"
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_IGNORED: Final = frozenset(
    {"parallelism", "clientConnection", "enableProfiling", "enableContentionProfiling", "delayCacheUntilActive"}
)


class SchedulerConfigError(ValueError):
    """The configuration cannot be used; one line that names the field."""


class LeaderElection(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds."""

    leader_elect: bool = True
    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    resource_name: str = "kube-scheduler"
    resource_namespace: str = "kube-system"


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One scheduler by name. Times in seconds; `percentage_of_nodes_to_score` 0 means adaptive."""

    scheduler_name: str = "default-scheduler"
    percentage_of_nodes_to_score: int = 0
    binding_timeout: float = 600.0
    filter_timeout: float = 10.0
    scoring_strategy: str = "LeastAllocated"


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    profiles: tuple[Profile, ...] = (Profile(),)
    leader_election: LeaderElection = LeaderElection()
    pod_initial_backoff: float = 1.0
    pod_max_backoff: float = 10.0
    kubeconfig: str = ""


def duration(raw: Any, field: str) -> float:
    """Seconds of a Go duration; :class:`SchedulerConfigError` names the field."""
    if isinstance(raw, int) and raw == 0:
        return 0.0
    text = raw if isinstance(raw, str) else ""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise SchedulerConfigError(f"{field}: {raw!r} is no duration; write for example 60s or 1m30s")
    return float(sum(float(number) * _UNITS[unit] for number, unit in parts))


def parse_scheduler_config(document: Any) -> SchedulerConfig:
    """The configuration from a decoded YAML or JSON document."""
    top = _mapping(document, "KubeSchedulerConfiguration")
    if top.get("apiVersion") != API_VERSION or top.get("kind") != "KubeSchedulerConfiguration":
        raise SchedulerConfigError(
            f"apiVersion and kind must be {API_VERSION} and KubeSchedulerConfiguration, "
            f"not {top.get('apiVersion')!r} and {top.get('kind')!r}"
        )
    known = {
        "apiVersion",
        "kind",
        "profiles",
        "leaderElection",
        "percentageOfNodesToScore",
        "podInitialBackoffSeconds",
        "podMaxBackoffSeconds",
        "extenders",
    }
    _only(top, known | _IGNORED, "")
    if top.get("extenders"):
        raise SchedulerConfigError("extenders: not supported; remove them, they would not be asked")
    percentage = _percentage(top.get("percentageOfNodesToScore"), "percentageOfNodesToScore")
    raw_profiles = top.get("profiles") or [{}]
    if not isinstance(raw_profiles, list):
        raise SchedulerConfigError("profiles: must be a list")
    profiles = tuple(_profile(p, f"profiles[{i}]", percentage) for i, p in enumerate(raw_profiles))
    names = [p.scheduler_name for p in profiles]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise SchedulerConfigError(f"profiles[{index}].schedulerName: {name!r} is used twice")
    initial = _seconds(top.get("podInitialBackoffSeconds", 1), "podInitialBackoffSeconds")
    longest = _seconds(top.get("podMaxBackoffSeconds", 10), "podMaxBackoffSeconds")
    if longest < initial:
        raise SchedulerConfigError("podMaxBackoffSeconds: must not be smaller than podInitialBackoffSeconds")
    connection = top.get("clientConnection") or {}
    return SchedulerConfig(
        profiles=profiles,
        leader_election=_leader_election(top.get("leaderElection")),
        pod_initial_backoff=initial,
        pod_max_backoff=longest,
        kubeconfig=str(_mapping(connection, "clientConnection").get("kubeconfig") or ""),
    )


def _mapping(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise SchedulerConfigError(f"{field}: must be a mapping, not {type(value).__name__}")
    return value


def _only(value: Mapping[str, Any], known: set[str] | frozenset[str], where: str) -> None:
    for name in value:
        if name not in known:
            raise SchedulerConfigError(f"{where}{'.' if where else ''}{name}: unknown field; known are {sorted(known)}")


def _percentage(raw: Any, field: str) -> int:
    if raw is None:
        return 0
    if not isinstance(raw, int) or isinstance(raw, bool) or not 0 <= raw <= 100:
        raise SchedulerConfigError(f"{field}: {raw!r} is not in the valid range 0-100")
    return raw


def _seconds(raw: Any, field: str) -> float:
    if not isinstance(raw, int | float) or isinstance(raw, bool) or raw <= 0:
        raise SchedulerConfigError(f"{field}: must be a number of seconds greater than 0, not {raw!r}")
    return float(raw)


def _leader_election(raw: Any) -> LeaderElection:
    if raw is None:
        return LeaderElection()
    given = _mapping(raw, "leaderElection")
    known = {
        "leaderElect": "leader_elect",
        "leaseDuration": "lease_duration",
        "renewDeadline": "renew_deadline",
        "retryPeriod": "retry_period",
        "resourceName": "resource_name",
        "resourceNamespace": "resource_namespace",
        "resourceLock": "",
    }
    _only(given, set(known), "leaderElection")
    if given.get("resourceLock", "leases") != "leases":
        raise SchedulerConfigError("leaderElection.resourceLock: only 'leases' is supported")
    values: dict[str, Any] = {}
    for name, value in given.items():
        attribute = known[name]
        if attribute in ("lease_duration", "renew_deadline", "retry_period"):
            values[attribute] = duration(value, f"leaderElection.{name}")
        elif attribute:
            values[attribute] = value
    election = LeaderElection(**values)
    if not election.lease_duration > election.renew_deadline > election.retry_period > 0:
        raise SchedulerConfigError(
            "leaderElection: leaseDuration must be greater than renewDeadline, that than retryPeriod"
        )
    return election


def _profile(raw: Any, where: str, percentage: int) -> Profile:
    given = _mapping(raw, where)
    _only(given, {"schedulerName", "percentageOfNodesToScore", "plugins", "pluginConfig"}, where)
    if given.get("plugins"):
        raise SchedulerConfigError(f"{where}.plugins: the set of plugins is fixed; remove it")
    own = given.get("percentageOfNodesToScore")
    values: dict[str, Any] = {
        "scheduler_name": str(given.get("schedulerName") or "default-scheduler"),
        "percentage_of_nodes_to_score": percentage
        if own is None
        else _percentage(own, f"{where}.percentageOfNodesToScore"),
    }
    for index, plugin in enumerate(given.get("pluginConfig") or ()):
        entry = _mapping(plugin, f"{where}.pluginConfig[{index}]")
        name = entry.get("name")
        arguments = _mapping(entry.get("args") or {}, f"{where}.pluginConfig[{index}].args")
        place = f"{where}.pluginConfig[{index}].args"
        if name == "DynamicResources":
            _only(arguments, {"apiVersion", "kind", "bindingTimeout", "filterTimeout"}, place)
            if "bindingTimeout" in arguments:
                values["binding_timeout"] = duration(arguments["bindingTimeout"], f"{place}.bindingTimeout")
                if values["binding_timeout"] < 1:
                    raise SchedulerConfigError(f"{place}.bindingTimeout: must be at least 1s")
            if "filterTimeout" in arguments:
                values["filter_timeout"] = duration(arguments["filterTimeout"], f"{place}.filterTimeout")
        elif name == "NodeResourcesFit":
            strategy = _mapping(arguments.get("scoringStrategy") or {}, f"{place}.scoringStrategy")
            kind = strategy.get("type", "LeastAllocated")
            if kind not in ("LeastAllocated", "MostAllocated"):
                raise SchedulerConfigError(
                    f"{place}.scoringStrategy.type: {kind!r} is not supported; use LeastAllocated or MostAllocated"
                )
            values["scoring_strategy"] = kind
        else:
            raise SchedulerConfigError(
                f"{where}.pluginConfig[{index}].name: no plugin {name!r} takes arguments; "
                "use DynamicResources or NodeResourcesFit"
            )
    return Profile(**values)
