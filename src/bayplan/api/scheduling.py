"""scheduling.k8s.io: PodGroup and Workload (v1beta1), PriorityClass (v1)."""

from bayplan.api._generated.scheduling_v1 import *  # noqa: F403
from bayplan.api._generated.scheduling_v1beta1 import *  # noqa: F403
