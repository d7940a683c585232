"""Processes as the kernel shows them: who they are, what they started, and on which CPUs every thread of them may run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable

from bayplan.api.cpuset import bits
from bayplan.node.runtime.shim import children, is_zombie, start_ticks

_MAX_PASSES = 200


class AffinityError(Exception):
    """The kernel refuses an affinity, or processes multiply faster than they can be moved."""


def is_same(pid: int, ticks: int | None) -> bool:
    """Whether a process still exists, by its start time, and has not ended (a zombie has)."""
    try:
        return start_ticks(pid) == ticks and not is_zombie(pid)
    except (OSError, ValueError, IndexError):
        return False


def signal_process(pid: int, ticks: int | None, number: int) -> bool:
    """Sends a signal to a process that is recognised by its start time; False when it is gone.

    With a process handle (Linux 5.3) no other process can ever be hit; without, the moment between look and signal remains.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):
        handle = -1
    try:
        if not is_same(pid, ticks):
            return False
        if handle < 0:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def descendants(pid: int) -> list[int]:
    """All living descendants of a process, nearest first. What ends or starts meanwhile may be missing."""
    found: list[int] = []
    pending = [pid]
    seen = {pid}
    while pending:
        fresh = [child for child in _children_of_all_threads(pending.pop()) if child not in seen]
        seen.update(fresh)
        found.extend(fresh)
        pending.extend(fresh)
    return found


def _children_of_all_threads(pid: int) -> Iterable[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return ()
    if len(threads) == 1:
        return children(pid)
    found: list[int] = []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children") as listed:
                found.extend(int(child) for child in listed.read().split())
        except OSError:
            continue
    return found


def set_affinity(members: Callable[[], Iterable[int]], cpus_mask: int) -> int:
    """Moves every thread of a set of processes to ``cpus_mask``; returns the number of threads.

    A thread inherits the affinity of the one that starts it, so a thread that appears during the walk may still have the old
    one. ``members`` (the process ids, asked anew for each pass) and their threads are walked until a pass meets nothing new:
    from then on every thread there is, and every thread that these start, has the new affinity.

    Raises:
        AffinityError: the kernel refuses (no online CPU in the mask, no permission), or the set never comes to rest.
    """
    cpus = set(bits(cpus_mask))
    done: set[int] = set()
    for _ in range(_MAX_PASSES):
        fresh = False
        for pid in members():
            for thread in _threads(pid):
                if thread in done:
                    continue
                try:
                    os.sched_setaffinity(thread, cpus)
                except ProcessLookupError:
                    continue
                except OSError as error:
                    raise AffinityError(f"process {pid}, thread {thread}: {error.strerror}") from error
                done.add(thread)
                fresh = True
        if not fresh:
            return len(done)
    raise AffinityError(f"threads multiply faster than they can be moved ({len(done)} so far)")


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
