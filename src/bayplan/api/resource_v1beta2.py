"""resource.k8s.io/v1beta2."""

from bayplan.api._generated.resource_v1beta2 import *  # noqa: F403
