"""Numbers of priority: the classes that Kubernetes brings, and how a class resolves to a value and a policy."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.errors import Forbidden

Object: TypeAlias = dict[str, Any]

SYSTEM_CLASSES: Final = {"system-node-critical": 2000001000, "system-cluster-critical": 2000000000}
HIGHEST_USER_PRIORITY: Final = 1000000000
PREEMPT_LOWER: Final = "PreemptLowerPriority"
PREEMPTION_POLICIES: Final = (PREEMPT_LOWER, "Never")


class Priority(NamedTuple):
    """What a priority class stands for; ``name`` is "" where there is no class at all."""

    name: str
    value: int
    policy: str


def resolve(name: str, context: Context) -> Priority:
    """The class with a name, or the global default for ""; a class that does not exist is refused."""
    if name in SYSTEM_CLASSES:
        return Priority(name, SYSTEM_CLASSES[name], PREEMPT_LOWER)
    found = context.priority_class(name or None)
    if found is None:
        if name:
            raise Forbidden(f"no PriorityClass with name {name} was found")
        return Priority("", 0, PREEMPT_LOWER)
    known = (found.get("metadata") or {}).get("name") or name
    return Priority(known, found.get("value") or 0, found.get("preemptionPolicy") or PREEMPT_LOWER)


def set_priority(spec: Object, context: Context, what: str) -> Priority:
    """Fill in ``priorityClassName`` and ``priority``; a number that does not come from the class is refused."""
    priority = resolve(spec.get("priorityClassName") or "", context)
    given = spec.get("priority")
    if given is not None and given != priority.value:
        raise Forbidden(
            f"the integer value of priority ({given}) must not be provided in {what} spec; "
            f"priority admission controller computed {priority.value} from the given PriorityClass name"
        )
    if priority.name:
        spec["priorityClassName"] = priority.name
    spec["priority"] = priority.value
    return priority
