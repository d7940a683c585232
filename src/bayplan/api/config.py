"""KubeletConfiguration (kubelet.config.k8s.io/v1beta1) of Kubernetes 1.37: every field, with its default.

Decoding is strict, as the kubelet's is: an unknown field, a wrong type or a wrong kind is a :class:`ConfigError` that names
the field. Durations stay text (``10s``). Source: the configuration API's reference documentation; KEP-2570 for
``memoryReservationPolicy``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from bayplan.api.base import RawQuantity
from bayplan.api.core import Taint

API_VERSION = "kubelet.config.k8s.io/v1beta1"
DEFAULT_EVICTION_HARD: Mapping[str, str] = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}
"""What ``evictionHard`` is when it is not given (Linux)."""

_SPELLING = {
    "tls_cert_file": "tlsCertFile",
    "server_tls_bootstrap": "serverTLSBootstrap",
    "static_pod_url": "staticPodURL",
    "static_pod_url_header": "staticPodURLHeader",
    "registry_pull_qps": "registryPullQPS",
    "event_record_qps": "eventRecordQPS",
    "cluster_dns": "clusterDNS",
    "image_minimum_gc_age": "imageMinimumGCAge",
    "image_maximum_gc_age": "imageMaximumGCAge",
    "image_gc_high_threshold_percent": "imageGCHighThresholdPercent",
    "image_gc_low_threshold_percent": "imageGCLowThresholdPercent",
    "cgroups_per_qos": "cgroupsPerQOS",
    "single_process_oom_kill": "singleProcessOOMKill",
    "pod_cidr": "podCIDR",
    "cpu_cfs_quota": "cpuCFSQuota",
    "cpu_cfs_quota_period": "cpuCFSQuotaPeriod",
    "kube_api_qps": "kubeAPIQPS",
    "kube_api_burst": "kubeAPIBurst",
    "make_iptables_util_chains": "makeIPTablesUtilChains",
    "reserved_system_cpus": "reservedSystemCPUs",
    "provider_id": "providerID",
    "cache_ttl": "cacheTTL",
    "cache_authorized_ttl": "cacheAuthorizedTTL",
    "cache_unauthorized_ttl": "cacheUnauthorizedTTL",
    "client_ca_file": "clientCAFile",
}


def _wire(name: str) -> str:
    """The JSON name of an attribute."""
    first, *rest = name.split("_")
    return _SPELLING.get(name) or first + "".join(part.capitalize() for part in rest)


class ConfigError(ValueError):
    """The configuration cannot be read; the message names the field and what would be right."""


class _Struct(msgspec.Struct, kw_only=True, rename=_wire, omit_defaults=True, forbid_unknown_fields=True):
    """Strict on the wire, None or the default where absent."""


class KubeletX509Authentication(_Struct):
    """Client certificates."""

    client_ca_file: str = ""


class KubeletWebhookAuthentication(_Struct):
    """Bearer tokens, checked by the API server."""

    enabled: bool = True
    cache_ttl: str = "2m"


class KubeletAnonymousAuthentication(_Struct):
    """Anonymous requests."""

    enabled: bool = False


class KubeletAuthentication(_Struct):
    """Who may talk to the kubelet's server."""

    x509: KubeletX509Authentication = msgspec.field(default_factory=KubeletX509Authentication)
    webhook: KubeletWebhookAuthentication = msgspec.field(default_factory=KubeletWebhookAuthentication)
    anonymous: KubeletAnonymousAuthentication = msgspec.field(default_factory=KubeletAnonymousAuthentication)


class KubeletWebhookAuthorization(_Struct):
    """How long answers of the API server are kept."""

    cache_authorized_ttl: str = "5m"
    cache_unauthorized_ttl: str = "30s"


class KubeletAuthorization(_Struct):
    """What they may do: ``Webhook`` or ``AlwaysAllow``."""

    mode: str = "Webhook"
    webhook: KubeletWebhookAuthorization = msgspec.field(default_factory=KubeletWebhookAuthorization)


class MemoryReservation(_Struct):
    """Memory of one NUMA node kept from containers; ``limits``: ``memory`` and ``hugepages-<size>``."""

    numa_node: int = 0
    limits: dict[str, RawQuantity] = msgspec.field(default_factory=dict)


class MemorySwapConfiguration(_Struct):
    """``""`` or ``NoSwap``, or ``LimitedSwap``."""

    swap_behavior: str = ""


class ShutdownGracePeriodByPodPriority(_Struct):
    """Grace for pods from this priority up."""

    priority: int = 0
    shutdown_grace_period_seconds: int = 0


