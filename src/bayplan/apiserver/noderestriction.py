"""What the agent of a node may write: its own Node, Lease, slices, and the pods bound to it.

Reading is the authorizer's business (`authorization`); this looks at the objects. A node's agent cannot make itself
another node, taint or label itself into workloads it should not get, or touch other nodes' pods.
"""

from __future__ import annotations

from typing import Any

from bayplan.apiserver.authorization import node_of, pod_references
from bayplan.apiserver.call import Call
from bayplan.apiserver.errors import forbidden

__all__ = ["restrict_node"]

Object = dict[str, Any]

OWN_LABELS = ("kubelet.kubernetes.io/", "node.kubernetes.io/")
FREE_LABELS = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)


def restrict_node(call: Call, operation: str, new: Object | None, old: Object | None) -> None:
    """Refuse a write by a node's agent that does not concern this node; nothing for other users."""
    if not call.user.name.startswith("system:node:"):
        return
    node = node_of(call.user)
    if not node:
        return
    check = _CHECKS.get((call.resource.kind.group, call.resource.kind.plural))
    why = check(node, call, operation, new, old) if check is not None else ""
    if why:
        kind = call.resource.kind
        name = call.target.name or str(((new or old or {}).get("metadata") or {}).get("name", ""))
        raise forbidden(kind, name, f'{kind.group_resource} "{name}" is forbidden: {why}')


def _node(node: str, call: Call, operation: str, new: Object | None, old: Object | None) -> str:
    name = call.target.name or ((new or {}).get("metadata") or {}).get("name", "")
    if name != node:
        return f"node '{node}' is not allowed to modify node '{name}'"
    if new is None:
        return ""
    before = ((old or {}).get("metadata") or {}).get("labels") or {}
    after = (new.get("metadata") or {}).get("labels") or {}
    changed = sorted(k for k in {**before, **after} if before.get(k) != after.get(k) and not _free(k))
    if changed:
        return f"is not allowed to modify labels: {', '.join(changed)}"
    if old is not None and ((old.get("spec") or {}).get("taints") or []) != (
        (new.get("spec") or {}).get("taints") or []
    ):
        return f"node '{node}' is not allowed to modify taints"
    return ""


def _free(label: str) -> bool:
    if label in FREE_LABELS:
        return True
    domain = label.partition("/")[0] if "/" in label else ""
    if any(domain == own[:-1] or domain.endswith("." + own[:-1]) for own in OWN_LABELS):
        return True
    return not (domain == "kubernetes.io" or domain.endswith((".kubernetes.io", ".k8s.io")) or domain == "k8s.io")


def _pod(node: str, call: Call, operation: str, new: Object | None, old: Object | None) -> str:
    if operation == "create" and new is not None:
        if (new.get("spec") or {}).get("nodeName") != node:
            return f"node '{node}' can only create pods with spec.nodeName set to itself"
        if "kubernetes.io/config.mirror" not in ((new.get("metadata") or {}).get("annotations") or {}):
            return f"pod does not have \"kubernetes.io/config.mirror\" annotation, node '{node}' can only create mirror pods"
        return _mirror(node, new)
    bound = ((old or {}).get("spec") or {}).get("nodeName", "")
    if bound != node:
        return f"node '{node}' can only {operation} pods with spec.nodeName set to itself"
    if operation == "status" and new is not None and old is not None:
        return _pod_status(node, new, old)
    return ""


def _mirror(node: str, pod: Object) -> str:
    """A pod that a node makes must not refer to anything: the authorizer would let the node read what its pods refer to."""
    spec = pod.get("spec") or {}
    referred = {resource for resource, _ in pod_references(pod)}
    if spec.get("resourceClaims"):
        referred.add("resourceclaims")
    if spec.get("imagePullSecrets"):
        referred.add("secrets")
    if any("persistentVolumeClaim" in volume for volume in spec.get("volumes") or ()):
        referred.add("persistentvolumeclaims")
    if "serviceaccounts" in referred:
        return f"node '{node}' can not create pods that reference a service account"
    for resource in sorted(referred):
        return f"node '{node}' can not create pods that reference {resource}"
    return ""


def _pod_status(node: str, new: Object, old: Object) -> str:
    """The status is the node's, but not what says which claims are the pod's, nor the labels by which others select it."""
    before, after = old.get("metadata") or {}, new.get("metadata") or {}
    if (before.get("labels") or {}) != (after.get("labels") or {}):
        return f"node '{node}' cannot update labels through pod status"
    before, after = old.get("status") or {}, new.get("status") or {}
    if (before.get("resourceClaimStatuses") or []) != (after.get("resourceClaimStatuses") or []):
        return f"node '{node}' cannot update resource claim statuses"
    if (before.get("extendedResourceClaimStatus") or {}) != (after.get("extendedResourceClaimStatus") or {}):
        return f"node '{node}' cannot update the status of the claim for extended resources"
    return ""


def _slice(node: str, call: Call, operation: str, new: Object | None, old: Object | None) -> str:
    for obj in (new, old):
        if obj is not None and (obj.get("spec") or {}).get("nodeName") != node:
            return f"node '{node}' can only {operation} resource slices with spec.nodeName set to itself"
    return ""


def _lease(node: str, call: Call, operation: str, new: Object | None, old: Object | None) -> str:
    name = call.target.name or ((new or {}).get("metadata") or {}).get("name", "")
    if call.target.namespace != "kube-node-lease":
        return 'can only access leases in the "kube-node-lease" system namespace'
    if name != node:
        return f"can only access node lease with the same name as the requesting node, '{node}'"
    return ""


_CHECKS: dict[tuple[str, str], Any] = {
    ("", "nodes"): _node,
    ("", "pods"): _pod,
    ("resource.k8s.io", "resourceslices"): _slice,
    ("coordination.k8s.io", "leases"): _lease,
}
