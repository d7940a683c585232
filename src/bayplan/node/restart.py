"""Whether and when an ended container runs again.

The delay doubles from ``initial`` to ``longest`` seconds and counts from the end of the last run; the first restart is
immediate. A container that ran longer than twice ``longest`` starts over. These are the kubelet's rules (10 s to 300 s;
1 s to 60 s with the gate ReduceDefaultCrashLoopBackOffDecay; ``crashLoopBackOff.maxContainerRestartPeriod`` lowers the
upper end).
"""

from __future__ import annotations

from dataclasses import dataclass

from bayplan.api.core import Container, Pod

ALWAYS = "Always"
ON_FAILURE = "OnFailure"


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """Delays in seconds."""

    initial: float = 10.0
    longest: float = 300.0


@dataclass(slots=True)
class Backoff:
    """The delay of one container."""

    policy: BackoffPolicy
    delay: float = 0.0
    updated_at: float = 0.0

    def until(self, finished_at: float) -> float:
        """The earliest time of the next start, given the end of the last run."""
        return finished_at + self.delay

    def started(self, now: float) -> None:
        """A restart happens now: the next delay doubles."""
        if self.delay and now - self.updated_at > 2 * self.policy.longest:
            self.delay = 0.0
        first = min(self.policy.initial, self.policy.longest)
        self.delay = min(self.delay * 2, self.policy.longest) if self.delay else first
        self.updated_at = now

    def refresh(self, finished_at: float) -> None:
        """A run has ended: a long one wipes the slate."""
        if self.delay and finished_at - self.updated_at > 2 * self.policy.longest:
            self.delay = 0.0


def is_sidecar(container: Container) -> bool:
    """For an init container: whether it runs beside the app containers."""
    return container.restart_policy == ALWAYS


def restarts(pod: Pod, container: Container, exit_code: int, *, init: bool) -> bool:
    """Whether a run that ended with ``exit_code`` is followed by another one (sidecars: always)."""
    for rule in container.restart_policy_rules or ():
        codes = rule.exit_codes
        if codes is None or not rule.action.startswith("Restart"):
            continue
        listed = exit_code in (codes.values or ())
        if listed == (codes.operator == "In"):
            return True
    policy = container.restart_policy or (pod.spec.restart_policy if pod.spec else None) or ALWAYS
    if init and policy == ALWAYS and container.restart_policy != ALWAYS:
        policy = ON_FAILURE
    return policy == ALWAYS or (policy == ON_FAILURE and exit_code != 0)