class CrashLoopBackOffConfig(_Struct):
    """Cap of the restart back-off."""

    max_container_restart_period: str | None = None


class UserNamespaces(_Struct):
    """Ids of a pod's user namespace, a multiple of 65536."""

    ids_per_pod: int | None = None


class TracingConfiguration(_Struct):
    """OpenTelemetry."""

    endpoint: str | None = None
    sampling_rate_per_million: int | None = None


class VModuleItem(_Struct):
    """Verbosity of files that match."""

    file_pattern: str = ""
    verbosity: int = 0


class OutputRoutingOptions(_Struct):
    """Where log text goes."""

    split_stream: bool = False
    info_buffer_size: RawQuantity = "0"


class FormatOptions(_Struct):
    """Options of the log formats."""

    text: OutputRoutingOptions = msgspec.field(default_factory=OutputRoutingOptions)
    json: OutputRoutingOptions = msgspec.field(default_factory=OutputRoutingOptions)


class LoggingConfiguration(_Struct):
    """Logging of the component."""

    format: str = "text"
    flush_frequency: str | int = "5s"
    verbosity: int = 0
    vmodule: list[VModuleItem] | None = None
    options: FormatOptions = msgspec.field(default_factory=FormatOptions)


class KubeletConfiguration(_Struct):
    """The kubelet's configuration file. Attributes are the API's fields in snake case; see the API reference."""

    api_version: str = API_VERSION
    kind: str = "KubeletConfiguration"
    enable_server: bool = True
    static_pod_path: str = ""
    pod_logs_dir: str = "/var/log/pods"
    sync_frequency: str = "1m"
    file_check_frequency: str = "20s"
    http_check_frequency: str = "20s"
    static_pod_url: str = ""
    static_pod_url_header: dict[str, list[str]] | None = None
    address: str = "0.0.0.0"
    port: int = 10250
    read_only_port: int = 0
    tls_cert_file: str = ""
    tls_private_key_file: str = ""
    tls_cipher_suites: list[str] | None = None
    tls_min_version: str = ""
    tls_curve_preferences: list[str | int] | None = None
    rotate_certificates: bool = False
    server_tls_bootstrap: bool = False
    authentication: KubeletAuthentication = msgspec.field(default_factory=KubeletAuthentication)
    authorization: KubeletAuthorization = msgspec.field(default_factory=KubeletAuthorization)
    registry_pull_qps: int = 5
    registry_burst: int = 10
    image_pull_credentials_verification_policy: str = "NeverVerifyPreloadedImages"
    preloaded_images_verification_allowlist: list[str] | None = None
    event_record_qps: int = 50
    event_burst: int = 100
    enable_debugging_handlers: bool = True
    enable_contention_profiling: bool = False
    healthz_port: int = 10248
    healthz_bind_address: str = "127.0.0.1"
    oom_score_adj: int = -999
    cluster_domain: str = ""
    cluster_dns: list[str] | None = None
    streaming_connection_idle_timeout: str = "4h"
    node_status_update_frequency: str = "10s"
    node_status_report_frequency: str = "5m"
    node_lease_duration_seconds: int = 40
    image_minimum_gc_age: str = "2m"
    image_maximum_gc_age: str = "0s"
    image_gc_high_threshold_percent: int = 85
    image_gc_low_threshold_percent: int = 80
    volume_stats_agg_period: str = "1m"
    kubelet_cgroups: str = ""
    system_cgroups: str = ""
    cgroup_root: str = ""
    cgroups_per_qos: bool = True
    cgroup_driver: str = "cgroupfs"
    cpu_manager_policy: str = "none"
    single_process_oom_kill: bool | None = None
    cpu_manager_policy_options: dict[str, str] | None = None
    cpu_manager_reconcile_period: str = "10s"
    memory_manager_policy: str = "None"
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: dict[str, str] | None = None
    qos_reserved: dict[str, str] | None = None
    runtime_request_timeout: str = "2m"
    hairpin_mode: str = "promiscuous-bridge"
    max_pods: int = 110
    pod_cidr: str = ""
    pod_pids_limit: int = -1
    resolv_conf: str = msgspec.field(default="/etc/resolv.conf")
    run_once: bool = False
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period: str = "100ms"
    node_status_max_images: int = 50
    max_open_files: int = 1_000_000
    content_type: str = "application/vnd.kubernetes.protobuf"
    kube_api_qps: int = 50
    kube_api_burst: int = 100
    serialize_image_pulls: bool = True
    max_parallel_image_pulls: int | None = None
    eviction_hard: dict[str, str] | None = None
    eviction_soft: dict[str, str] | None = None
    eviction_soft_grace_period: dict[str, str] | None = None
    eviction_pressure_transition_period: str = "5m"
    eviction_max_pod_grace_period: int = 0
    eviction_minimum_reclaim: dict[str, str] | None = None
    merge_default_eviction_settings: bool = False
    pods_per_core: int = 0
    enable_controller_attach_detach: bool = True
    protect_kernel_defaults: bool = False
    make_iptables_util_chains: bool = True
    iptables_masquerade_bit: int = 14
    iptables_drop_bit: int = 15
    feature_gates: dict[str, bool] | None = None
    fail_swap_on: bool = True
    memory_swap: MemorySwapConfiguration = msgspec.field(default_factory=MemorySwapConfiguration)
    container_log_max_size: str = "10Mi"
    container_log_max_files: int = 5
    container_log_max_workers: int = 1
    container_log_monitor_interval: str = "10s"
    config_map_and_secret_change_detection_strategy: str = "Watch"
    system_reserved: dict[str, RawQuantity] | None = None
    kube_reserved: dict[str, RawQuantity] | None = None
    reserved_system_cpus: str = ""
    show_hidden_metrics_for_version: str = ""
    system_reserved_cgroup: str = ""
    kube_reserved_cgroup: str = ""
    enforce_node_allocatable: list[str] | None = None
    allowed_unsafe_sysctls: list[str] | None = None
    volume_plugin_dir: str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"
    provider_id: str = ""
    kernel_memcg_notification: bool = False
    logging: LoggingConfiguration = msgspec.field(default_factory=LoggingConfiguration)
    enable_system_log_handler: bool = True
    enable_system_log_query: bool = False
    shutdown_grace_period: str = "0s"
    shutdown_grace_period_critical_pods: str = "0s"
    shutdown_grace_period_by_pod_priority: list[ShutdownGracePeriodByPodPriority] | None = None
    crash_loop_back_off: CrashLoopBackOffConfig = msgspec.field(default_factory=CrashLoopBackOffConfig)
    reserved_memory: list[MemoryReservation] | None = None
    enable_profiling_handler: bool = True
    enable_debug_flags_handler: bool = True
    seccomp_default: bool = False
    memory_throttling_factor: float = 0.9
    memory_reservation_policy: str = "None"
    register_with_taints: list[Taint] | None = None
    register_node: bool = True
    tracing: TracingConfiguration | None = None
    local_storage_capacity_isolation: bool = True
    container_runtime_endpoint: str = "unix:///run/containerd/containerd.sock"
    image_service_endpoint: str = ""
    fail_cgroup_v1: bool = True
    user_namespaces: UserNamespaces | None = None

    def eviction_thresholds(self) -> dict[str, str]:
        """``evictionHard`` as it acts: the defaults when it is absent, merged with them where that is asked for."""
        if self.eviction_hard is None:
            return dict(DEFAULT_EVICTION_HARD)
        if self.merge_default_eviction_settings:
            return {**DEFAULT_EVICTION_HARD, **self.eviction_hard}
        return dict(self.eviction_hard)


