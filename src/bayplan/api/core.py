"""core/v1: pods, nodes, namespaces, events and what they consist of."""

from bayplan.api._generated.core_v1 import *  # noqa: F403
