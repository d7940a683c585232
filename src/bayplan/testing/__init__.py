"""PUBLIC: a complete control plane inside a test, in well under a second.

With bayplan installed, pytest offers the fixture ``bayplan_cluster`` (see `bayplan.testing.plugin`)::

    async def test_my_driver(bayplan_cluster):
        await bayplan_cluster.add_nodes("n1", machine="2s4n64c2t256Gi")
        await bayplan_cluster.apply(open("manifests.yaml").read())
        pod = await bayplan_cluster.until_running("my-pod")

Everything is real: API rules, controllers, scheduler, and the resource managers of simulated nodes. Only the store is in
memory and no port is opened, unless `Cluster.serve` is called because kubectl or another client should join in.
"""

from bayplan.testing.cluster import Cluster, ClusterTimeout, cluster

__all__ = ["Cluster", "ClusterTimeout", "cluster"]
