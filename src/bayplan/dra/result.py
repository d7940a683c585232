"""The allocation result: what the search chose, in the form the claim's status stores.

Results stand in the order of the picks. Configuration comes from the classes first (walking the requests, each class
once), then from the claim, as far as it concerns what was chosen; a configuration for every request names none. The node
selector says where the devices can be reached: this node only, where the selectors of all their slices match, or
everywhere.

Source: allocator notes section 11; DeviceAllocationResult in the API reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from bayplan.api.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from bayplan.api.resource import (
    AllocationResult,
    Device,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceSliceSpec,
)
from bayplan.dra import capacity
from bayplan.dra.devices import DeviceInfo
from bayplan.dra.errors import NODE_SELECTOR, AllocationError
from bayplan.dra.features import Features
from bayplan.dra.node_selection import NAME_FIELD, ParsedSelector
from bayplan.dra.requests import ClaimPlan, Step

Chosen = tuple[Step, DeviceInfo]


def allocation_result(
    plan: ClaimPlan, key: str, chosen: Sequence[Chosen], node: str, features: Features
) -> AllocationResult:
    """The claim's allocation; ``key`` identifies the claim, for share IDs. AllocationError for an unusable node selector."""
    results = [_device_result(step, info, key, features) for step, info in chosen]
    config = _config(plan, chosen) if plan.has_config else None
    return AllocationResult(
        devices=DeviceAllocationResult(results=results or None, config=config),
        node_selector=_node_selector(chosen, node, features),
    )


def _device_result(step: Step, info: DeviceInfo, key: str, features: Features) -> DeviceRequestAllocationResult:
    slice_ = info.slice
    result = DeviceRequestAllocationResult(driver=slice_.driver, pool=slice_.pool, device=info.name, request=step.name)
    if step.admin:
        result.admin_access = True
    if step.tolerations:
        result.tolerations = step.tolerations
    if info.multi and features.consumable_capacity:
        result.share_id = share_id(key, result)
        amounts = capacity.amounts(info, step.capacity, step.capacity_key, features.fractional_capacity_range)
        if amounts is not None and amounts.text:
            result.consumed_capacity = dict(amounts.text)
    if features.device_binding_and_status:
        device = info.device
        if device.binding_conditions:
            result.binding_conditions = device.binding_conditions
        if device.binding_failure_conditions:
            result.binding_failure_conditions = device.binding_failure_conditions
    if features.optional_node_operations and slice_.spec.skip_node_operations:
        result.skip_node_operations = slice_.spec.skip_node_operations
    return result


def share_id(key: str, result: DeviceRequestAllocationResult) -> str:
    """A UUID that no other share of the device has: made from claim, request and device, so that nothing is random."""
    text = "\0".join((key, result.request, result.driver, result.pool, result.device))
    digest = bytearray(blake2b(text.encode(), digest_size=16).digest())
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _config(plan: ClaimPlan, chosen: Sequence[Chosen]) -> list[DeviceAllocationConfiguration] | None:
    """``chosen`` names the alternative of each request that has devices; requests without devices count by their name."""
    used: dict[str, Step] = {}
    for step, _ in chosen:
        used.setdefault(step.request, step)
    steps = [used.get(r.name) or r.steps[0] for r in plan.requests if r.name in used or not r.prioritized]
    by_class: dict[str, list[Step]] = {}
    for step in steps:
        name = step.device_class.metadata.name if step.device_class.metadata is not None else None
        by_class.setdefault(name or "", []).append(step)
    config = []
    for members in by_class.values():
        spec = members[0].device_class.spec
        for entry in (spec.config if spec is not None else None) or ():
            names = [step.name for step in members]
            config.append(DeviceAllocationConfiguration(source="FromClass", requests=names, opaque=entry.opaque))
    known = {r.name for r in plan.requests} | {s.name for s in steps}
    for entry_ in plan.spec.config or ():
        if not entry_.requests or any(name in known for name in entry_.requests):
            config.append(
                DeviceAllocationConfiguration(
                    source="FromClaim", requests=entry_.requests or None, opaque=entry_.opaque
                )
            )
    for item in config:
        listed = set(item.requests or ())
        if all(step.request in listed or step.name in listed for step in steps):
            item.requests = None
    return config or None


def _node_selector(chosen: Sequence[Chosen], node: str, features: Features) -> NodeSelector | None:
    # By far most devices stand in a slice of one node.
    if chosen and chosen[0][1].slice.node_name:
        return this_node(node)
    expressions: list[NodeSelectorRequirement] = []
    fields: list[NodeSelectorRequirement] = []
    for _, info in chosen:
        spec = info.slice.spec
        where: ResourceSliceSpec | Device = info.device if info.slice.per_device else spec
        if where.node_name or (info.device.binds_to_node and features.device_binding_and_status):
            return this_node(node)
        if where.all_nodes or where.node_selector is None:
            continue
        terms = where.node_selector.node_selector_terms or []
        if len(terms) != 1:
            raise AllocationError(
                NODE_SELECTOR, f"device {info.id}: node selector with {len(terms)} terms, exactly one is supported"
            )
        _collect(expressions, terms[0].match_expressions)
        _collect(fields, terms[0].match_fields)
    if not expressions and not fields:
        return None
    term = NodeSelectorTerm(match_expressions=expressions or None, match_fields=fields or None)
    return NodeSelector(node_selector_terms=[term])


def reachable_from(allocation: AllocationResult, node: Node) -> bool:
    """Whether the node can use the allocated devices; one without node selector is usable everywhere."""
    if allocation.node_selector is None:
        return True
    labels = (node.metadata.labels if node.metadata is not None else None) or {}
    name = (node.metadata.name if node.metadata is not None else None) or ""
    return ParsedSelector(allocation.node_selector).matches(labels, name)


def this_node(node: str) -> NodeSelector:
    """A selector that only the named node matches."""
    name = NodeSelectorRequirement(key=NAME_FIELD, operator="In", values=[node])
    return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[name])])


def _collect(have: list[NodeSelectorRequirement], more: Sequence[NodeSelectorRequirement] | None) -> None:
    for new in more or ():
        values = set(new.values or ())
        if not any(h.key == new.key and h.operator == new.operator and set(h.values or ()) == values for h in have):
            have.append(new)
