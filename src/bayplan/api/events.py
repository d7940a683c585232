"""events.k8s.io/v1: events in their newer form."""

from bayplan.api._generated.events_v1 import *  # noqa: F403
