"""Who holds which CPUs: the state that the CPU manager keeps, and nothing else.

Invariant: the default (shared) set and all assigned sets are disjoint, and together they are the CPUs that the policy
manages. Containers of one pod may share CPUs (init containers and what reuses them).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class CPUState:
    """Masks. ``containers``: pod uid -> container -> CPUs; ``pods``: pod uid -> CPU bubble of a pod-level pod."""

    default: int = 0
    containers: dict[str, dict[str, int]] = field(default_factory=dict)
    pods: dict[str, int] = field(default_factory=dict)

    def get(self, uid: str, container: str) -> int | None:
        """The container's CPUs, None without an entry."""
        return self.containers.get(uid, {}).get(container)

    def put(self, uid: str, container: str, cpus: int) -> None:
        """Enters the container's CPUs."""
        self.containers.setdefault(uid, {})[container] = cpus

    def held_by(self, uid: str) -> int:
        """All CPUs of the pod's containers."""
        cpus = 0
        for own in self.containers.get(uid, {}).values():
            cpus |= own
        return cpus

    def assigned(self) -> int:
        """All CPUs that are assigned to any container or pod."""
        cpus = 0
        for own in self.containers.values():
            for mask in own.values():
                cpus |= mask
        for mask in self.pods.values():
            cpus |= mask
        return cpus

    def release(self, uid: str, container: str) -> None:
        """Takes the container's entry out. Its CPUs are free once no other container of the pod holds them, and those
        of a bubble once the pod's last container is gone."""
        own = self.containers.get(uid)
        if not own or container not in own:
            return
        freed = own.pop(container)
        if own:
            bubble = self.pods.get(uid, 0)
            self.default |= freed & ~self.held_by(uid) & ~bubble
            return
        del self.containers[uid]
        self.default |= freed | self.pods.pop(uid, 0)

    def copy(self) -> CPUState:
        """An independent copy."""
        return CPUState(self.default, {uid: dict(own) for uid, own in self.containers.items()}, dict(self.pods))
