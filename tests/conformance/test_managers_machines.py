"""The managers start on every recorded machine, and their invariants hold while it fills up."""

from __future__ import annotations

import pytest

from bayplan.api.cpuset import bits
from bayplan.machine.kubelet_view import kubelet_view
from bayplan.managers.assignment import StartupError
from bayplan.node.sysfs import load_machine
from tests.property.test_managers_node import check
from tests.shared import shared, shared_files
from tests.unit.managers.building import node, simple

NAMES = [path.name.removesuffix(".tar.xz") for path in shared_files("machines", "*.tar.xz")] or ["none"]
CHOICES = [
    ("none", {}),
    ("best-effort", {"distribute-cpus-across-numa": "true"}),
    ("restricted", {"full-pcpus-only": "true", "prefer-align-cpus-by-uncorecache": "true"}),
    ("single-numa-node", {"strict-cpu-reservation": "true"}),
]


@pytest.mark.parametrize("name", NAMES)
def test_recorded_machines(name: str) -> None:
    machine = kubelet_view(load_machine(shared(f"machines/{name}.tar.xz")))
    roomy = [own.id for own in machine.numa_nodes if own.memory_bytes > 2 << 30]
    memory = {
        "memoryManagerPolicy": "Static",
        "systemReserved": {"memory": "1Gi"},
        "reservedMemory": [{"numaNode": roomy[0] if roomy else 0, "limits": {"memory": "1Gi"}}],
    }
    for policy, options in CHOICES:
        managers = node(
            machine,
            quirks=frozenset(),
            reservedSystemCPUs=str(next(bits(machine.online_mask))),
            cpuManagerPolicyOptions=options,
            topologyManagerPolicy=policy,
            topologyManagerPolicyOptions={} if policy == "none" else {"max-allowable-numa-nodes": "512"},
            **(memory if roomy else {}),
        )
        total = machine.online_mask.bit_count()
        for number, count in enumerate((1, 2, 3, max(1, total // 2), 4, max(1, total // 3))):
            answer = managers.admit(simple(f"p{number}", count, "64Mi"))
            if answer.admitted:
                assert answer.containers[0].cpus_mask.bit_count() == count
            if roomy:
                check(managers)
        if roomy:
            managers.remove("p1")
            check(managers)


def test_a_machine_without_numa_is_one_node() -> None:
    machine = load_machine(shared("machines/armv7-2c-nonuma.tar.xz"))
    assert not machine.numa_nodes
    managers = node(machine, reservedSystemCPUs="0", topologyManagerPolicy="single-numa-node")
    assert managers.admit(simple("p", 1)).admitted
    with pytest.raises(StartupError, match="is not a subset of online-cpus"):
        node(machine, reservedSystemCPUs="7")