_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`(?: - at `([^`]*)`)?")
_WRONG = re.compile(r"(.*) - at `([^`]*)`")


def decode_kubelet_configuration(document: Mapping[str, Any]) -> KubeletConfiguration:
    """The configuration of a document as YAML or JSON reads (null = absent). Raises :class:`ConfigError`."""
    if not isinstance(document, Mapping):
        raise ConfigError("a KubeletConfiguration is a mapping of fields to values")
    data = {key: value for key, value in document.items() if value is not None}
    kind, version = data.get("kind", "KubeletConfiguration"), data.get("apiVersion", API_VERSION)
    if kind != "KubeletConfiguration":
        raise ConfigError(f'kind: expected "KubeletConfiguration", got "{kind}"')
    if version != API_VERSION:
        raise ConfigError(f'apiVersion: expected "{API_VERSION}", got "{version}"')
    try:
        return msgspec.convert(data, KubeletConfiguration, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error))) from None


def _explain(text: str) -> str:
    """The decoder's words as a field path and, for a name that does not exist, the nearest one that does."""
    if match := _UNKNOWN.match(text):
        where = (match[2] or "").removeprefix("$").removeprefix(".")
        path = f"{where}.{match[1]}" if where else match[1]
        near = difflib.get_close_matches(match[1], _FIELDS, 1) if not where else []
        return f'strict decoding error: unknown field "{path}"' + (f' (did you mean "{near[0]}"?)' if near else "")
    if match := _WRONG.match(text):
        return f"{match[2].removeprefix('$.')}: {match[1]}"
    return text


_FIELDS = tuple(field.encode_name for field in msgspec.structs.fields(KubeletConfiguration))
