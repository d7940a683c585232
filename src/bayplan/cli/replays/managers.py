"""Scenarios of the kubelet's resource managers: start a node, play events, tell what happened after each.

The form is that of the conformance corpus. Quirks of the scenario's kubelet version are on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from bayplan.api.config import ConfigError, KubeletConfiguration, decode_kubelet_configuration
from bayplan.api.core import Pod
from bayplan.api.cpuset import bits, format_mask
from bayplan.cli.replays.lines import answers, main
from bayplan.machine.scenario import machine_from_scenario
from bayplan.machine.topology import Machine
from bayplan.managers.assignment import (
    Admission,
    ContainerAssignment,
    MemoryBlock,
    PluginDevice,
    StartupError,
    TopologyHint,
)
from bayplan.managers.checkpoint_devices import DEVICE_STATE_FILE
from bayplan.managers.checkpoint_memory import MEMORY_STATE_FILE
from bayplan.managers.node_managers import NodeManagers
from bayplan.managers.pod_view import compile_pod
from bayplan.managers.provider import CRASH
from bayplan.managers.record import AdmissionRecord, hints_summary


class DeviceRow(msgspec.Struct):
    """One device of a plugin."""

    id: str
    numa: list[int] | None = None
    health: str = "Healthy"


class DeviceList(msgspec.Struct):
    """The devices of one resource."""

    resource: str
    devices: list[DeviceRow]


class Scenario(msgspec.Struct):
    """A machine, a configuration, and what happens."""

    id: str
    machine: dict[str, Any]
    config: dict[str, Any] = {}
    kubelet: str = "1.37"
    devices: list[DeviceList] = []
    events: list[dict[str, Any]] = []


class Player:
    """Plays one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.machine: Machine = machine_from_scenario(scenario.machine)
        self.config = dict(scenario.config)
        self.devices = {
            group.resource: [
                PluginDevice(d.id, tuple(d.numa) if d.numa is not None else None, d.health == "Healthy")
                for d in group.devices
            ]
            for group in scenario.devices
        }
        self.managers: NodeManagers | None = None
        self.files: dict[str, str] = {}
        self.pods: dict[str, Pod] = {}
        """Every pod that was ever admitted or refused."""

    def run(self) -> dict[str, Any]:
        """The whole result."""
        startup = self._start()
        results: list[dict[str, Any]] = []
        if startup["ok"]:
            for event in self.scenario.events:
                results.append(self._play(event))
                if self.managers is None:
                    break
        return {"startup": startup, "results": results, "stateFiles": _determined(self.files)}

    def _store(self) -> None:
        """What the kubelet would have written by now: files whose content has not changed stay as they are."""
        assert self.managers is not None
        for name, text in self.managers.state_files().items():
            if name == DEVICE_STATE_FILE:
                continue  # scenarios with devices have no restart, and the corpus shows the two other files
            if name not in self.files or _content(text) != _content(self.files[name]):
                self.files[name] = text

    def _configuration(self) -> KubeletConfiguration:
        config = decode_kubelet_configuration(self.config)
        if config.eviction_hard is None:
            config.eviction_hard = {}  # scenarios state thresholds; the component's default was not applied to them
        return config

    def _start(self) -> dict[str, Any]:
        self.managers = None
        try:
            self.managers = NodeManagers.start(
                self.machine,
                self._configuration(),
                state_files=self.files,
                devices=self.devices,
                kubelet_version=self.scenario.kubelet,
                quirks=True,
            )
        except ConfigError as error:
            return {"ok": False, "stage": "decode", "error": str(error)}
        except StartupError as error:
            return {"ok": False, "stage": error.stage, "error": error.message}
        managers = self.managers
        self._store()
        started: dict[str, Any] = {"ok": True}
        if managers.config.cpu_manager_policy != "none":
            started["defaultCPUSet"] = format_mask(managers.shared_mask())
            started["reservedCPUs"] = format_mask(managers.reserved_mask())
            started["allocatableCPUs"] = format_mask(managers.allocatable_mask())
        reservation = {name: str(quantity) for name, quantity in sorted(managers.reservation.quantities.items())}
        if reservation:
            started["nodeReservation"] = reservation
        books = managers.memory_machine()
        if books is not None:
            started["memory"] = {
                str(node): {
                    name: {
                        "total": table.total,
                        "systemReserved": table.system_reserved,
                        "allocatable": table.allocatable,
                        "reserved": table.reserved,
                        "free": table.free,
                    }
                    for name, table in state.memory.items()
                }
                for node, state in books.items()
            }
        return started

    # -- events -------------------------------------------------------------------------------------------------------

    def _play(self, event: Mapping[str, Any]) -> dict[str, Any]:
        managers = self.managers
        assert managers is not None
        if "restart" in event:
            if not isinstance(event["restart"], Mapping | None):
                raise ValueError("events: restart needs an object of changed configuration fields")
            return self._restart(event["restart"] or {})
        if "admit" in event:
            result = self._admit(msgspec.convert(event["admit"], Pod))
        elif "remove" in event:
            managers.remove(event["remove"])
            result = {"event": "remove", "pod": event["remove"], "after": self._after()}
        elif "start" in event:
            uid, name = _place(event, "start")
            managers.start_container(uid, name)
            result = {"event": "start", "pod": uid, "after": self._after(), **self._pod_state(uid)}
        elif "exit" in event:
            uid, name = _place(event, "exit")
            managers.exit_container(uid, name)
            result = {"event": "exit", "pod": uid, "after": self._after()}
        elif "reconcile" in event:
            result = self._reconcile()
        else:
            raise ValueError(f"events: unknown event {sorted(event)}")
        self._store()
        return result

    def _admit(self, pod: Pod) -> dict[str, Any]:
        managers = self.managers
        assert managers is not None
        admission = managers.admit(pod, record=True, keep_rejected=True)
        self.pods[admission.uid] = pod
        if admission.reason == CRASH:
            managers.remove(admission.uid)
            return {"event": "admit", "pod": admission.uid, "panic": admission.message}
        self._store()
        result: dict[str, Any] = {
            "event": "admit",
            "pod": admission.uid,
            "qos": admission.qos,
            "admitted": admission.admitted,
        }
        if admission.record is not None and admission.record.calls:
            result["hints"] = _hints(admission.record)
        aligned = managers.config.topology_manager_policy != "none"
        if admission.admitted:
            result |= _pod_state(admission, aligned)
        else:
            result |= {"reason": admission.reason, "message": admission.message}
            result["beforeCleanup"] = self._after() | _pod_state(admission, aligned)
            managers.remove(admission.uid)
        result["after"] = self._after()
        return result

    def _restart(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        assert self.managers is not None
        pods, running = self.managers.pods(), self.managers.running()
        for key, value in changes.items():
            if value is None:
                self.config.pop(key, None)
            else:
                self.config[key] = value
        startup = self._start()
        result: dict[str, Any] = {"event": "restart", "startup": startup}
        managers = self.managers
        if managers is None:
            return result
        managers.assume_known(pods)
        managers.adopt(running)
        readmissions = [self._admit(pod) for pod in pods]
        if readmissions:
            result["readmissions"] = readmissions
        result["after"] = self._after()
        self._store()
        return result

    def _reconcile(self) -> dict[str, Any]:
        assert self.managers is not None
        done = self.managers.reconcile()
        result: dict[str, Any] = {"event": "reconcile", "after": self._after()}
        if done.updates:
            result["updates"] = [
                {"container": f"{u.uid}/{u.container}", "cpusetCpus": format_mask(u.cpuset_mask)} for u in done.updates
            ]
        if done.skipped:
            result["skipped"] = list(done.skipped)
        return result

    # -- states -------------------------------------------------------------------------------------------------------

    def _after(self) -> dict[str, Any]:
        managers = self.managers
        assert managers is not None
        state: dict[str, Any] = {"defaultCPUSet": format_mask(managers.shared_mask())}
        books = managers.memory_machine()
        if books is not None:
            state["memory"] = {
                str(node): {
                    "numberOfAssignments": own.assignments,
                    "cells": list(own.cells),
                    "resources": {n: {"free": t.free, "reserved": t.reserved} for n, t in own.memory.items()},
                }
                for node, own in books.items()
            }
        if self.devices:
            state["freeDevices"] = managers.free_devices()
        return state

    def _pod_state(self, uid: str) -> dict[str, Any]:
        managers = self.managers
        assert managers is not None
        try:
            containers = managers.assignments(uid)
        except KeyError:
            pod = self.pods.get(uid)
            if pod is None:
                return {}
            shared = managers.shared_mask()
            views = compile_pod(pod, managers.gates).containers
            containers = tuple(ContainerAssignment(v.name, v.kind, cpuset_mask=shared) for v in views)
        return _pod_parts(containers, managers.pod_cpus(uid), managers.pod_memory(uid), aligned=False)


def _place(event: Mapping[str, Any], kind: str) -> tuple[str, str]:
    """Pod uid and container of a start or exit event."""
    where = event[kind]
    if not isinstance(where, Mapping) or not {"pod", "container"} <= where.keys():
        raise ValueError(f"events: {kind} needs a pod (its uid) and a container")
    return where["pod"], where["container"]


def _content(text: str) -> dict[str, Any]:
    """What a state file says, apart from how it is protected."""
    body = msgspec.json.decode(text)
    return {key: body[key] for key in body if key not in ("checksum", "data", "dataChecksum")}


def _determined(files: Mapping[str, str]) -> dict[str, str]:
    """The files whose text is determined: the real kubelet writes the blocks of a container in random order, so a file
    with several blocks in one list is left out."""
    body = msgspec.json.decode(files.get(MEMORY_STATE_FILE, "{}"))
    lists = [blocks for own in body.get("entries", {}).values() for blocks in own.values()]
    lists += [own["memoryBlocks"] for own in body.get("podEntries", {}).values()]
    if any(len(blocks) > 1 for blocks in lists):
        return {name: text for name, text in files.items() if name != MEMORY_STATE_FILE}
    return dict(files)


def _pod_state(admission: Admission, aligned: bool) -> dict[str, Any]:
    return _pod_parts(admission.containers, admission.pod_cpus_mask, admission.pod_memory, aligned)


def _pod_parts(
    containers: Iterable[ContainerAssignment],
    cpus: int | None,
    memory: tuple[MemoryBlock, ...] | None,
    aligned: bool,
) -> dict[str, Any]:
    """``aligned``: show hints, "any node, not preferred" where a container has none."""
    state: dict[str, Any] = {"containers": [_container(c, aligned) for c in containers]}
    if cpus is not None:
        state["podCPUs"] = format_mask(cpus)
    if memory is not None:
        state["podMemory"] = _blocks(memory)
    return state


def _container(assignment: ContainerAssignment, aligned: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": assignment.name,
        "kind": assignment.kind,
        "cpus": format_mask(assignment.cpus_mask),
        "cpuAssigned": assignment.cpu_assigned,
        "cpusetCpus": format_mask(assignment.cpuset_mask),
        "cpusetMems": ",".join(map(str, assignment.mems)),
        "cpuIsolation": assignment.cpu_isolation,
        "memory": _blocks(assignment.memory),
    }
    if assignment.devices:
        row["devices"] = {resource: list(ids) for resource, ids in assignment.devices.items()}
    if aligned:
        hint = assignment.hint or TopologyHint(None, False)
        nodes = None if hint.mask is None else list(bits(hint.mask))
        row["hint"] = {"numaNodes": nodes, "preferred": hint.preferred}
    return row


def _blocks(blocks: Iterable[MemoryBlock]) -> list[dict[str, Any]]:
    return [{"numaAffinity": list(b.numa), "type": b.type, "size": b.size} for b in blocks]


def _hints(record: AdmissionRecord) -> list[dict[str, Any]]:
    return [
        {
            "provider": call.provider,
            **({"container": call.container} if call.container is not None else {}),
            "hints": {name: hints_summary(hints) for name, hints in call.hints.items()},
        }
        for call in record.calls
    ]


def run(lines: Iterable[bytes]) -> Iterator[bytes]:
    """One result line for every scenario line."""
    return answers(lines, Scenario, lambda scenario: Player(scenario).run())


if __name__ == "__main__":
    main(run)
