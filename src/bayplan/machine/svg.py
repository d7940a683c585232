"""A machine as a picture (SVG): the boxes of :mod:`bayplan.machine.sections` with a square for each thread.

The picture stands alone: no scripts, no fonts or styles from elsewhere, colours for light and dark. Whoever points at a thread
or a device is told its id and holder.
"""

from __future__ import annotations

from html import escape

from bayplan.api.cpuset import format_mask
from bayplan.machine.render import counted, node_facts, size_text
from bayplan.machine.sections import InnerBox, OuterBox, device_name, lay_out
from bayplan.machine.stowage import Stowage
from bayplan.machine.topology import Machine

PALETTE = (
    *("#2f7ed8", "#e07b39", "#3c9d5b", "#c0392b", "#8e5bb5", "#16a3a3", "#d4a017", "#c2559d"),
    *("#5d6d7e", "#7aa33a", "#4052b5", "#a9714b"),
)
"""Holders' colours, used in turn."""
_STYLE = """
text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#1d2733}
.t{font-weight:600}.s{fill:#5b6875;font-size:11px}.l{font-size:10px;fill:#fff;text-anchor:middle;font-weight:600}
.o{fill:#eef2f6;stroke:#b7c3cf}.i{fill:#fff;stroke:#ccd6df}.c{fill:none;stroke:#c3ced9}
.f{fill:#dbe4ec}.r{fill:#9aa7b4}
@media (prefers-color-scheme:dark){svg{background:#12181f}text{fill:#dfe7ee}.s{fill:#93a1ae}.o{fill:#1a222b;stroke:#37434f}
.i{fill:#202a34;stroke:#3a4753}.c{stroke:#46535f}.f{fill:#34414d}.r{fill:#6b7885}}
"""
_THREAD, _GAP, _PAD, _LINE, _LABEL = 14, 5, 10, 17, 44
_WIDTH = 1180
_CORES_A_LINE = 16


def render_svg(machine: Machine, stowage: Stowage | None = None, *, all_devices: bool = False) -> str:
    """The picture of a machine, with holders when ``stowage`` is given."""
    return _Picture(machine, stowage).draw(lay_out(machine, all_devices=all_devices))


