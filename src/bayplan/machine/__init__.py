"""What a node is: CPUs, cores, caches, NUMA nodes, memory, huge pages and PCI devices.

Everything here is pure. A reader elsewhere turns ``/sys`` (live, a directory, an archive) into
``{path: text}``; this package interprets that text (``sysfs``), builds machines from short descriptions
(``describe``), derives what the kubelet would see (``kubelet_view``) and draws (``render``).
"""
