"""Drawings: what stands where."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

from bayplan.api.cpuset import parse
from bayplan.machine.describe import describe
from bayplan.machine.render import page_text, render, size_text
from bayplan.machine.stowage import SYMBOLS, Holder, Stowage
from bayplan.machine.svg import render_svg

PLAIN = """\
n1 · 2 sockets · 2 NUMA nodes · 4 cores · 8 CPUs · 16 GiB
╭─ socket 0 ─────────────────────────────────────── 0-1,4-5 ─╮
│ NUMA 0   8 GiB                                             │
│   L3 0  0/4 1/5                                            │
│   ◇ 0000:01:00.0  GPU NVIDIA 10de:2330   pci0000:00        │
╰────────────────────────────────────────────────────────────╯
╭─ socket 1 ─────────────────────────────────────── 2-3,6-7 ─╮
│ NUMA 1   8 GiB                                             │
│   L3 1  2/6 3/7                                            │
╰────────────────────────────────────────────────────────────╯
distances   0  1
        0  10 21
        1  21 10
"""

STOWED = """\
n1 · 2 sockets · 2 NUMA nodes · 4 cores · 8 CPUs · 16 GiB
╭─ socket 0 ─────────────────────────────────────── 0-1,4-5 ─╮
│ NUMA 0   8 GiB                                             │
│   L3 0  ░· ·░  0-1,4-5                                     │
│   A 0000:01:00.0  GPU NVIDIA 10de:2330   pci0000:00        │
╰────────────────────────────────────────────────────────────╯
╭─ socket 1 ─────────────────────────────────────── 2-3,6-7 ─╮
│ NUMA 1   8 GiB   memory of A                               │
│   L3 1  AA B·  2-3,6-7                                     │
╰────────────────────────────────────────────────────────────╯
distances   0  1
        0  10 21
        1  21 10

 A  default/train/main  2 CPUs: 2,6; memory 2 GiB on NUMA 1; 0000:01:00.0
 B  default/db/pg       1 CPU: 3
 C  default/web/nginx   shared CPUs
 ░  reserved            2 CPUs: 0,5
 ·  shared              3 CPUs: 1,4,7
"""

MACHINE = describe("2s2n8c2t16Gi1gpu", name="n1")
STOWAGE = Stowage(
    holders=(
        Holder(
            name="default/train/main",
            cpus_mask=parse("2,6"),
            mems_mask=2,
            memory_bytes=2 << 30,
            devices=("0000:01:00.0",),
        ),
        Holder(name="default/db/pg", cpus_mask=parse("3")),
        Holder(name="default/web/nginx"),
    ),
    reserved_mask=parse("0,5"),
)


def test_a_machine() -> None:
    assert render(MACHINE, width=62) == PLAIN


def test_who_sits_where() -> None:
    assert render(MACHINE, STOWAGE, width=62) == STOWED


def test_colours_change_nothing_but_colours() -> None:
    colored = render(MACHINE, STOWAGE, width=62, color=True)
    assert "\x1b[" in colored
    while (start := colored.find("\x1b[")) >= 0:
        colored = colored[:start] + colored[colored.index("m", start) + 1 :]
    assert colored == STOWED


def test_more_holders_than_signs() -> None:
    machine = describe("1s100c")
    holders = tuple(Holder(name=f"pod-{number}", cpus_mask=1 << number) for number in range(70))
    text = render(machine, Stowage(holders=holders))
    assert f" {SYMBOLS[-1]}  pod-61" in text
    assert " #  pod-69" in text


def test_oddities_have_their_place() -> None:
    machine = describe(
        "sockets: 1\nnumaPerSocket: 2\ncoresPerNuma: 2\nthreads: 2\nofflineCpus: 7\nisolatedCpus: 1\n"
        "memoryOnlyNuma: [{memory: 1Gi}, {memory: 1Gi}, {memory: 2Gi}]\nhugepagesPerNuma: {2Mi: 5}\n"
        "devices: [{type: nic, numa: -1}, {class: 0x0c0330, numa: 0}]"
    )
    text = render(machine)
    assert "offline: 7\nisolated (isolcpus): 1\nuneven threads: cores have 1 or 2\nassumed: memory: 2Gi a CPU\n" in text
    assert "NUMA 2-3 (nearest CPUs: NUMA 0, distance 32)   1 GiB" in text
    assert "NUMA 4 (nearest CPUs: NUMA 0, distance 32)   2 GiB" in text
    assert "NUMA 0   8 GiB   2Mi pages: 5" in text
    assert "no NUMA affinity" in text
    assert "+ 1 other PCI function " in text
    assert "0000:01:01.0" not in text
    bare = replace(machine, numa_nodes=(), cpus=tuple(replace(cpu, numa=None) for cpu in machine.cpus))
    assert "a kernel without NUMA" in render(bare)


def test_isolated_cpus_in_the_shared_pool_are_pointed_out() -> None:
    """Case 15: isolcpus=1-7, CPU 0 reserved, one pod on CPU 1; the shared pool holds 0 and 2-7."""
    machine = describe("coresPerNuma: 8\nisolatedCpus: 1-7")
    pinned = Holder(name="default/pinned/main", cpus_mask=2)
    text = render(machine, Stowage(holders=(pinned,), reserved_mask=1, shared_mask=parse("0,2-7")))
    assert "warning: the shared pool has isolated CPUs (2-7)" in text
    assert "warning" not in render(machine, Stowage(holders=(pinned,), reserved_mask=1, shared_mask=1))


def test_sizes() -> None:
    assert [size_text(size) for size in (0, 1023, 1536, 512 << 30, int(62.75 * (1 << 30)), 3 << 40)] == [
        *("0 B", "1023 B", "1.5 KiB", "512 GiB", "62.8 GiB", "3 TiB"),
    ]
    assert [page_text(size) for size in (64 << 10, 2 << 20, 1 << 30)] == ["64Ki", "2Mi", "1Gi"]


def test_the_picture_is_well_formed_and_says_whose_cpu_it_is() -> None:
    stowage = replace(STOWAGE, holders=(Holder(name='<ns>/"a"&b', cpus_mask=4), *STOWAGE.holders[1:]))
    root = ET.fromstring(render_svg(MACHINE, stowage))
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert 'CPU 2: <ns>/"a"&b' in titles
    assert "CPU 0: reserved" in titles
    assert sum(title is not None and title.startswith("CPU ") for title in titles) == 8
    assert root.get("width")
