"""Options of the static CPU manager policy: which exist, which gate shows them, which go together.

Source: the documentation of the static policy's options; messages are the kubelet's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bayplan.api.gates import FeatureGates
from bayplan.managers.cpu_topology import CPUTopology

FULL_PCPUS_ONLY = "full-pcpus-only"
DISTRIBUTE_ACROSS_NUMA = "distribute-cpus-across-numa"
ALIGN_BY_SOCKET = "align-by-socket"
DISTRIBUTE_ACROSS_CORES = "distribute-cpus-across-cores"
STRICT_RESERVATION = "strict-cpu-reservation"
PREFER_UNCORE = "prefer-align-cpus-by-uncorecache"

_ALPHA = frozenset({ALIGN_BY_SOCKET, DISTRIBUTE_ACROSS_CORES})
_BETA = frozenset({DISTRIBUTE_ACROSS_NUMA})
_STABLE = frozenset({FULL_PCPUS_ONLY, STRICT_RESERVATION, PREFER_UNCORE})
_CONFLICTS = (
    (FULL_PCPUS_ONLY, DISTRIBUTE_ACROSS_CORES),
    (DISTRIBUTE_ACROSS_NUMA, DISTRIBUTE_ACROSS_CORES),
    (PREFER_UNCORE, DISTRIBUTE_ACROSS_CORES),
    (PREFER_UNCORE, DISTRIBUTE_ACROSS_NUMA),
)
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


class OptionError(ValueError):
    """An option is unknown, hidden, malformed or in conflict; the message is the kubelet's."""


@dataclass(frozen=True, slots=True)
class StaticPolicyOptions:
    """The options of the static policy, all off by default."""

    full_pcpus_only: bool = False
    distribute_across_numa: bool = False
    align_by_socket: bool = False
    distribute_across_cores: bool = False
    strict_reservation: bool = False
    prefer_uncore: bool = False


def parse_bool(option: str, text: str) -> bool:
    """The value of a boolean option as Go's ParseBool reads it; raises :class:`OptionError`."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise OptionError(f'bad value for option "{option}": strconv.ParseBool: parsing "{text}": invalid syntax')


def parse_static_options(options: Mapping[str, str], gates: FeatureGates) -> StaticPolicyOptions:
    """Reads ``cpuManagerPolicyOptions``; raises :class:`OptionError` for the first fault, in order of option name."""
    for name in sorted(options):
        _check_visible(name, gates)
    values = {name: parse_bool(name, text) for name, text in sorted(options.items())}
    for first, second in _CONFLICTS:
        if values.get(first) and values.get(second):
            raise OptionError(f"static policy options {first} and {second} can not be used at the same time")
    return StaticPolicyOptions(
        full_pcpus_only=values.get(FULL_PCPUS_ONLY, False),
        distribute_across_numa=values.get(DISTRIBUTE_ACROSS_NUMA, False),
        align_by_socket=values.get(ALIGN_BY_SOCKET, False),
        distribute_across_cores=values.get(DISTRIBUTE_ACROSS_CORES, False),
        strict_reservation=values.get(STRICT_RESERVATION, False),
        prefer_uncore=values.get(PREFER_UNCORE, False),
    )


def _check_visible(name: str, gates: FeatureGates) -> None:
    if name in _ALPHA:
        if not gates.enabled("CPUManagerPolicyAlphaOptions"):
            raise OptionError(f'CPU Manager Policy Alpha-level Options not enabled, but option "{name}" provided')
    elif name in _BETA:
        if not gates.enabled("CPUManagerPolicyBetaOptions"):
            raise OptionError(f'CPU Manager Policy Beta-level Options not enabled, but option "{name}" provided')
    elif name not in _STABLE:
        raise OptionError(f'unknown CPU Manager Policy option: "{name}"')


def check_machine(options: StaticPolicyOptions, topology: CPUTopology, topology_policy: str) -> None:
    """Options that do not fit the Topology Manager's policy or the machine; raises :class:`OptionError`."""
    if not options.align_by_socket:
        return
    if topology_policy == "single-numa-node":
        raise OptionError(
            "Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option"
        )
    if len(topology.sockets) > len(topology.numa):
        raise OptionError(
            "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA"
        )
