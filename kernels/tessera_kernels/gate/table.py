"""Results of the compile gate, and a Markdown table of them: a summary of each op, then a row for each launch.

Knows nothing of how launches are compiled, nor which results are faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MATRIX = ("wgmma", "tcgen05", "mma", "mfma")
"""Matrix instructions: of Hopper, of Blackwell, of CUDA chips before them, and of AMD."""


@dataclass(frozen=True)
class CompiledLaunch:
    """Result of compiling one launch for one chip.

    Attributes:
        op: name of the op.
        name: name of the launch.
        target: name of the chip.
        registers: registers of a thread.
        spilled: bytes of registers that each thread spills to memory.
        shared: bytes of shared memory of a program.
        mix: number of instructions of each kind.
        seconds: time to compile.
        faults: reasons why the gate rejects the launch; empty if it passes.
    """

    op: str
    name: str
    target: str
    registers: int = 0
    spilled: int = 0
    shared: int = 0
    mix: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    faults: tuple[str, ...] = ()


def table(results: Iterable[CompiledLaunch], targets: Sequence[str]) -> str:
    """A Markdown table of all ops, then a section for each op with a row for each launch and a column for each chip."""
    found = {(built.op, built.name, built.target): built for built in results}
    ops = list(dict.fromkeys(op for op, _, _ in found))
    lines = [
        "# What the kernels compile to",
        "",
        "Written by `python -m tessera_kernels.gate --table FILE`; nothing here ran on a GPU.",
        "",
        "Each op on each chip: how many launches · most registers of a thread · most shared memory of a program · with",
        "which instructions matrices are multiplied.",
        "",
        *_head("op", targets),
    ]
    for op in ops:
        cells = [_summary([b for b in found.values() if (b.op, b.target) == (op, target)]) for target in targets]
        lines.append(f"| [{op}](#{op}) | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Each launch: registers of a thread · KiB of shared memory · instructions (of matrices, then loads,",
        "asynchronous copies and stores of global memory), and what is spilled, where anything is. Empty: not launched",
        "on that chip.",
    ]
    for op in ops:
        lines += ["", f"## {op}", "", *_head("launch", targets)]
        for name in dict.fromkeys(name for of, name, _ in found if of == op):
            cells = [_cell(found.get((op, name, target))) for target in targets]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _head(first: str, targets: Sequence[str]) -> list[str]:
    return [f"| {first} | " + " | ".join(targets) + " |", "|---" * (len(targets) + 1) + "|"]


def _summary(built: list[CompiledLaunch]) -> str:
    if not built:
        return ""
    registers, shared = max(one.registers for one in built), max(one.shared for one in built)
    kinds = [kind for kind in MATRIX if any(one.mix.get(kind) for one in built)]
    failed = sum(bool(one.faults) for one in built)
    parts = [str(len(built)), f"{registers} r", f"{shared / 1024:.0f} K", *([", ".join(kinds)] if kinds else [])]
    return " · ".join([*parts, *([f"**{failed} FAIL**"] if failed else [])])


def _cell(built: CompiledLaunch | None) -> str:
    if built is None:
        return ""
    parts = [f"{built.registers} r", f"{built.shared / 1024:.0f} K"] if built.registers else []
    mix = ", ".join(f"{count} {kind}" for kind, count in built.mix.items())
    spilled = [f"**spills {built.spilled} B**"] if built.spilled else []
    faults = ["**FAILS** " + "; ".join(built.faults).replace("|", "/")] if built.faults else []
    return " · ".join([*parts, *([mix] if mix else []), *spilled, *faults])
