"""Which CPUs, memory, NUMA nodes and plugin devices a container gets: the kubelet's resource managers as pure code.

Begin at :class:`bayplan.managers.node_managers.NodeManagers`.
"""
