"""The base of every API struct: how Kubernetes JSON is decoded and encoded.

Decoding is lenient (unknown fields are ignored, required ones may be missing) because saying what is wrong is the business
of validation, which names the field path; a decoder can only fail. Every optional field is ``None`` when it is absent, so
that an absent list and an empty one stay distinct, as they are in Kubernetes.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

RawQuantity: TypeAlias = str | int | float
"""A quantity as it stands in JSON; `bayplan.api.quantity.Quantity.parse` gives its value."""


class KubeStruct(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """A Kubernetes API struct: snake_case here, camelCase on the wire, ``None`` fields are left out when encoded.

    ``gc=False``: API objects are trees, so no reference cycle can pass through them.
    """
