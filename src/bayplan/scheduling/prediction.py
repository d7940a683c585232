"""NUMA-aware scheduling: would the node admit the pod? Its own resource managers are asked, on what it says of itself.

A bayplan agent publishes the shape of its machine, its policies and its current assignments (`manager_state`). The
prediction starts the very managers that the node runs, lets them take over the pods the node knows, admits the pods that
were decided since, and then asks about the new one. So no pod is bound that the Topology Manager or CPU Manager of the
node would refuse.

What is not known is not predicted: no annotation, another version of it, managers that would not start all mean "yes".
Devices of device plugins are published and predicted too; only a plugin's own preference among equal ones is not. Gate
NUMAAwareScheduling.

Cost: starting managers once per published state, one clone and one admission per question; nodes of equal state and
pods of equal kind share the answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec

from bayplan.api.config import KubeletConfiguration
from bayplan.api.gates import FeatureGates
from bayplan.machine.topology import Machine
from bayplan.managers.assignment import StartupError
from bayplan.managers.manager_state import ANNOTATION, ManagerState, decode_state
from bayplan.managers.node_managers import NodeManagers
from bayplan.scheduling.cluster import NodeInfo, PodInfo
from bayplan.scheduling.pod_needs import NodeClaims
from bayplan.scheduling.status import UNSCHEDULABLE, Rejection

__all__ = ["PLUGIN", "Prediction"]

PLUGIN: Final = "NUMAAwareScheduling"
_REMEMBERED: Final = 4096
_ENCODE = msgspec.json.Encoder(order="deterministic").encode


@dataclass(slots=True)
class _Known:
    """What was worked out for one node: its published text, the managers with its pods, and then with assumed ones."""

    text: str
    state: ManagerState | None
    managers: NodeManagers | None = None
    taken_over: tuple[str, ...] = ()
    current: NodeManagers | None = None
    extra: tuple[str, ...] = ()


class Prediction:
    """A `NodeCheck`: remembers per node, so one object serves all decisions."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Known] = {}
        self._answers: OrderedDict[Hashable, Rejection | None] = OrderedDict()

    def __call__(self, info: PodInfo, node: NodeInfo, claims: NodeClaims) -> Rejection | None:
        """The refusal that the node would give, or None."""
        metadata = node.node.metadata if node.node is not None else None
        text = (metadata.annotations or {}).get(ANNOTATION) if metadata is not None else None
        if not text:
            return None
        known = self._nodes.get(node.name)
        if known is None or known.text != text:
            known = self._nodes[node.name] = _Known(text, decode_state(text))
        if known.state is None:
            return None
        managers = self._current(known, known.state, node)
        if managers is None:
            return None
        key = (known.text, known.extra, _kind(info))
        if key in self._answers:
            self._answers.move_to_end(key)
            return self._answers[key]
        answer = self._ask(managers, info)
        self._answers[key] = answer
        if len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)
        return answer

    def _current(self, known: _Known, state: ManagerState, node: NodeInfo) -> NodeManagers | None:
        """The managers with everything that is on the node now, published or assumed."""
        published = set(state.pods)
        here = tuple(uid for uid in state.pods if uid in node.pods)
        if known.managers is None or known.taken_over != here:
            known.managers = _start(state, [node.pods[uid] for uid in here])
            known.taken_over, known.current = here, None
        if known.managers is None:
            return None
        extra = tuple(uid for uid in node.pods if uid not in published)
        if known.current is None or known.extra != extra:
            current = known.managers.clone() if extra else known.managers
            for uid in extra:
                current.admit(node.pods[uid].pod)
            known.current, known.extra = current, extra
        return known.current

    @staticmethod
    def _ask(managers: NodeManagers, info: PodInfo) -> Rejection | None:
        admission = managers.clone().admit(info.pod)
        if admission.admitted:
            return None
        text = f"node(s) would refuse the pod with {admission.reason}"
        return Rejection(PLUGIN, (text,), UNSCHEDULABLE)


@lru_cache(maxsize=64)
def _shape(shape: str) -> tuple[Machine, KubeletConfiguration, FeatureGates]:
    """What a shape text says; many nodes share few shapes, and it stays when assignments change."""
    state = ManagerState(shape, {}, (), 0)
    return state.machine(), state.config(), state.gates()


def _start(state: ManagerState, pods: list[PodInfo]) -> NodeManagers | None:
    try:
        machine, config, gates = _shape(state.shape)
        managers = NodeManagers.start(machine, config, gates, state_files=state.state_files, devices=state.devices)
        managers.readmit([p.pod for p in pods])
    except (StartupError, KeyError, ValueError):
        return None
    return managers


def _kind(info: PodInfo) -> bytes:
    """Pods of one kind get one answer: all that the managers read of them."""
    known = info.memo.get("managers-kind")
    if known is None:
        spec: Any = info.pod.spec
        containers = [
            (c.name, c.resources, c.restart_policy) for c in (*(spec.init_containers or ()), *(spec.containers or ()))
        ]
        known = info.memo["managers-kind"] = _ENCODE((containers, len(spec.init_containers or ()), spec.resources))
    kind: bytes = known
    return kind
