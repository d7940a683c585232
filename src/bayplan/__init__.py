"""bayplan: which CPUs, memory, NUMA nodes and devices each Kubernetes container gets."""

__version__ = "0.1.0"
