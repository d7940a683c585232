"""bayplan: which CPUs, memory, NUMA nodes and devices each Kubernetes container gets."""

