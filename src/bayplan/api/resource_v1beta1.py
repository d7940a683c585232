"""resource.k8s.io/v1beta1."""

from bayplan.api._generated.resource_v1beta1 import *  # noqa: F403
