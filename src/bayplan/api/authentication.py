"""authentication.k8s.io/v1: who is asking."""

from bayplan.api._generated.authentication_v1 import *  # noqa: F403
