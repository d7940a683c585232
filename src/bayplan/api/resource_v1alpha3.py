"""resource.k8s.io/v1alpha3: pool status requests, device taint rules."""

from bayplan.api._generated.resource_v1alpha3 import *  # noqa: F403
