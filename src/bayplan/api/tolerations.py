"""Tolerations of pods against taints of nodes; devices have their own rules."""

from __future__ import annotations

from bayplan.api.core import Toleration

__all__ = ["tolerates"]


def tolerates(toleration: Toleration, key: str, value: str, effect: str) -> bool:
    """One toleration against one taint. Empty key with Exists matches all keys, empty effect all effects."""
    if toleration.effect and toleration.effect != effect:
        return False
    if toleration.key and toleration.key != key:
        return False
    match toleration.operator or "Equal":
        case "Exists":
            return True
        case "Equal":
            return bool(toleration.key) and (toleration.value or "") == value
        case "Gt" | "Lt" as operator:
            try:
                have, bound = int(value), int(toleration.value or "")
            except ValueError:
                return False
            return have > bound if operator == "Gt" else have < bound
        case _:
            return False
