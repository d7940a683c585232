"""What runs containers: the contract, and its implementations.

``contract`` is what the agent knows. ``process`` runs a container's command as local processes; ``none`` records what would
be done and is for simulated nodes on any operating system.
"""
