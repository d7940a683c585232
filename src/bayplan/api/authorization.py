"""authorization.k8s.io/v1: may they?"""

from bayplan.api._generated.authorization_v1 import *  # noqa: F403
