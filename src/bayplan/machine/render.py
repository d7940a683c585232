"""A machine as a drawing in text: sockets, NUMA nodes, caches, cores, threads, devices, and who sits where.

Each core is a group of signs, one a thread. Without assignments the signs are the CPU ids (``0/64``); with them, the letter of
the holder, ``░`` for reserved and ``·`` for the rest, and a legend below says who is who. ``color`` adds terminal colours and
nothing else: the drawing is complete without.
"""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.api.cpuset import format_mask
from bayplan.machine.sections import CacheRow, InnerBox, OuterBox, device_name, lay_out
from bayplan.machine.stowage import OTHERS, Stowage
from bayplan.machine.topology import Machine, NUMANode

RESERVED, SHARED = "░", "·"
_COLORS = (39, 208, 77, 205, 220, 141, 44, 203, 149, 75, 215, 177)
_MATRIX_NODES = 24
_MIN_WIDTH = 50


def render(
    machine: Machine,
    stowage: Stowage | None = None,
    *,
    width: int = 100,
    color: bool = False,
    all_devices: bool = False,
) -> str:
    """The drawing, ``width`` columns wide (at least 50); only long names in the legend may make a line longer."""
    painter = _Painter(machine, stowage, max(width, _MIN_WIDTH), color)
    lines = list(painter.heading())
    for box in lay_out(machine, all_devices=all_devices):
        lines.extend(painter.box(box))
    lines.extend(painter.distances())
    lines.extend(painter.legend())
    return "\n".join(line.rstrip() for line in lines) + "\n"


def size_text(size: int) -> str:
    """A size with one decimal in the largest fitting unit: ``62.8 GiB``; whole numbers without: ``512 GiB``."""
    value, unit = float(size), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"


def page_text(size: int) -> str:
    """A huge page size as Kubernetes resources name it: ``2Mi``, ``1Gi``."""
    for unit, name in ((1 << 30, "Gi"), (1 << 20, "Mi")):
        if size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size >> 10}Ki"


