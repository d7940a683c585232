"""resource.k8s.io/v1: claims, templates, classes, slices, device taint rules."""

from bayplan.api._generated.resource_v1 import *  # noqa: F403
