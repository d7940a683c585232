"""The node agent: what a kubelet does for resources. Sockets, checkpoints, cgroups, runtimes, the life of pods.

``lifecycle`` decides (a state machine without I/O), ``pod_runner`` does what it asks for, ``agent`` puts the parts
together for one node. ``dra_manager`` and ``plugins`` speak to device drivers, ``runtime`` runs containers.
"""
