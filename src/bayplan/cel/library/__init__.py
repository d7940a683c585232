"""The functions an expression may call: standard CEL, its extensions, Kubernetes' libraries.

There is no math extension and no string `reverse`: Kubernetes has neither.
"""

from __future__ import annotations

from functools import cache

from bayplan.cel.library import (
    kubernetes,
    lists,
    named_format,
    network,
    optionals,
    regex,
    standard,
    strings,
    time,
)
from bayplan.cel.library.declare import Overload, overloads

__all__ = ["Overload", "functions"]


@cache
def functions(includes: bool = True) -> dict[str, list[Overload]]:
    """All overloads by function name, in the order of their declaration."""
    libraries = (standard, time, strings, regex, lists, optionals, kubernetes, network, named_format)
    declarations = [declaration for library in libraries for declaration in library.DECLARATIONS]
    if includes:
        declarations += kubernetes.DEVICE_DECLARATIONS
    table: dict[str, list[Overload]] = {}
    for overload in overloads(declarations):
        table.setdefault(overload.function, []).append(overload)
    return table
