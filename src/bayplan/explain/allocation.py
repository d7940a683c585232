"""Why a node's devices did not do, in one line: the request that failed, how far its devices came, and who holds them.

    claim default/b, request r: 0 of 1 devices left: 1 in use by claim default/a

From the allocator's record. The last stage that devices survived comes first, since it is what stands in the way.
"""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.api.quantity import Quantity
from bayplan.dra.proof import Shortage
from bayplan.dra.record import Passed, Record, RequestRecord

__all__ = ["allocation_cause"]

_ORDER = (
    "constraint",
    "taint",
    "groups",
    "counter",
    "capacity",
    "picked",
    "in-use",
    "attribute-missing",
    "capacity-missing",
    "binding-conditions",
    "node",
    "selector-error",
    "derived-error",
    "selector",
)
_REASONS = 3


def allocation_cause(record: Record) -> str:
    """The cause of a refusal, or "" where the record holds none."""
    if record.error is not None:
        return record.error.message
    if record.fits:
        return ""
    pools = "; ".join(
        f"pool {p.driver}/{p.pool} is {'incomplete' if p.incomplete else 'invalid'}: {p.why}" for p in record.pools
    )
    if not record.requests or all(r.visible == 0 for r in record.requests):
        return pools or "no driver publishes devices for this node"
    for request in record.requests:
        if request.could_have < request.wanted and "/" not in request.request:
            return _join(_short(request), pools)
    if record.shortage is not None:
        return _join(_shortage(record.shortage), pools)
    for request in record.requests:
        if request.conflicts:
            said = f"claim {request.claim}, request {request.request}: beside what the others take, {_list(request.conflicts)}"
            return _join(said, pools)
    alternatives = [r for r in record.requests if r.could_have < r.wanted]
    if alternatives:
        return _join("; ".join(_short(r) for r in alternatives[:_REASONS]), pools)
    return _join("no combination of the free devices satisfies all requests together", pools)


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _short(request: RequestRecord) -> str:
    head = f"claim {request.claim}, request {request.request}: {request.could_have} of {request.wanted} devices left"
    return f"{head}: {_list(request.passed)}" if request.passed else head


def _list(passed: Iterable[Passed]) -> str:
    """The reasons, the furthest stage first."""
    ordered = sorted(passed, key=lambda p: (_ORDER.index(p.reason.stage) if p.reason.stage in _ORDER else 99, -p.count))
    parts = [f"{p.count} {p.reason.text}" for p in ordered[:_REASONS]]
    rest = sum(p.count for p in ordered[_REASONS:])
    if rest:
        parts.append(f"{rest} for other reasons")
    return ", ".join(parts)


def _shortage(shortage: Shortage) -> str:
    wanted, available = shortage.wanted, shortage.available
    amounts = f"{wanted} wanted, {available} there"
    if shortage.what == "counter":
        amounts = f"{Quantity(wanted)} wanted, {Quantity(available)} left"
    if shortage.held:
        counter = shortage.what == "counter"
        parts = [f"{Quantity(n) if counter else n} held by claim {claim}" for claim, n in shortage.held[:_REASONS]]
        if len(shortage.held) > _REASONS:
            parts.append(f"more by {len(shortage.held) - _REASONS} others")
        amounts += f" (of {Quantity(shortage.exist) if counter else shortage.exist}: {', '.join(parts)})"
    about = f" ({shortage.detail})" if shortage.detail else ""
    return f"{', '.join(shortage.requests)}: {shortage.what}{about}: {amounts}"
