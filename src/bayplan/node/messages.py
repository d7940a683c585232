"""What the pod state machine hears (events) and what it asks for (actions). Plain data, no behaviour.

Times are seconds since the epoch. Containers are named as in the pod's spec; ``id`` is the runtime's id of one run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from bayplan.api.core import Pod, PodStatus

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class Updated:
    """The API object as it is now."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Removed:
    """The API object is gone, by our own request or by force."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The resource managers have granted the pod, durably."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The node refuses the pod for good. ``message`` is the bare text."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """All claims of the pod are ready on this node."""


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    """Claims could not be prepared now; it is tried again."""

    message: str


@dataclass(frozen=True, slots=True)
class Started:
    """A container runs."""

    container: str
    id: str
    pid: int | None
    at: float


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A container could not be started. ``ran``: the runtime tried (the attempt counts as a run with exit code 128)."""

    container: str
    reason: str
    message: str
    ran: bool = False


@dataclass(frozen=True, slots=True)
class Exited:
    """A run has ended."""

    container: str
    id: str
    exit_code: int
    at: float
    signal: int = 0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A run that an earlier agent process started; ``exit`` where it has ended meanwhile. Not an event: known from birth."""

    container: str
    id: str
    pid: int | None
    started_at: float
    restart_count: int
    exit: Exited | None = None


@dataclass(frozen=True, slots=True)
class Unprepared:
    """No claim is held for this pod on this node any more."""


@dataclass(frozen=True, slots=True)
class UnprepareFailed:
    """Claims could not be given back now; it is tried again."""

    message: str


@dataclass(frozen=True, slots=True)
class Woken:
    """The time asked for with :class:`WakeAt` has come. ``hurry``: something has changed that a retry waits for."""

    hurry: bool = False


Event: TypeAlias = (
    Updated
    | Removed
    | Admitted
    | Rejected
    | Prepared
    | PrepareFailed
    | Started
    | StartFailed
    | Exited
    | Unprepared
    | UnprepareFailed
    | Woken
)


@dataclass(frozen=True, slots=True)
class Admit:
    """Ask the resource managers; answer Admitted or Rejected."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Prepare the pod's claims; answer Prepared or PrepareFailed."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start a container; answer Started or StartFailed."""

    container: str
    restart_count: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End a run within ``grace`` seconds (0: at once); its Exited follows. May come again with a shorter time."""

    container: str
    id: str
    grace: float


@dataclass(frozen=True, slots=True)
class Unprepare:
    """Give the pod's claims back; answer Unprepared or UnprepareFailed."""


@dataclass(frozen=True, slots=True)
class Release:
    """The pod holds nothing of the node any more: CPUs, memory, devices are free."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Write the status to the API. Later ones replace earlier ones that are not written yet."""

    status: PodStatus


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Remove the API object, after the last status was written."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell users."""

    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send :class:`Woken` at this time; replaces an earlier wish."""

    at: float


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing is left to do for this pod."""


Action: TypeAlias = (
    Admit | Prepare | Start | Stop | Unprepare | Release | Publish | DeleteObject | Emit | WakeAt | Forget
)
