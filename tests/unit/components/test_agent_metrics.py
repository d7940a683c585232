"""The agent's metrics as Prometheus reads them; names and labels are the kubelet's."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bayplan.components.agent_metrics import registry_for
from bayplan.testing import Cluster

POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - {name: own, image: x, resources: {limits: {cpu: "2", memory: 1Gi}}}
  - {name: other, image: x, resources: {limits: {cpu: "500m", memory: 1Gi}}}
"""


async def test_what_the_managers_did_can_be_read(bayplan_cluster: Cluster) -> None:
    kubelet = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0", "topologyManagerPolicy": "best-effort"}
    await bayplan_cluster.add_nodes("n1", machine="1s1n8c2t32Gi", kubelet=kubelet)
    await bayplan_cluster.apply(POD)
    await bayplan_cluster.until_running("p")
    text = generate_latest(registry_for(bayplan_cluster.agents["n1"].fleet)).decode()
    values = {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for f in text_string_to_metric_families(text)
        for s in f.samples
    }
    assert values["kubelet_cpu_manager_pinning_requests_total", ()] == 1
    assert values["kubelet_cpu_manager_exclusive_cpu_allocation_count", ()] == 2
    assert values["kubelet_cpu_manager_shared_pool_size_millicores", ()] == 6000
    assert values["kubelet_topology_manager_admission_requests_total", ()] == 1
    assert values["kubelet_topology_manager_admission_duration_ms_count", ()] == 1
    labels = (("assignment_type", "node_exclusive"), ("resource_name", "cpu"))
    assert values["kubelet_resource_manager_container_assignments_total", labels] == 1
