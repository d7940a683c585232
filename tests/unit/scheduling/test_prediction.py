"""The node's own managers are asked before a pod is bound."""

from __future__ import annotations

from typing import Any

from bayplan.api.config import decode_kubelet_configuration
from bayplan.api.gates import FeatureGates
from bayplan.machine.describe import describe
from bayplan.managers.manager_state import ANNOTATION, encode_shape, encode_state
from bayplan.managers.node_managers import NodeManagers
from bayplan.scheduling.cycle import Decider, Placement
from bayplan.scheduling.prediction import Prediction
from bayplan.scheduling.status import Unschedulable

from .build import World, node, pod

GATES = FeatureGates.defaults()
CONFIG = decode_kubelet_configuration(
    {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cpuManagerPolicy": "static",
        "topologyManagerPolicy": "single-numa-node",
        "kubeReserved": {"cpu": "1"},
    }
)
MACHINE = describe("2s2n16c1t32Gi")
SHAPE = encode_shape(MACHINE, CONFIG, GATES)
ROOM = {"cpu": "15", "memory": "30Gi", "pods": "50"}


def annotated(managers: NodeManagers | None = None, uids: tuple[str, ...] = (), name: str = "n1") -> Any:
    files = managers.state_files() if managers is not None else {}
    found = node(name, allocatable=ROOM)
    assert found.metadata is not None
    found.metadata.annotations = {ANNOTATION: encode_state(SHAPE, files, uids, 1)}
    return found


def exclusive(name: str, cpus: int) -> Any:
    amounts = {"cpu": str(cpus), "memory": "1Gi"}
    return pod(name, requests=amounts, limits=amounts)


def world(*nodes: Any) -> World:
    found = World(*nodes)
    found.decider = Decider(found.state, found.dra, seed=1, checks=[Prediction()])
    return found


def test_a_pod_that_would_span_numa_nodes_is_not_bound() -> None:
    one = world(annotated())
    assert isinstance(one.decide(exclusive("fits", 8)), Placement)
    refusal = one.decide(exclusive("spans", 10))
    assert isinstance(refusal, Unschedulable)
    assert dict(refusal.counts) == {"node(s) would refuse the pod with TopologyAffinityError": 1}
    assert refusal.plugins == {"NUMAAwareScheduling"}


def test_pods_that_were_decided_since_count() -> None:
    """8 and 7 CPUs are free on the two NUMA nodes: three times 4 leave 3 in one place, although 3 pods of 5 were allocatable."""
    one = world(annotated())
    one.place(exclusive("a", 4))
    one.place(exclusive("b", 4))
    one.place(exclusive("c", 4))
    assert isinstance(one.decide(exclusive("d", 4)), Unschedulable)
    assert isinstance(one.decide(exclusive("e", 3)), Placement)


def test_pods_that_the_node_knows_are_taken_over() -> None:
    managers = NodeManagers.start(MACHINE, CONFIG, GATES)
    held = exclusive("held", 6)
    assert managers.admit(held).admitted
    held.spec.node_name = "n1"
    known, unknown = world(annotated(managers, ("uid-held",))).put(held), world(annotated()).put(held)
    for one in (known, unknown):  # in the second, the annotation is older than the pod
        assert isinstance(one.decide(exclusive("seven", 7)), Placement)
        one.place(exclusive("six", 6))
        assert isinstance(one.decide(exclusive("three", 3)), Unschedulable)


def test_what_is_not_known_is_not_predicted() -> None:
    bare = world(node("n1", allocatable=ROOM))
    assert isinstance(bare.decide(exclusive("p", 10)), Placement)
    odd = node("n1", allocatable=ROOM)
    assert odd.metadata is not None
    odd.metadata.annotations = {ANNOTATION: "99.whatever"}
    assert isinstance(world(odd).decide(exclusive("p", 10)), Placement)


def test_another_node_is_taken_instead() -> None:
    one = world(annotated(name="n1"), node("n2", allocatable=ROOM))
    assert one.place(exclusive("p", 10)).node == "n2"
