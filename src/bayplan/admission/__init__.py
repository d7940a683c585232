"""What may be stored: feature-gate stripping, defaulting, validation and immutability, a module per kind.

`admit` is the entry point: it takes an object as `bayplan.admission.decoding.decode` gives it (in the storage version of
its kind) and returns it as it is to be stored, or raises `Invalid`, `Forbidden`, `BadRequest` or `Conflict`.
"""

from bayplan.admission.admit import Admitted, admit
from bayplan.admission.context import Context, Decision
from bayplan.admission.errors import BadRequest, Cause, Conflict, Forbidden, Invalid, Refusal

__all__ = [
    "Admitted",
    "BadRequest",
    "Cause",
    "Conflict",
    "Context",
    "Decision",
    "Forbidden",
    "Invalid",
    "Refusal",
    "admit",
]
