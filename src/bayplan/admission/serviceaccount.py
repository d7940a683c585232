"""ServiceAccount: nothing but metadata is checked."""

from __future__ import annotations

from bayplan.admission.rules import Rules

RULES = Rules()
