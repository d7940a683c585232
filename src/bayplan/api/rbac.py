"""rbac.authorization.k8s.io/v1: roles and bindings."""

from bayplan.api._generated.rbac_v1 import *  # noqa: F403
