"""meta/v1: what all objects share."""

from bayplan.api._generated.meta_v1 import *  # noqa: F403
