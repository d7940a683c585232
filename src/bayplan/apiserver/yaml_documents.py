"""YAML bodies: text to the document that the same body in JSON would be.

Where YAML 1.1 and JSON could differ, JSON wins: timestamps and numbers with colons (base 60, ``22:22``) stay text. A body
stands for no more than a JSON body may have: aliases that repeat aliases ("billion laughs") are measured before anything is
built from them. Cost: linear in the length of the text.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import yaml

__all__ = ["YAMLBodyError", "load_yaml"]

_DROPPED = frozenset({"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_INT = re.compile(r"[-+]?(?:0b[0-1_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)\Z")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z|[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z"
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class YAMLBodyError(ValueError):
    """The text is no YAML document that JSON could express; the message says why."""


def load_yaml(text: bytes, limit: int) -> Any:
    """The document, None for an empty text. `limit`: most characters and nodes that it may have with all aliases replaced.

    Raises `YAMLBodyError`.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if b"*" in text and _Size(limit).of(node) > limit:
            raise YAMLBodyError(f"document contains excessive aliasing: it stands for more than {limit} bytes")
        return _decode(_encode(loader.construct_document(node)))
    except (yaml.YAMLError, TypeError, ValueError, OverflowError) as error:
        raise YAMLBodyError(str(error)) from None
    except RecursionError:
        raise YAMLBodyError("exceeded maximum nesting depth") from None
    finally:
        loader.dispose()


class _Size:
    """How many characters and nodes a node stands for; each node is looked at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[int, int] = {}

    def of(self, node: yaml.Node) -> int:
        known = self._known.get(id(node))
        if known is not None:
            return known
        self._known[id(node)] = self._limit + 1  # what a node has that contains itself
        size = 1
        if isinstance(node, yaml.ScalarNode):
            size += len(node.value)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                size += self.of(item)
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                size += self.of(key) + self.of(value)
        self._known[id(node)] = size
        return size


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C loader where it was built."""


class _Loader(_Base):  # type: ignore[misc]
    """The safe loader with the numbers of JSON."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag not in _DROPPED]
    for first, rules in _Base.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def _number(tag: str) -> Any:
    usual = _Base.yaml_constructors[tag]

    def construct(loader: Any, node: Any) -> Any:
        if ":" in str(node.value):  # an explicit tag; to add up its parts takes quadratic time
            raise YAMLBodyError(f"numbers with colons are not read: {str(node.value)[:20]}")
        return usual(loader, node)

    return construct


for _tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
    _Loader.add_constructor(_tag, _number(_tag))
