"""The Topology Manager: policies, scopes, options, and the hint that each container was given.

Source: the documentation of topology policies; KEP-693 (policies, scopes), KEP-3545 (prefer-closest-numa-nodes), KEP-4622
(max-allowable-numa-nodes).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bayplan.api.config import KubeletConfiguration
from bayplan.machine.topology import Machine
from bayplan.managers.assignment import StartupError, TopologyHint
from bayplan.managers.cpu_options import OptionError, parse_bool
from bayplan.managers.hint_merge import Offer, merge

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
SCOPES = ("container", "pod")
DEFAULT_MAX_NODES = 8
PREFER_CLOSEST = "prefer-closest-numa-nodes"
MAX_NODES = "max-allowable-numa-nodes"


class TopologyManager:
    """Policy and memory of hints of one node. ``policy`` ``none`` never merges."""

    def __init__(self, machine: Machine, config: KubeletConfiguration, quirks: frozenset[str]) -> None:
        self.policy = config.topology_manager_policy
        self.scope = config.topology_manager_scope
        self.node_ids = tuple(node.id for node in machine.numa_nodes) or (0,)
        self.full = sum(1 << node for node in self.node_ids)
        self.distances: dict[int, dict[int, int]] | None = None
        self.hints: dict[str, dict[str, TopologyHint]] = {}
        self.crash: str | None = None
        if self.policy != "none":
            self._apply_options(machine, dict(config.topology_manager_policy_options or {}), quirks)

    def _apply_options(self, machine: Machine, options: dict[str, str], quirks: frozenset[str]) -> None:
        limit = DEFAULT_MAX_NODES
        closest = False
        for name, value in sorted(options.items()):
            if name == PREFER_CLOSEST:
                try:
                    closest = parse_bool(name, value)
                except OptionError as error:
                    raise StartupError("topologyManager", str(error), f'set {name} to "true" or "false"') from None
            elif name == MAX_NODES:
                limit = _parse_limit(name, value)
            else:
                raise StartupError("topologyManager", f'unknown Topology Manager Policy option: "{name}"')
        if closest:
            self.distances = {node.id: node.distances for node in machine.numa_nodes}
            if not self.distances or not all(self.distances.values()):
                raise StartupError(
                    "topologyManager", "cannot discover NUMA topology: error getting NUMA distances from cadvisor"
                )
            if "sparse-distances-crash" in quirks and max(self.node_ids) >= len(self.node_ids):
                highest, count = max(self.node_ids), len(self.node_ids)
                self.crash = f"runtime error: index out of range [{highest}] with length {count}"
        if len(self.node_ids) > limit:
            raise StartupError(
                "topologyManager",
                f"unsupported on machines with more than {limit} NUMA Nodes",
                f"set topologyManagerPolicyOptions {MAX_NODES} to at least {len(self.node_ids)}",
            )

    def copy(self) -> TopologyManager:
        """An independent copy."""
        twin = TopologyManager.__new__(TopologyManager)
        twin.__dict__.update(self.__dict__)
        twin.hints = {uid: dict(own) for uid, own in self.hints.items()}
        return twin

    def merge(self, offers: Sequence[Offer]) -> tuple[TopologyHint, bool]:
        """The merged hint and whether the policy admits it. Raises SearchBudget."""
        single = self.policy == "single-numa-node"
        hint = merge(offers, self.full, distances=None if single else self.distances, single_node=single)
        if single and hint.mask == self.full:
            hint = TopologyHint(None, hint.preferred)
        return hint, self.policy == "best-effort" or hint.preferred

    def remember(self, uid: str, container: str, hint: TopologyHint) -> None:
        """Keeps the hint for the allocation (and for a later start of the container)."""
        self.hints.setdefault(uid, {})[container] = hint

    def affinity(self, uid: str, container: str) -> TopologyHint:
        """The container's hint; "any node, not preferred" when there is none (policy ``none``)."""
        return self.hints.get(uid, {}).get(container) or _NO_HINT

    def forget(self, uid: str, container: str | None = None) -> None:
        """A container has stopped, or the pod is gone."""
        if container is None:
            self.hints.pop(uid, None)
        else:
            self.hints.get(uid, {}).pop(container, None)


_NO_HINT = TopologyHint(None, False)


def _parse_limit(name: str, value: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", value):
        raise StartupError(
            "topologyManager",
            f'unable to convert policy option to integer "{name}": strconv.Atoi: parsing "{value}": invalid syntax',
        )
    limit = int(value)
    if limit < DEFAULT_MAX_NODES:
        raise StartupError(
            "topologyManager",
            f'the minimum value of "{name}" should not be less than {DEFAULT_MAX_NODES}',
            f"set {name} to {DEFAULT_MAX_NODES} or more",
        )
    return limit
