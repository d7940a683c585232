"""What admission is told about the world: gates, clock, the user and a few look-ups. All of it is an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bayplan.api.gates import FeatureGates


class Decision(NamedTuple):
    """Whether a user may do something, and what the authorizer says when not."""

    allowed: bool
    reason: str = ""


def _no_labels() -> Mapping[str, str]:
    return {}


def _no_priority_class(name: str | None) -> Mapping[str, Any] | None:
    return None


def _no_pod(namespace: str, name: str) -> Mapping[str, Any] | None:
    return None


def _exists(name: str) -> bool:
    return True


def _allow(verb: str, group: str, resource: str, namespace: str, name: str) -> Decision:
    return Decision(True)


@dataclass(slots=True)
class Context:
    """One request's surroundings.

    ``now`` is the time of the request, RFC 3339 in whole seconds and UTC. ``namespace_labels`` gives the labels of the
    request's namespace. ``priority_class(name)`` gives the PriorityClass object with that name, ``priority_class(None)`` the
    global default one; None where there is none. ``service_account_exists(name)`` tells whether the namespace has one.
    ``pod(namespace, name)`` gives a stored pod. ``authorize(verb, group, resource, namespace, name)`` asks the authorizer
    about the request's user ("" = all). ``raw_body`` is the request as JSON text, if it came as such. ``user_node`` is the
    node that the user's credentials are bound to, if any. ``warn`` collects warnings.
    """

    gates: FeatureGates
    now: str
    user: str = ""
    user_node: str = ""
    namespace: str = ""
    namespace_labels: Callable[[], Mapping[str, str]] = _no_labels
    priority_class: Callable[[str | None], Mapping[str, Any] | None] = _no_priority_class
    service_account_exists: Callable[[str], bool] = _exists
    pod: Callable[[str, str], Mapping[str, Any] | None] = _no_pod
    authorize: Callable[[str, str, str, str, str], Decision] = _allow
    raw_body: bytes | None = None
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def warn_dropped(self, field: str, gate: str) -> None:
        """Said of the fields that are new in 1.37: without them an object may not mean what its author thinks."""
        self.warn(f"{field}: dropped, because the feature gate {gate} is disabled")
