"""Claims made ready for the search: requests as steps, with selectors compiled and everything looked up.

What can be said of a claim without looking at a node is said here, once per distinct claim content: which checks fail (they
are remembered in the order in which the real allocator makes them, because a request for all devices of an earlier request
can fail first, and only on some nodes), which selectors form each request's chain, which constraints cover it.

Source: allocator notes section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bayplan.api.base import RawQuantity
from bayplan.api.quantity import Quantity, QuantityError
from bayplan.api.resource import (
    DeviceClaim,
    DeviceClass,
    DeviceDerivedAttribute,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
)
from bayplan.dra.constraints import Constraint
from bayplan.dra.errors import (
    BAD_AMOUNT,
    BAD_CONSTRAINT,
    BAD_MODE,
    BAD_SELECTOR,
    CLASS_MISSING,
    FEATURE_DISABLED,
    NO_CLASS_NAME,
    AllocationError,
)
from bayplan.dra.features import Features
from bayplan.dra.selectors import Chain, Selector, compile_selector

MAX_DEVICES: Final = 32
"""Devices per claim: the API's limit for allocation results."""

EXACT: Final = "ExactCount"
ALL: Final = "All"


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One request, or one alternative of a request, as the search handles it."""

    name: str
    """As results name it: ``request`` or ``request/subrequest``."""
    request: str
    subrequest: str | None
    device_class: DeviceClass
    chain: Chain
    chain_key: object
    all_devices: bool
    count: int
    admin: bool
    tolerations: list[DeviceToleration] | None
    tolerations_key: object
    capacity: dict[str, RawQuantity] | None
    capacity_key: object
    derived: dict[str, Selector]
    """Qualified attribute name -> its expression."""
    constraints: tuple[int, ...]
    """Places of the claim's constraints that cover this step."""

    @property
    def label(self) -> str:
        """``request a`` or ``subrequest b``, as messages name it."""
        return f"request {self.request}" if self.subrequest is None else f"request {self.subrequest}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that fails whatever the node; the message still lacks the claim's name."""

    error_class: str
    message: str

    def of(self, claim: str) -> AllocationError:
        return AllocationError(self.error_class, f"claim {claim}{self.message}")


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A request: one step, or several alternatives in order of preference."""

    name: str
    steps: tuple[Step, ...]
    prioritized: bool
    """It is a ``firstAvailable`` list."""
    failure: Failure | None = None
    """The check of this request that fails; its steps are those before it."""


@dataclass(eq=False, slots=True)
class ClaimPlan:
    """A claim's devices section, compiled. ``failure`` is a check on the claim as a whole, made after its requests."""

    spec: DeviceClaim
    requests: tuple[Request, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    failure: Failure | None = None
    classes: dict[str, DeviceClass | None] = field(default_factory=dict)
    """The classes looked up; the plan is stale when one of them is another object by now."""
    has_config: bool = False
    """Claim or classes carry configuration for drivers."""

    def current(self, classes: Mapping[str, DeviceClass]) -> bool:
        """Whether all classes are still those that were compiled in."""
        return all(classes.get(name) is known for name, known in self.classes.items())


class _Stop(Exception):
    def __init__(self, failure: Failure) -> None:
        self.failure = failure


def compile_claim(spec: DeviceClaim, classes: Mapping[str, DeviceClass], features: Features) -> ClaimPlan:
    """The claim, ready for any node. Never raises: what is wrong with it is part of the plan."""
    plan = ClaimPlan(spec)
    constraints: list[Constraint] = []
    for place, c in enumerate(spec.constraints or ()):
        distinct = c.match_attribute is None
        attribute = c.distinct_attribute if distinct else c.match_attribute
        if attribute is None or (distinct and not features.profile.knows_distinct_attribute):
            plan.failure = plan.failure or Failure(
                BAD_CONSTRAINT, f", constraint #{place}: empty constraint (unsupported constraint type?)"
            )
            attribute = ""
        constraints.append(Constraint(attribute, distinct, tuple(c.requests or ())))
    plan.constraints = tuple(constraints)
    plan.requests = tuple(_request(r, plan, classes, features) for r in spec.requests or ())
    of_classes = (c.spec.config for c in plan.classes.values() if c is not None and c.spec is not None)
    plan.has_config = bool(spec.config) or any(of_classes)
    return plan


def _request(
    request: DeviceRequest, plan: ClaimPlan, classes: Mapping[str, DeviceClass], features: Features
) -> Request:
    prioritized = bool(request.first_available)
    if prioritized and not features.prioritized_list:
        why = f", request {request.name}: has subrequests, but the DRAPrioritizedList feature is disabled"
        return Request(request.name, (), True, Failure(FEATURE_DISABLED, why))
    steps: list[Step] = []
    try:
        for sub in request.first_available or ():
            steps.append(_step(request.name, sub, plan, classes, features))
        if not prioritized:
            steps.append(_step(request.name, request.exactly or ExactDeviceRequest(), plan, classes, features))
    except _Stop as stop:
        return Request(request.name, tuple(steps), prioritized, stop.failure)
    return Request(request.name, tuple(steps), prioritized)


def _step(
    name: str,
    request: ExactDeviceRequest | DeviceSubRequest,
    plan: ClaimPlan,
    classes: Mapping[str, DeviceClass],
    features: Features,
) -> Step:
    sub = request.name if isinstance(request, DeviceSubRequest) else None
    where = f", subrequest {sub}" if sub is not None else f", request {name}"
    asked = request.capacity.requests if request.capacity is not None else None
    if asked and not features.consumable_capacity:
        if features.profile.name != "stable":
            raise _Stop(
                Failure(
                    FEATURE_DISABLED,
                    f"{where}: has capacity requests, but the DRAConsumableCapacity feature is disabled",
                )
            )
        asked = None
    selectors = _selectors(request.selectors, where)
    admin = request.admin_access if isinstance(request, ExactDeviceRequest) else None
    if admin is not None and not features.admin_access:
        raise _Stop(Failure(FEATURE_DISABLED, f"{where}: admin access is requested, but the feature is disabled"))
    device_class = _class(request.device_class_name, plan, classes, where)
    if request.allocation_mode not in (EXACT, ALL):
        raise _Stop(Failure(BAD_MODE, f"{where}: unsupported count mode {request.allocation_mode or ''}"))
    _check_amounts(request, asked or {}, where)
    class_name = request.device_class_name
    of_class = device_class.spec.selectors if device_class.spec is not None else None
    chain = _chain(_selectors(of_class, f"{where}: class {class_name}"), f"class {class_name}: ") + _chain(
        selectors, ""
    )
    return Step(
        name=name if sub is None else f"{name}/{sub}",
        request=name,
        subrequest=sub,
        device_class=device_class,
        chain=chain,
        chain_key=tuple(s.program or s.expression for s in chain),
        all_devices=request.allocation_mode == ALL,
        count=request.count or 0,
        admin=bool(admin),
        tolerations=request.tolerations,
        tolerations_key=tuple((t.key, t.operator, t.value, t.effect) for t in request.tolerations or ()),
        capacity=asked or None,
        capacity_key=(features.fractional_capacity_range, *sorted((k, str(v)) for k, v in (asked or {}).items())),
        derived=_derived(request.derived_attributes) if features.derived_attributes else {},
        constraints=tuple(i for i, c in enumerate(plan.constraints) if c.covers(name, sub)),
    )


def _check_amounts(
    request: ExactDeviceRequest | DeviceSubRequest, asked: Mapping[str, RawQuantity], where: str
) -> None:
    """Booking less than nothing would give others more than there is."""
    if request.allocation_mode == EXACT and (request.count or 0) <= 0:
        raise _Stop(Failure(BAD_AMOUNT, f"{where}: count: {request.count or 0}: must be greater than zero"))
    for name, raw in sorted(asked.items()):
        try:
            wrong = "must be greater than or equal to zero" if Quantity.parse(raw).nano < 0 else ""
        except QuantityError as error:
            wrong = str(error)
        if wrong:
            raise _Stop(Failure(BAD_AMOUNT, f"{where}: capacity.requests[{name}]: {raw!r}: {wrong}"))


def _class(name: str, plan: ClaimPlan, classes: Mapping[str, DeviceClass], where: str) -> DeviceClass:
    if not name:
        raise _Stop(Failure(NO_CLASS_NAME, f"{where}: missing device class name (unsupported request type?)"))
    found = plan.classes[name] = classes.get(name)
    if found is None:
        missing = f'could not retrieve device class {name}: deviceclass.resource.k8s.io "{name}" not found'
        raise _Stop(Failure(CLASS_MISSING, f"{where}: {missing}"))
    return found


def _selectors(selectors: Sequence[DeviceSelector] | None, where: str) -> list[str]:
    expressions = []
    for place, selector in enumerate(selectors or ()):
        if selector.cel is None:
            raise _Stop(
                Failure(BAD_SELECTOR, f"{where}, selector #{place}: CEL expression empty (unsupported selector type?)")
            )
        expressions.append(selector.cel.expression)
    return expressions


def _chain(expressions: list[str], prefix: str) -> Chain:
    return tuple(compile_selector(e, f"{prefix}selector #{i}") for i, e in enumerate(expressions))


def _derived(attributes: Sequence[DeviceDerivedAttribute] | None) -> dict[str, Selector]:
    return {
        a.name: compile_selector(a.expression, f"derived attribute {a.name}", derived=True) for a in attributes or ()
    }


def content_key(spec: DeviceClaim) -> bytes:
    """Equal for claims that ask for the same."""
    return msgspec.msgpack.encode(spec)
