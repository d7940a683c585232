"""coordination.k8s.io/v1: leases."""

from bayplan.api._generated.coordination_v1 import *  # noqa: F403
