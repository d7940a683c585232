"""The table of facts about every served type: field names, types, protobuf numbers, merge keys, list keys.

Strict field validation, OpenAPI, strategic merge, server-side apply and the protobuf codec all read this one table. It is
made by ``scripts/generate_api.py`` and loaded on first use.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

import msgspec


class Field(msgspec.Struct, frozen=True, rename="camel"):
    """One field of a type.

    ``type`` is a scalar (``string bool int32 int64 double bytes quantity time microtime intorstring rawextension fieldsv1
    any``), ``ref:<type name>``, ``[]<type>`` for a list or ``{}<type>`` for a map with string keys. ``number`` is the path of
    protobuf field numbers: one, or two where the field sits in a message that JSON shows inline; empty where none exists.
    """

    name: str
    type: str
    required: bool = False
    number: tuple[int, ...] = ()
    patch_strategy: str = ""
    patch_merge_key: str = ""
    list_type: str = ""
    list_map_keys: tuple[str, ...] = ()


class Schema:
    """A type: its fields by JSON name."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: tuple[Field, ...]) -> None:
        self.name = name
        self.fields = {f.name: f for f in fields}


_OLDER_TYPE: Final = "NodeAllocatableResourceMapping"
_OLDER_OWNERS: Final = ("v1.Device", "v1beta2.Device", "v1beta1.BasicDevice")


@cache
def _table() -> dict[str, tuple[Field, ...]]:
    data = resources.files("bayplan.api._generated").joinpath("schema.json").read_bytes()
    table = msgspec.json.decode(data, type=dict[str, tuple[Field, ...]])
    # The alpha form that node-allocatable resources had in 1.36; objects in it are still checked, not silently pruned.
    for owner in _OLDER_OWNERS:
        package = f"io.k8s.api.resource.{owner.partition('.')[0]}"
        form = f"{package}.{_OLDER_TYPE}"
        table[form] = (Field("capacityKey", "string"), Field("allocationMultiplier", "quantity"))
        name = f"io.k8s.api.resource.{owner}"
        if name in table:
            table[name] += (Field("nodeAllocatableResourceMappings", f"{{}}ref:{form}"),)
    return table


@cache
def schema(name: str) -> Schema:
    """The type with an OpenAPI name such as ``io.k8s.api.core.v1.Pod``; KeyError if there is none."""
    return Schema(name, _table()[name])


def names() -> list[str]:
    """All type names of the table."""
    return list(_table())