def counted(number: int, noun: str) -> str:
    """``1 core``, ``2 cores``, ``2 CPUs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class _Painter:
    def __init__(self, machine: Machine, stowage: Stowage | None, width: int, color: bool) -> None:
        self.machine = machine
        self.stowage = stowage
        self.width = width
        self.color = color
        self.owner = stowage.holder_of() if stowage else {}
        self.device_owner = stowage.device_holders() if stowage else {}

    def heading(self) -> Iterator[str]:
        machine = self.machine
        sockets = len(machine.package_sets) if -1 in machine.sockets and machine.package_sets else len(machine.sockets)
        parts = [machine.name] if machine.name else []
        parts += [counted(sockets, "socket"), counted(len(machine.numa_nodes), "NUMA node")]
        parts += [counted(len(machine.cores), "core"), counted(len(machine.cpus), "CPU")]
        if machine.memory_bytes:
            parts.append(size_text(machine.memory_bytes))
        yield self.paint(" · ".join(parts), "1")
        notes = [
            ("offline", machine.offline_mask),
            ("isolated (isolcpus)", machine.isolated_mask),
            ("nohz_full", machine.nohz_full_mask),
        ]
        for label, mask in notes:
            if mask:
                yield f"{label}: {format_mask(mask)}"
        if not machine.numa_nodes:
            yield "a kernel without NUMA: one memory for all"
        if len(machine.threads_per_core) > 1:
            yield "uneven threads: cores have " + " or ".join(map(str, machine.threads_per_core))
        for assumption in machine.assumptions:
            yield f"assumed: {assumption}"

    def box(self, box: OuterBox) -> Iterator[str]:
        """One outer box with its border."""
        inside = self.width - 4
        cpus = f" {format_mask(box.cpus_mask)} " if box.cpus_mask else ""
        title = f" {box.title} "
        if len(title) + len(cpus) + 6 > self.width:
            cpus = ""
        yield f"╭─{self.paint(title, '1')}{'─' * (self.width - len(title) - len(cpus) - 4)}{cpus}─╮"
        for inner in box.inner:
            for line, shown in self.inner(inner, inside):
                yield f"│ {shown}{' ' * (inside - len(line))} │"
        yield f"╰{'─' * (self.width - 2)}╯"

    def inner(self, box: InnerBox, inside: int) -> Iterator[tuple[str, str]]:
        """The lines of an inner box: as plain text (for its length), and as it is shown."""
        facts = [box.title, *(node_facts(box.node) if box.node else [])]
        if self.stowage and box.node:
            users = [
                self.stowage.symbol(n) for n, h in enumerate(self.stowage.holders) if h.mems_mask >> box.node.id & 1
            ]
            if users:
                facts.append("memory of " + "".join(dict.fromkeys(users)))
        for line in fold("   ".join(filter(None, facts)), inside, "    "):
            if line:
                yield line, self.paint(line, "36")
        label_width = max((len(row.label) for row in box.rows), default=0)
        cell_width = max((len(self.cell(cell.threads)[0]) for row in box.rows for cell in row.cores), default=1)
        for row in box.rows:
            yield from self.row(row, label_width, cell_width, inside)
        yield from self.devices(box, inside)

    def row(self, row: CacheRow, label_width: int, cell_width: int, inside: int) -> Iterator[tuple[str, str]]:
        """The cores of one cache, folded to the width; ids of the CPUs at the end of the first line if there is room."""
        indent = "  " + f"{row.label:<{label_width}}" + ("  " if label_width else "")
        cells = [self.cell(cell.threads) for cell in row.cores]
        per_line = max(1, (inside - len(indent) + 1) // (cell_width + 1))
        if per_line > 8:
            per_line -= per_line % 8
        ids = f"  {format_mask(row.cpus_mask)}" if self.stowage else ""
        for start in range(0, len(cells), per_line):
            chunk = cells[start : start + per_line]
            plain = indent + " ".join(f"{text:<{cell_width}}" for text, _ in chunk)
            shown = indent + " ".join(text + " " * (cell_width - len(one)) for one, text in chunk)
            if start == 0 and ids and len(plain) + len(ids) <= inside:
                plain, shown = plain + ids, shown + self.paint(ids, "2")
            yield plain, shown
            indent = " " * len(indent)

    def cell(self, threads: tuple[int, ...]) -> tuple[str, str]:
        """The signs of one core, plain and as shown."""
        if self.stowage is None:
            text = "/".join(map(str, threads))
            return text, text
        signs = [self.sign(cpu) for cpu in threads]
        return "".join(sign for sign, _ in signs), "".join(shown for _, shown in signs)

    def sign(self, cpu: int) -> tuple[str, str]:
        assert self.stowage is not None
        number = self.owner.get(cpu)
        if number is not None:
            symbol = self.stowage.symbol(number)
            return symbol, self.paint(symbol, f"1;30;48;5;{_COLORS[number % len(_COLORS)]}")
        if self.stowage.reserved_mask >> cpu & 1:
            return RESERVED, RESERVED
        return SHARED, self.paint(SHARED, "2")

    def devices(self, box: InnerBox, inside: int) -> Iterator[tuple[str, str]]:
        for device in box.devices:
            number = self.device_owner.get(device.address)
            mark = "◇" if number is None or self.stowage is None else self.stowage.symbol(number)
            line = f"  {mark} {device.address}  {device_name(device)}"
            if device.pcie_root and len(line) + len(device.pcie_root) + 3 <= inside:
                line += f"   {device.pcie_root}"
            line = line[:inside]
            yield line, line if number is None else self.paint(line, f"38;5;{_COLORS[number % len(_COLORS)]}")
        if box.others:
            line = f"  + {box.others} other PCI function{'' if box.others == 1 else 's'}"
            yield line, self.paint(line, "2")

    def distances(self) -> Iterator[str]:
        nodes = [node for node in self.machine.numa_nodes if node.distances]
        if not 2 <= len(nodes) <= _MATRIX_NODES:
            return
        columns = list(nodes[0].distances)
        cell = max(len(str(value)) for node in nodes for value in (*node.distances.values(), *columns))
        lines = ["distances  " + " ".join(f"{column:>{cell}}" for column in columns)]
        for node in nodes:
            row = [node.distances.get(column) for column in columns]
            lines.append(f"{node.id:>9}  " + " ".join(f"{'' if value is None else value:>{cell}}" for value in row))
        if max(map(len, lines)) <= self.width:
            yield from lines

    def legend(self) -> Iterator[str]:
        """Who is who: sign, name, CPUs, memory nodes, devices."""
        stowage = self.stowage
        if stowage is None:
            return
        entries: list[tuple[str, str, str]] = []
        for number, holder in enumerate(stowage.holders):
            symbol = stowage.symbol(number)
            shown = symbol if symbol == OTHERS else self.paint(symbol, f"1;30;48;5;{_COLORS[number % len(_COLORS)]}")
            facts = []
            if holder.cpus_mask:
                facts.append(f"{counted(holder.cpus_mask.bit_count(), 'CPU')}: {format_mask(holder.cpus_mask)}")
            if holder.mems_mask or holder.memory_bytes:
                memory = f" {size_text(holder.memory_bytes)}" if holder.memory_bytes else ""
                facts.append(
                    f"memory{memory} on NUMA {format_mask(holder.mems_mask)}" if holder.mems_mask else f"memory{memory}"
                )
            facts.extend(holder.devices)
            if holder.note:
                facts.append(holder.note)
            entries.append((shown, holder.name, "; ".join(facts) or "shared CPUs"))
        free = self.machine.online_mask & ~stowage.reserved_mask
        for cpu in self.owner:
            free &= ~(1 << cpu)
        shared = free if stowage.shared_mask is None else stowage.shared_mask
        if stowage.reserved_mask:
            text = f"{counted(stowage.reserved_mask.bit_count(), 'CPU')}: {format_mask(stowage.reserved_mask)}"
            entries.append((RESERVED, "reserved", text))
        entries.append((SHARED, "shared", f"{counted(shared.bit_count(), 'CPU')}: {format_mask(shared) or 'none'}"))
        yield ""
        loose = shared & self.machine.isolated_mask
        width = min(max(len(name) for _, name, _ in entries), 48)
        for shown, name, text in entries:
            yield f" {shown}  {name:<{width}}  {text}"
        if loose:
            yield f"warning: the shared pool has isolated CPUs ({format_mask(loose)}): the kernel does not spread threads over them"

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color else text


def node_facts(node: NUMANode) -> list[str]:
    """Memory and huge pages of a node, in words."""
    facts = [size_text(node.memory_bytes) if node.memory_known else "memory not shown"]
    facts += [f"{page_text(size)} pages: {pages}" for size, pages in node.hugepages.items() if pages]
    return facts


def fold(text: str, width: int, indent: str) -> list[str]:
    """The text in lines of at most ``width``, broken at blanks; further lines are indented."""
    lines: list[str] = []
    while len(text) > width:
        at = text.rfind(" ", len(indent), width)
        at = width if at <= len(indent) else at
        lines.append(text[:at].rstrip())
        text = indent + text[at:].lstrip()
    return [*lines, text]
