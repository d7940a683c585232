"""Who is scheduled next, and who sleeps until something happens that can help.

Three places: *active* (by priority, then by age), *backoff* (failed lately: 1 s doubling to 10 s) and *unschedulable*. A
pod that no node took remembers which plugins refused it. An event goes only to pods refused by a plugin that the event
concerns, and there a hint decides whether this pod can be helped; so nothing is tried in vain again and again, and
nothing that could run is left asleep. A decision is one synchronous step, so no event falls between it and the sleep; a
pod whose *binding* failed is always tried again after its backoff. After 5 minutes a sleeping pod is tried anyhow.

A pod may be *gated*: scheduling gates, a claim that does not exist yet, a group that is not complete. Gated pods wait
outside until an event makes the owner call `update`.

When active is empty the backoff of pods that were woken by an event ends early (SchedulerPopFromBackoffQ); a backoff
after an error is always kept.

Entries are opaque here: a pod or a whole group. Clock values are arguments, seconds on one scale.
Cost: O(log n) per move; an event costs the pods in the buckets of its plugins.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

__all__ = ["ClusterEvent", "Entry", "Hint", "SchedulingQueue"]

K = TypeVar("K", bound=Hashable)

_FIRST_BACKOFF: Final = 1.0
_LONGEST_BACKOFF: Final = 10.0
_LONGEST_SLEEP: Final = 300.0


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Something changed: `resource` (a kind, or AssignedPod, Claim, ...), `action` (Add, Update, Delete), the objects."""

    resource: str
    action: str
    old: Any = None
    new: Any = None

    @property
    def label(self) -> str:
        """As Kubernetes' metrics name it."""
        return f"{self.resource}{self.action}"


Hint = Callable[[Any, ClusterEvent], bool]
"""(entry's payload, event) -> whether the event may make it schedulable."""


@dataclass(slots=True, eq=False)
class Entry(Generic[K]):
    """One thing to schedule. `payload` is the caller's (a PodInfo, a group)."""

    key: K
    payload: Any
    priority: int
    added: float
    """When it came into the queue first; age decides among equals."""
    attempts: int = 0
    place: str = ""
    """active, backoff, unschedulable, gated, flight."""
    plugins: frozenset[str] = frozenset()
    """Who refused it last; empty after an error."""
    error: bool = False
    ready_at: float = 0.0
    slept_at: float = 0.0
    gate: str = ""
    ticket: int = 0
    """The heap item with this number is the valid one."""