class _Picture:
    def __init__(self, machine: Machine, stowage: Stowage | None) -> None:
        self.machine = machine
        self.stowage = stowage or Stowage()
        self.owner = self.stowage.holder_of()
        self.device_owner = self.stowage.device_holders()
        self.parts: list[str] = []

    def draw(self, boxes: list[OuterBox]) -> str:
        machine = self.machine
        words = [machine.name] if machine.name else []
        words += [counted(len(machine.sockets), "socket"), counted(len(machine.numa_nodes), "NUMA node")]
        words += [counted(len(machine.cores), "core"), counted(len(machine.cpus), "CPU")]
        if machine.memory_bytes:
            words.append(size_text(machine.memory_bytes))
        self.text(_PAD, 22, " · ".join(words), "t")
        y, right = 34.0, 400.0
        for box in boxes:
            width, height = self.outer(box, _PAD, y)
            y += height + _PAD
            right = max(right, width)
        y = self.legend(y + 4)
        width, height = right + 2 * _PAD, y + _PAD
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            f'viewBox="0 0 {width:g} {height:g}" role="img">'
        )
        return f"{head}<style>{_STYLE}</style>\n" + "\n".join(self.parts) + "\n</svg>\n"

    def outer(self, box: OuterBox, x: float, y: float) -> tuple[float, float]:
        """Draws an outer box with its inner boxes in as many columns as fit; returns its size."""
        sizes = [self.size(inner) for inner in box.inner]
        widest = max(width for width, _ in sizes)
        columns = max(1, min(len(sizes), int((_WIDTH - _PAD) // (widest + _PAD))))
        columns = -(-len(sizes) // -(-len(sizes) // columns))  # as few rows as possible, evenly filled
        place = len(self.parts)
        top = y + 26
        for start in range(0, len(sizes), columns):
            for column, inner in enumerate(box.inner[start : start + columns]):
                tall = max(height for _, height in sizes[start : start + columns])
                self.inner(inner, x + _PAD + column * (widest + _PAD), top, widest, tall)
            top += max(height for _, height in sizes[start : start + columns]) + _PAD
        width, height = columns * (widest + _PAD) + _PAD, top - y
        title = box.title + (f"  ·  CPUs {format_mask(box.cpus_mask)}" if box.cpus_mask else "")
        self.parts.insert(place, self.rectangle(x, y, width, height, "o", radius=8))
        self.text(x + _PAD, y + 18, title, "t")
        return width, height

    def size(self, box: InnerBox) -> tuple[float, float]:
        """The size that an inner box needs."""
        width = _PAD * 2 + max(len(self.title(box)) * 6.6, 170)
        height = 26.0
        for row in box.rows:
            lines = -(-len(row.cores) // _CORES_A_LINE)
            threads = max(len(cell.threads) for cell in row.cores)
            core = threads * _THREAD + _GAP
            label = _LABEL if row.label else 0
            width = max(width, _PAD * 2 + label + min(len(row.cores), _CORES_A_LINE) * core)
            height += lines * (_THREAD + _GAP) + 2
        for device in box.devices:
            width = max(width, _PAD * 2 + len(device_name(device)) * 6 + 190)
        height += _LINE * (len(box.devices) + bool(box.others))
        return width, height + 6

    def title(self, box: InnerBox) -> str:
        return "  ·  ".join([box.title, *(node_facts(box.node) if box.node else [])])

    def inner(self, box: InnerBox, x: float, y: float, width: float, height: float) -> None:
        self.parts.append(self.rectangle(x, y, width, height, "i", radius=6))
        self.text(x + _PAD, y + 17, self.title(box), "")
        top = y + 26
        for row in box.rows:
            if row.label:
                self.text(x + _PAD, top + 11, row.label, "s")
            left = x + _PAD + (_LABEL if row.label else 0)
            threads = max(len(cell.threads) for cell in row.cores)
            for nth, cell in enumerate(row.cores):
                line, column = divmod(nth, _CORES_A_LINE)
                self.core(cell.threads, left + column * (threads * _THREAD + _GAP), top + line * (_THREAD + _GAP))
            top += -(-len(row.cores) // _CORES_A_LINE) * (_THREAD + _GAP) + 2
        for device in box.devices:
            number = self.device_owner.get(device.address)
            fill = "" if number is None else f' style="fill:{PALETTE[number % len(PALETTE)]}"'
            root = f"  ({device.pcie_root})" if device.pcie_root else ""
            about = "" if number is None else f"<title>{escape(self.stowage.holders[number].name)}</title>"
            self.parts.append(
                f'<rect x="{x + _PAD - 2:g}" y="{top + 2:g}" width="13" height="13" rx="6.5" class="r"{fill}>{about}</rect>'
            )
            if number is not None:
                self.text(x + _PAD + 4.5, top + 12, self.stowage.symbol(number), "l")
            self.text(x + _PAD + 17, top + 12, f"{device.address}  {device_name(device)}{root}", "s")
            top += _LINE
        if box.others:
            self.text(x + _PAD + 17, top + 12, f"+ {counted(box.others, 'other PCI function')}", "s")

    def core(self, threads: tuple[int, ...], x: float, y: float) -> None:
        for position, cpu in enumerate(threads):
            holder = self.owner.get(cpu)
            left = x + position * _THREAD
            about, kind, fill = f"CPU {cpu}", "f", ""
            if holder is not None:
                about += f": {self.stowage.holders[holder].name}"
                fill = f' style="fill:{PALETTE[holder % len(PALETTE)]}"'
            elif self.stowage.reserved_mask >> cpu & 1:
                about, kind = about + ": reserved", "r"
            self.parts.append(
                f'<rect x="{left:g}" y="{y:g}" width="{_THREAD - 1}" height="{_THREAD - 1}" rx="2" class="{kind}"{fill}>'
                f"<title>{escape(about)}</title></rect>"
            )
            if holder is not None:
                self.text(left + (_THREAD - 1) / 2, y + 10, self.stowage.symbol(holder), "l")
        width = len(threads) * _THREAD + 1
        self.parts.append(self.rectangle(x - 1, y - 1, width, _THREAD + 1, "c", radius=3))

    def legend(self, y: float) -> float:
        """Who is who; returns where it ends."""
        entries = [
            (f"fill:{PALETTE[n % len(PALETTE)]}", self.stowage.symbol(n), h) for n, h in enumerate(self.stowage.holders)
        ]
        for style, symbol, holder in entries:
            facts = [holder.name]
            if holder.cpus_mask:
                facts.append(f"{counted(holder.cpus_mask.bit_count(), 'CPU')}: {format_mask(holder.cpus_mask)}")
            if holder.mems_mask:
                facts.append(f"memory on NUMA {format_mask(holder.mems_mask)}")
            facts += [*holder.devices, *([holder.note] if holder.note else [])]
            self.parts.append(f'<rect x="{_PAD}" y="{y:g}" width="13" height="13" rx="2" style="{style}"/>')
            self.text(_PAD + 6.5, y + 10, symbol, "l")
            self.text(_PAD + 20, y + 11, "  ·  ".join(facts), "")
            y += _LINE
        if self.stowage.reserved_mask:
            self.parts.append(f'<rect x="{_PAD}" y="{y:g}" width="13" height="13" rx="2" class="r"/>')
            self.text(_PAD + 20, y + 11, f"reserved  ·  CPUs {format_mask(self.stowage.reserved_mask)}", "")
            y += _LINE
        return y

    def text(self, x: float, y: float, text: str, kind: str) -> None:
        style = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{style} xml:space="preserve">{escape(text)}</text>')

    @staticmethod
    def rectangle(x: float, y: float, width: float, height: float, kind: str, *, radius: int) -> str:
        return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" class="{kind}"/>'
