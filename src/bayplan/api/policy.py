"""policy/v1: evictions."""

from bayplan.api._generated.policy_v1 import *  # noqa: F403