class SchedulingQueue(Generic[K]):
    """`hints`: plugin -> {resource: hint}; a plugin without an entry for a resource does not care about it."""

    def __init__(
        self,
        hints: Mapping[str, Mapping[str, Hint]],
        *,
        first_backoff: float = _FIRST_BACKOFF,
        longest_backoff: float = _LONGEST_BACKOFF,
    ) -> None:
        self._hints = hints
        self._first_backoff = first_backoff
        self._longest_backoff = longest_backoff
        self._interested: dict[str, list[str]] = {}
        for plugin, table in hints.items():
            for resource in table:
                self._interested.setdefault(resource, []).append(plugin)
        self.entries: dict[K, Entry[K]] = {}
        self._active: list[tuple[int, float, int, K]] = []
        self._backoff: list[tuple[float, int, K]] = []
        self._failed: list[tuple[float, int, K]] = []
        """Backoff after an error, which is kept in full."""
        self._sleeping: dict[str, dict[K, Entry[K]]] = {}
        self._ticket = 0

    # -- coming and going

    def add(self, key: K, payload: Any, priority: int, now: float, *, gate: str = "") -> None:
        """A new entry. `gate` non-empty: not ready, and why."""
        entry = Entry(key, payload, priority, now)
        self.entries[key] = entry
        self._gate(entry, gate) if gate else self._activate(entry)

    def update(self, key: K, payload: Any, priority: int, now: float, *, gate: str = "", helps: bool = True) -> None:
        """The object changed. `helps`: the change itself could make it schedulable (then it is tried again)."""
        entry = self.entries.get(key)
        if entry is None:
            self.add(key, payload, priority, now, gate=gate)
            return
        moved = entry.priority != priority
        entry.payload, entry.priority = payload, priority
        if entry.place == "flight":
            entry.gate = gate
            return
        if gate:
            if entry.place != "gated":
                self._leave(entry)
            self._gate(entry, gate)
        elif entry.place == "gated" or (entry.place == "unschedulable" and helps):
            self._leave(entry)
            self._wake(entry, now)
        elif moved and entry.place == "active":
            self._activate(entry)

    def remove(self, key: K) -> None:
        entry = self.entries.pop(key, None)
        if entry is not None:
            self._leave(entry)
            entry.place = "gone"

    def payload(self, key: K) -> Any:
        entry = self.entries.get(key)
        return entry.payload if entry is not None else None

    # -- deciding

    def pop(self, now: float) -> Entry[K] | None:
        """The next entry, now in flight; None if nothing is due."""
        self._flush(now)
        while self._active:
            _, _, ticket, key = heapq.heappop(self._active)
            entry = self.entries.get(key)
            if entry is not None and entry.place == "active" and entry.ticket == ticket:
                return self._fly(entry)
        entry = self._valid_top(self._backoff)
        if entry is None:
            return None
        heapq.heappop(self._backoff)
        return self._fly(entry)

    def _valid_top(self, heap: list[tuple[float, int, K]]) -> Entry[K] | None:
        """The first valid entry of a backoff heap; items that are no longer valid are dropped."""
        while heap:
            _, ticket, key = heap[0]
            entry = self.entries.get(key)
            if entry is not None and entry.place == "backoff" and entry.ticket == ticket:
                return entry
            heapq.heappop(heap)
        return None

    def _fly(self, entry: Entry[K]) -> Entry[K]:
        entry.place = "flight"
        entry.attempts += 1
        return entry

    def done(self, entry: Entry[K]) -> None:
        """The entry was placed; it leaves the queue (unless it was replaced meanwhile)."""
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]
            entry.place = "gone"

    def refused(self, entry: Entry[K], plugins: Iterable[str], now: float, *, error: bool = False) -> None:
        """The attempt failed: because of `plugins`, or of an error that is tried again after the backoff.

        Where no plugin refused it, no event could wake it, so that counts as an error.
        """
        if self.entries.get(entry.key) is not entry:
            return
        entry.plugins = frozenset(plugins)
        entry.error = error or not entry.plugins
        entry.slept_at = now
        if entry.gate:
            self._gate(entry, entry.gate)
        elif entry.error:
            self._wait(entry, now)
        else:
            entry.place = "unschedulable"
            for plugin in entry.plugins:
                self._sleeping.setdefault(plugin, {})[entry.key] = entry

    def retry(self, entry: Entry[K]) -> None:
        """Try the entry again at once, without counting this attempt (for example: it was interrupted)."""
        if self.entries.get(entry.key) is entry:
            entry.attempts -= 1
            self._gate(entry, entry.gate) if entry.gate else self._activate(entry)

    # -- waking

    def event(self, event: ClusterEvent, now: float) -> int:
        """Something changed in the cluster; the number of entries that it woke."""
        candidates: dict[K, Entry[K]] = {}
        for plugin in self._interested.get(event.resource, ()):
            candidates.update(self._sleeping.get(plugin, ()))
        woken = [entry for entry in candidates.values() if self._helps(entry, event)]
        for entry in woken:
            self._leave(entry)
            self._wake(entry, now)
        return len(woken)

    def _helps(self, entry: Entry[K], event: ClusterEvent) -> bool:
        for plugin in entry.plugins:
            hint = self._hints.get(plugin, {}).get(event.resource)
            if hint is not None and hint(entry.payload, event):
                return True
        return False

    def activate(self, key: K, now: float) -> None:
        """Try an entry now, whatever refused it (its gate must be open)."""
        entry = self.entries.get(key)
        if entry is not None and entry.place in ("unschedulable", "backoff"):
            self._leave(entry)
            self._activate(entry)

    def next_due(self) -> float | None:
        """When `pop` may have something because time passed, None if never."""
        times = [e.ready_at for heap in (self._backoff, self._failed) if (e := self._valid_top(heap)) is not None]
        times += [e.slept_at + _LONGEST_SLEEP for table in self._sleeping.values() for e in table.values()][:1]
        return min(times, default=None)

    def has_ready(self) -> bool:
        """Whether `pop` has something now (it may still find that it was removed)."""
        return bool(self._active) or self._valid_top(self._backoff) is not None

    def counts(self) -> dict[str, int]:
        """Entries by place, as the metric scheduler_pending_pods has them."""
        counts = dict.fromkeys(("active", "backoff", "unschedulable", "gated"), 0)
        for entry in self.entries.values():
            if entry.place in counts:
                counts[entry.place] += 1
        return counts

    # -- places

    def _activate(self, entry: Entry[K]) -> None:
        entry.place = "active"
        entry.gate = ""
        self._ticket += 1
        entry.ticket = self._ticket
        heapq.heappush(self._active, (-entry.priority, entry.added, entry.ticket, entry.key))

    def _gate(self, entry: Entry[K], reason: str) -> None:
        entry.place = "gated"
        entry.gate = reason

    def _backoff_end(self, entry: Entry[K]) -> float:
        if entry.attempts == 0:
            return 0.0
        return entry.slept_at + min(self._first_backoff * 2.0 ** min(entry.attempts - 1, 30), self._longest_backoff)

    def _wake(self, entry: Entry[K], now: float) -> None:
        entry.gate = ""
        if self._backoff_end(entry) > now:
            self._wait(entry, now)
        else:
            self._activate(entry)

    def _wait(self, entry: Entry[K], now: float) -> None:
        entry.place = "backoff"
        entry.ready_at = max(now, self._backoff_end(entry))
        self._ticket += 1
        entry.ticket = self._ticket
        heapq.heappush(self._failed if entry.error else self._backoff, (entry.ready_at, entry.ticket, entry.key))

    def _leave(self, entry: Entry[K]) -> None:
        """Out of where it sleeps; heap items become invalid by their ticket."""
        if entry.place == "unschedulable":
            for plugin in entry.plugins:
                self._sleeping.get(plugin, {}).pop(entry.key, None)
        entry.ticket = 0

    def _flush(self, now: float) -> None:
        for heap in (self._failed, self._backoff):
            while (due := self._valid_top(heap)) is not None and due.ready_at <= now:
                heapq.heappop(heap)
                self._activate(due)
        overdue = {entry.key: entry for table in self._sleeping.values() for entry in self._first_overdue(table, now)}
        for entry in overdue.values():
            self._leave(entry)
            self._activate(entry)

    @staticmethod
    def _first_overdue(table: Mapping[K, Entry[K]], now: float) -> list[Entry[K]]:
        # Tables keep the order of falling asleep, so the first that is not overdue ends the search.
        overdue = []
        for entry in table.values():
            if entry.slept_at + _LONGEST_SLEEP > now:
                break
            overdue.append(entry)
        return overdue
