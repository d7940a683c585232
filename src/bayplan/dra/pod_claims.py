"""A pod's claims, by every way there is of naming one.

A claim reaches a pod by name, through a template (the generated name stands in ``status.resourceClaimStatuses``),
through its PodGroup (the pod's entry equals one of the group's in all three names; then the group, not the pod, is
reserved), or as the claim made for extended resources. Whoever asks "which claims does this pod use" asks here, so that
no way is forgotten.

Source: document section 2.1 (claims, workload claims, extended resources); KEP-4381, KEP-5004, KEP-5729.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bayplan.api.core import Container, Pod, PodResourceClaim
from bayplan.api.scheduling import PodGroup

Source = Literal["name", "template", "extended"]


@dataclass(frozen=True, slots=True)
class PodClaim:
    """One claim of a pod."""

    entry: str
    """The name in ``spec.resourceClaims``; "" for the extended-resource claim."""
    claim: str | None
    """The ResourceClaim's name; None while the generated claim is not known, or when none is needed."""
    source: Source
    for_group: bool = False
    """True: reserve it for the PodGroup, and its generated claim belongs to the group."""
    pending: bool = False
    """True: a claim has to be generated and its name is not in the status yet."""
    template: str | None = None
    """The template's name, for ``source == "template"``."""

    @property
    def generated(self) -> bool:
        """The claim must be owned by the pod (or its group), else it belongs to somebody else of the same name."""
        return self.source != "name"


def pod_claims(pod: Pod, pod_group: PodGroup | None = None, *, workload_claims: bool = True) -> list[PodClaim]:
    """All claims of the pod, in the order of its spec, the extended-resource claim last.

    ``pod_group``: the group named by ``spec.schedulingGroup``, if it is known. ``workload_claims``: the gate
    DRAWorkloadResourceClaims; off, no claim is the group's.
    """
    group = pod_group if workload_claims else None
    claims = [_claim(pod, entry, group) for entry in (pod.spec.resource_claims if pod.spec else None) or ()]
    extended = extended_resource_claim(pod)
    if extended is not None:
        claims.append(PodClaim("", extended, "extended"))
    return claims


def claim_names(pod: Pod) -> list[str]:
    """The names of all claims the pod uses that are known by now, without repetition."""
    return list(dict.fromkeys(c.claim for c in pod_claims(pod) if c.claim))


def extended_resource_claim(pod: Pod) -> str | None:
    """The name of the claim that was made for the pod's extended resources, if there is one."""
    status = pod.status.extended_resource_claim_status if pod.status is not None else None
    return status.resource_claim_name or None if status is not None else None


def matches_pod_group(entry: PodResourceClaim, pod_group: PodGroup | None) -> bool:
    """Whether the pod's entry is one of the group's: all three names are equal."""
    entries = (pod_group.spec.resource_claims if pod_group is not None and pod_group.spec is not None else None) or ()
    return any(
        e.name == entry.name
        and e.resource_claim_name == entry.resource_claim_name
        and e.resource_claim_template_name == entry.resource_claim_template_name
        for e in entries
    )


def containers_of(pod: Pod, claim: str) -> list[str]:
    """The containers that refer to the claim of this name, init containers first; also through extended resources."""
    entries = {c.entry for c in pod_claims(pod) if c.claim == claim and c.source != "extended"}
    names = [
        c.name
        for c in containers(pod)
        if c.resources is not None and any(r.name in entries for r in c.resources.claims or ())
    ]
    status = pod.status.extended_resource_claim_status if pod.status is not None else None
    if status is not None and status.resource_claim_name == claim:
        mapped = {m.container_name for m in status.request_mappings or ()}
        names += [c.name for c in containers(pod) if c.name in mapped and c.name not in names]
    return names


def containers(pod: Pod) -> Iterator[Container]:
    """Init containers, then containers, in the order of the spec."""
    if pod.spec is not None:
        yield from pod.spec.init_containers or ()
        yield from pod.spec.containers or ()


def _claim(pod: Pod, entry: PodResourceClaim, group: PodGroup | None) -> PodClaim:
    for_group = matches_pod_group(entry, group)
    if entry.resource_claim_name is not None:
        return PodClaim(entry.name, entry.resource_claim_name, "name", for_group)
    template = entry.resource_claim_template_name
    for status in (pod.status.resource_claim_statuses if pod.status is not None else None) or ():
        if status.name == entry.name:
            return PodClaim(entry.name, status.resource_claim_name or None, "template", for_group, template=template)
    return PodClaim(entry.name, None, "template", for_group, pending=True, template=template)
