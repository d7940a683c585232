"""The columns of Tables per kind: those that users of kubectl know, filled from objects of the storage version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bayplan.apiserver.podcolumns import pod_ready, pod_restarts, pod_status

__all__ = ["COLUMNS", "Column", "age_clock", "human_duration"]

Object = Mapping[str, Any]
Cell = Callable[[Object, datetime], Any]

NAME_TEXT = (
    "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a "
    "client to request the generation of an appropriate name automatically."
)


class Column:
    """One column: its definition for the client and how its cell is made."""

    __slots__ = ("cell", "definition")

    def __init__(
        self, name: str, cell: Cell, type: str = "string", format: str = "", priority: int = 0, text: str = ""
    ) -> None:
        self.cell = cell
        self.definition = {
            "name": name,
            "type": type,
            "format": format,
            "description": text or name,
            "priority": priority,
        }


def age_clock() -> datetime:
    """Now: ages in cells are counted from here."""
    return datetime.now(UTC)


def human_duration(seconds: float) -> str:
    """A duration as kubectl writes it: two units while that matters, one afterwards."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    if total < 0:
        return "0s"
    if total < 120:
        return f"{total}s"
    minutes = total // 60
    if minutes < 10:
        return _two(minutes, "m", total % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    hours = minutes // 60
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    years = days // 365
    return _two(years, "y", days % 365, "d") if years < 8 else f"{years}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def since(time: Any, now: datetime) -> str:
    """The age of a moment, `<unknown>` where there is none."""
    if not isinstance(time, str) or not time:
        return "<unknown>"
    return human_duration((now - datetime.fromisoformat(time)).total_seconds())


def dig(obj: Any, *path: str) -> Any:
    """A nested value, None where the path ends early."""
    for step in path:
        if not isinstance(obj, Mapping):
            return None
        obj = obj.get(step)
    return obj


def _name(obj: Object, now: datetime) -> Any:
    return obj["metadata"]["name"]


def _age(obj: Object, now: datetime) -> Any:
    return since(obj["metadata"].get("creationTimestamp"), now)


def _created(obj: Object, now: datetime) -> Any:
    return obj["metadata"].get("creationTimestamp")


def text(*path: str, empty: str = "") -> Cell:
    """The text at a path, or `empty`."""
    return lambda obj, now: str(dig(obj, *path) or empty)


def moment(*path: str) -> Cell:
    """The age of the time at a path."""
    return lambda obj, now: since(dig(obj, *path), now)


NAME = Column("Name", _name, format="name", text=NAME_TEXT)
AGE = Column("Age", _age, text="CreationTimestamp is the time when the object was created.")
CREATED = Column("Created At", _created, type="date", text="When the object was created.")


# -- nodes ------------------------------------------------------------------------------------------------------


def _node_status(obj: Object, now: datetime) -> str:
    conditions = dig(obj, "status", "conditions") or ()
    ready = next((c for c in conditions if c.get("type") == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if dig(obj, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(obj: Object, now: datetime) -> str:
    labels = obj["metadata"].get("labels") or {}
    roles = {
        key.removeprefix("node-role.kubernetes.io/") for key in labels if key.startswith("node-role.kubernetes.io/")
    }
    roles |= {value for key, value in labels.items() if key == "kubernetes.io/role" and value}
    return ",".join(sorted(roles - {""})) or "<none>"


def _node_address(kind: str) -> Cell:
    def cell(obj: Object, now: datetime) -> str:
        for address in dig(obj, "status", "addresses") or ():
            if address.get("type") == kind:
                return str(address.get("address"))
        return "<none>"

    return cell


def _node_info(field: str) -> Cell:
    return text("status", "nodeInfo", field, empty="<unknown>")


def _kernel(obj: Object, now: datetime) -> str:
    kernel = dig(obj, "status", "nodeInfo", "kernelVersion") or "<unknown>"
    architecture = dig(obj, "status", "nodeInfo", "architecture")
    return f"{kernel} ({architecture})" if architecture else str(kernel)


# -- events -----------------------------------------------------------------------------------------------------


def _event_first(obj: Object, now: datetime) -> str:
    return since(obj.get("firstTimestamp") or obj.get("eventTime"), now)


def _event_last(obj: Object, now: datetime) -> str:
    series = obj.get("series")
    if series:
        return f"{since(series.get('lastObservedTime'), now)} (x{series.get('count')} over {_event_first(obj, now)})"
    last = obj.get("lastTimestamp")
    if (obj.get("count") or 0) > 1:
        return f"{since(last, now)} (x{obj['count']} over {_event_first(obj, now)})"
    return since(last, now) if last else _event_first(obj, now)


def _event_object(obj: Object, now: datetime) -> str:
    involved = obj.get("involvedObject") or {}
    kind = str(involved.get("kind") or "").lower()
    return f"{kind}/{involved['name']}" if involved.get("name") else kind


def _event_source(obj: Object, now: datetime) -> str:
    source = obj.get("source") or {}
    component = source.get("component") or obj.get("reportingComponent") or ""
    host = source.get("host") or obj.get("reportingInstance") or ""
    return ", ".join(part for part in (component, host) if part)


def _event_count(obj: Object, now: datetime) -> int:
    return int(dig(obj, "series", "count") or obj.get("count") or 1)


EVENT_COLUMNS = (
    Column("Last Seen", _event_last),
    Column("Type", text("type")),
    Column("Reason", text("reason")),
    Column("Object", _event_object),
    Column("Subobject", text("involvedObject", "fieldPath"), priority=1),
    Column("Source", _event_source, priority=1),
    Column("Message", lambda obj, now: str(obj.get("message") or "").strip()),
    Column("First Seen", _event_first, priority=1),
    Column("Count", _event_count, priority=1),
    Column("Name", _name, format="name", priority=1, text=NAME_TEXT),
)


# -- devices ----------------------------------------------------------------------------------------------------


def _claim_state(obj: Object, now: datetime) -> str:
    states = []
    if obj["metadata"].get("deletionTimestamp"):
        states.append("deleted")
    status = obj.get("status") or {}
    if not status.get("allocation"):
        if not states:
            states.append("pending")
    else:
        states.append("allocated")
        if status.get("reservedFor"):
            states.append("reserved")
    return ",".join(states)


def _pool_sum(field: str) -> Cell:
    def cell(obj: Object, now: datetime) -> str:
        pools = dig(obj, "status", "pools")
        return str(sum(pool.get(field) or 0 for pool in pools)) if pools is not None else ""

    return cell


def _pool_errors(obj: Object, now: datetime) -> str:
    pools = dig(obj, "status", "pools")
    return str(sum(1 for pool in pools if pool.get("validationError"))) if pools is not None else ""


def _pool_state(obj: Object, now: datetime) -> str:
    for condition in dig(obj, "status", "conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            return str(condition["type"])
    return "Pending"


def _pool_done(obj: Object, now: datetime) -> str:
    for condition in dig(obj, "status", "conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            return since(condition.get("lastTransitionTime"), now)
    return ""


# -- scheduling -------------------------------------------------------------------------------------------------


def _group_policy(obj: Object, now: datetime) -> str:
    policy = dig(obj, "spec", "schedulingPolicy") or {}
    return "Gang" if "gang" in policy else "Basic" if "basic" in policy else "<none>"


def _group_workload(obj: Object, now: datetime) -> str:
    template = dig(obj, "spec", "podGroupTemplateRef") or {}
    return str(dig(template, "workload", "workloadName") or template.get("workloadName") or "<none>")


def _group_status(obj: Object, now: datetime) -> str:
    for condition in dig(obj, "status", "conditions") or ():
        if condition.get("type") in ("PodGroupScheduled", "PodGroupInitiallyScheduled"):
            if condition.get("status") == "True":
                return "Scheduled"
            return str(condition.get("reason") or "Pending")
    return "Pending"


def _subjects(kind: str) -> Cell:
    def cell(obj: Object, now: datetime) -> str:
        names = []
        for subject in obj.get("subjects") or ():
            if subject.get("kind") == kind:
                space = subject.get("namespace")
                names.append(f"{space}/{subject['name']}" if kind == "ServiceAccount" and space else subject["name"])
        return ", ".join(names)

    return cell


def _role(obj: Object, now: datetime) -> str:
    return f"{dig(obj, 'roleRef', 'kind')}/{dig(obj, 'roleRef', 'name')}"


BINDING_COLUMNS = (
    NAME,
    Column("Role", _role),
    AGE,
    Column("Users", _subjects("User"), priority=1),
    Column("Groups", _subjects("Group"), priority=1),
    Column("ServiceAccounts", _subjects("ServiceAccount"), priority=1),
)

TAINT = ("spec", "taint")

COLUMNS: dict[tuple[str, str], Sequence[Column]] = {
    ("", ""): (NAME, AGE),
    ("", "pods"): (
        NAME,
        Column("Ready", lambda obj, now: pod_ready(obj)),
        Column("Status", lambda obj, now: pod_status(obj)),
        Column("Restarts", lambda obj, now: pod_restarts(obj, lambda time: since(time, now))),
        AGE,
        Column("IP", text("status", "podIP", empty="<none>"), priority=1),
        Column("Node", text("spec", "nodeName", empty="<none>"), priority=1),
        Column("Nominated Node", text("status", "nominatedNodeName", empty="<none>"), priority=1),
        Column("Readiness Gates", lambda obj, now: _readiness_gates(obj), priority=1),
    ),
    ("", "nodes"): (
        NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        AGE,
        Column("Version", text("status", "nodeInfo", "kubeletVersion")),
        Column("Internal-IP", _node_address("InternalIP"), priority=1),
        Column("External-IP", _node_address("ExternalIP"), priority=1),
        Column("OS-Image", _node_info("osImage"), priority=1),
        Column("Kernel-Version", _kernel, priority=1),
        Column("Container-Runtime", _node_info("containerRuntimeVersion"), priority=1),
    ),
    ("", "namespaces"): (NAME, Column("Status", text("status", "phase")), AGE),
    ("", "events"): EVENT_COLUMNS,
    ("events.k8s.io", "events"): EVENT_COLUMNS,
    ("", "configmaps"): (
        NAME,
        Column("Data", lambda obj, now: len(obj.get("data") or ()) + len(obj.get("binaryData") or ())),
        AGE,
    ),
    ("", "secrets"): (
        NAME,
        Column("Type", text("type")),
        Column("Data", lambda obj, now: len(obj.get("data") or ())),
        AGE,
    ),
    ("coordination.k8s.io", "leases"): (NAME, Column("Holder", text("spec", "holderIdentity")), AGE),
    ("resource.k8s.io", "resourceclaims"): (NAME, Column("State", _claim_state), AGE),
    ("resource.k8s.io", "resourceslices"): (
        NAME,
        Column("Node", text("spec", "nodeName")),
        Column("Driver", text("spec", "driver")),
        Column("Pool", text("spec", "pool", "name")),
        AGE,
    ),
    ("resource.k8s.io", "devicetaintrules"): (
        NAME,
        Column("Key", text(*TAINT, "key")),
        Column("Value", text(*TAINT, "value")),
        Column("Effect", text(*TAINT, "effect")),
        Column("TimeAdded", moment(*TAINT, "timeAdded")),
        AGE,
    ),
    ("resource.k8s.io", "resourcepoolstatusrequests"): (
        NAME,
        Column("Driver", text("spec", "driver")),
        Column("Total", _pool_sum("totalDevices")),
        Column("Available", _pool_sum("availableDevices")),
        Column("Allocated", _pool_sum("allocatedDevices")),
        Column("Unavailable", _pool_sum("unavailableDevices")),
        Column("Errors", _pool_errors),
        Column("Pools", lambda obj, now: dig(obj, "status", "poolCount") or 0, type="integer"),
        Column("Status", _pool_state),
        Column("Completed", _pool_done),
    ),
    ("scheduling.k8s.io", "podgroups"): (
        NAME,
        Column("Policy", _group_policy),
        Column("Workload", _group_workload),
        Column("Status", _group_status),
        AGE,
    ),
    ("scheduling.k8s.io", "priorityclasses"): (
        NAME,
        Column("Value", lambda obj, now: obj.get("value") or 0, type="integer"),
        Column("Global-Default", lambda obj, now: bool(obj.get("globalDefault")), type="boolean"),
        AGE,
        Column("PreemptionPolicy", text("preemptionPolicy", empty="PreemptLowerPriority")),
    ),
    ("rbac.authorization.k8s.io", "clusterroles"): (NAME, CREATED),
    ("rbac.authorization.k8s.io", "roles"): (NAME, CREATED),
    ("rbac.authorization.k8s.io", "clusterrolebindings"): BINDING_COLUMNS,
    ("rbac.authorization.k8s.io", "rolebindings"): BINDING_COLUMNS,
}


def _readiness_gates(obj: Object) -> str:
    gates = dig(obj, "spec", "readinessGates") or ()
    if not gates:
        return "<none>"
    met = {c.get("type") for c in dig(obj, "status", "conditions") or () if c.get("status") == "True"}
    return f"{sum(1 for gate in gates if gate.get('conditionType') in met)}/{len(gates)}"
