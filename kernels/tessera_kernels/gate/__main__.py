"""The compile gate compiles every kernel, with every launch configuration that it may have, for every chip.

`python -m tessera_kernels.gate [--ops a,b] [--targets sm_90] [--tuned] [--sample] [--jobs N] [--keep FILE] [--table
FILE]` needs no GPU: Triton's wheel contains the assemblers. A launch fails if it does not compile, uses more shared
memory than the chip has, multiplies matrices without matrix instructions (on Hopper those of warp groups, unless the
launch says why not), or is tuned and spills registers. Runs no kernel.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import cache
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from tessera_kernels.bench.results import code_key
from tessera_kernels.chips import CHIPS, Chip
from tessera_kernels.gate.launch import Launch
from tessera_kernels.gate.progress import GateProgress
from tessera_kernels.gate.table import MATRIX, CompiledLaunch, table

_OPS = Path(__file__).parents[1]
# Instructions to count in PTX and in AMD's assembly: name in the table -> regular expression of the mnemonic.
_PTX = {
    "wgmma": r"wgmma\.mma_async",
    "tcgen05": r"tcgen05\.mma",
    "mma": r"(?:mma\.sync|wmma\.mma)",
    "ld": r"ld\.global",
    "cp.async": r"cp\.async\.c[ag]\.shared",
    "st": r"st\.global",
}
_GCN = {
    "mfma": r"v_mfma",
    "ld": r"(?:global|buffer|flat)_load",
    "st": r"(?:global|buffer|flat)_store",
}


def ops() -> list[str]:
    """Names of the ops that have a `launches.py`."""
    return sorted(path.parent.name for path in _OPS.glob("*/launches.py"))


@cache
def launches_of(op: str) -> dict[str, Launch]:
    """The launches of an op by name.

    Raises:
        ValueError: the op is unknown, or two of its launches have the same name.
    """
    if op not in ops():
        raise ValueError(f"no op {op!r} says how it is launched; there are {', '.join(ops())}")
    found: dict[str, Launch] = {}
    describe: Callable[[], Iterable[Launch]] = import_module(f"tessera_kernels.{op}.launches").launches
    for launch in describe():
        if launch.name in found:
            raise ValueError(f"two launches of {op} are named {launch.name!r}")
        found[launch.name] = launch
    return found


def serves(launch: Launch, chip: Chip) -> bool:
    """Whether the launcher may use this launch on that chip."""
    if launch.only and chip.name not in launch.only:
        return False
    return launch.amd if chip.backend == "hip" else chip.capability >= launch.minimum


def compile_launch(op: str, name: str, target: str) -> CompiledLaunch:
    """Compile one launch for one chip, in a process that `prepare_process` has taken out of the interpreter."""
    launch, chip, started = launches_of(op)[name], CHIPS[target], perf_counter()
    try:
        kernel = _compile(launch, chip)
    except Exception as error:  # noqa: BLE001 - any exception of the compiler is a fault of the launch
        return CompiledLaunch(op, name, target, faults=(_describe_error(error),))
    if chip.backend == "hip":
        registers, spilled = _amd_usage(kernel.asm["amdgcn"])
        mix = _count(kernel.asm["amdgcn"], _GCN)
    else:
        registers, spilled = _cuda_usage(kernel.asm["cubin"])
        mix = _count(kernel.asm["ptx"], _PTX)
    built = CompiledLaunch(op, name, target, registers, spilled, kernel.metadata.shared, mix, perf_counter() - started)
    return CompiledLaunch(**{**asdict(built), "faults": tuple(_faults(launch, chip, built))})


def _describe_error(error: BaseException) -> str:
    # Triton wraps the error in one for each calling function; the innermost one has the reason.
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' / '.join(lines[-3:])[:400]}"


def _compile(launch: Launch, chip: Chip) -> Any:
    import triton  # noqa: PLC0415 - the parent process must not decide about the interpreter
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    names = launch.kernel.arg_names
    given = set(launch.signature) | set(launch.constants)
    if given != set(names):
        raise ValueError(f"the launch misses {sorted(set(names) - given)} and has unknown {sorted(given - set(names))}")
    signature = {name: launch.signature.get(name, "constexpr") for name in names}
    aligned: dict[tuple[int], list[list[Any]]] = {
        (names.index(name),): [["tt.divisibility", 16]] for name in sorted(launch.aligned)
    }
    source = ASTSource(launch.kernel, signature, dict(launch.constants), aligned)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    if launch.registers:
        options["maxnreg"] = launch.registers
    return triton.compile(source, target=GPUTarget(chip.backend, chip.arch, chip.warp), options=options)


def _cuda_usage(cubin: bytes) -> tuple[int, int]:
    import triton  # noqa: PLC0415

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"

    def dump(option: str) -> str:
        return subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", dump("--dump-resource-usage")))
        registers, stack = int(usage["REG"]), int(usage["STACK"]) + int(usage["LOCAL"])
        # A stack may also serve the slow path of a division; only stores to it are spilled registers.
        stores = re.findall(r"\bSTL(?:\.(64|128))?\b", dump("--dump-sass")) if stack else []
    return registers, sum(int(bits or 32) // 8 for bits in stores)


def _amd_usage(assembly: str) -> tuple[int, int]:
    def number(key: str) -> int:
        found = re.search(rf"\.{key}:\s+(\d+)", assembly)
        return int(found[1]) if found else 0

    # The count includes the accumulator registers of matrix instructions.
    return number("vgpr_count"), 4 * number("vgpr_spill_count")


def _count(assembly: str, kinds: dict[str, str]) -> dict[str, int]:
    found = {
        name: len(re.findall(rf"^\s*(?:@\S+\s+)?{begin}", assembly, re.MULTILINE)) for name, begin in kinds.items()
    }
    return {name: count for name, count in found.items() if count}


def _faults(launch: Launch, chip: Chip, built: CompiledLaunch) -> Iterator[str]:
    if built.shared > chip.shared:
        yield f"takes {built.shared} bytes of shared memory, {chip.name} has {chip.shared}"
    if launch.tuned and built.spilled:
        yield f"spills {built.spilled} bytes a thread"
    if launch.matrix and not any(built.mix.get(kind) for kind in MATRIX):
        yield "multiplies without matrix instructions"
    elif launch.matrix and chip.name == "sm_90" and not launch.narrow and not built.mix.get("wgmma"):
        yield "multiplies without wgmma, and does not say why its tiles are too narrow for it"


def tasks(
    chosen: Iterable[str], targets: Iterable[str], *, tuned: bool = False, sample: bool = False, only: str = ""
) -> list[tuple[str, str, str]]:
    """Select what to compile.

    Args:
        chosen: names of ops.
        targets: names of chips.
        tuned: only launches that a tuned table or a heuristic chooses.
        sample: only the first launch of each kernel on each chip.
        only: only launches with this text in their name.

    Returns:
        (op, launch, target) of each launch to compile.
    """
    found = []
    for op in chosen:
        for target in targets:
            seen: set[Any] = set()
            for name, launch in launches_of(op).items():
                wanted = only in name and (launch.tuned or not tuned) and serves(launch, CHIPS[target])
                if wanted and not (sample and launch.kernel in seen):
                    seen.add(launch.kernel)
                    found.append((op, name, target))
    return found


def prepare_process() -> None:
    """Turn Triton's interpreter off for this process, so that it compiles. Call it before Triton is imported."""
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    warnings.filterwarnings("ignore")


def _compile_all(work: list[tuple[str, str, str]], jobs: int) -> Iterator[CompiledLaunch]:
    if jobs == 1:
        yield from (compile_launch(*task) for task in work)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=prepare_process) as pool:
        for pending in [pool.submit(compile_launch, *task) for task in work]:
            yield pending.result()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 1 if a launch fails."""
    parser = argparse.ArgumentParser(prog="python -m tessera_kernels.gate", description=__doc__)
    parser.add_argument("--ops", default="", help="only these ops, separated by commas")
    parser.add_argument("--targets", default=",".join(CHIPS), help=f"chips to compile for, of {', '.join(CHIPS)}")
    parser.add_argument("--tuned", action="store_true", help="only launches that a tuned table or a heuristic chooses")
    parser.add_argument("--only", default="", help="only launches with this in their name")
    parser.add_argument("--sample", action="store_true", help="only the first launch of each kernel on each chip")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes that compile")
    parser.add_argument(
        "--keep", type=Path, help="continue from the results of the same code in this file, and add to it"
    )
    parser.add_argument("--table", type=Path, help="write a Markdown table here")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each launch and chip")
    options = parser.parse_args(arguments)
    targets = [name for name in options.targets.split(",") if name]
    unknown = [name for name in targets if name not in CHIPS]
    if unknown:
        parser.error(f"unknown targets {', '.join(unknown)}; there are {', '.join(CHIPS)}")
    prepare_process()
    chosen = [name for name in options.ops.split(",") if name] or ops()
    try:
        work = tasks(chosen, targets, tuned=options.tuned, sample=options.sample, only=options.only)
    except ValueError as error:
        parser.error(str(error))
    progress = GateProgress(options.keep, code_key)
    for built in _compile_all([task for task in work if task not in progress], options.jobs):
        progress.add(built)
        if options.json:
            sys.stdout.write(json.dumps(asdict(built)) + "\n")
        elif built.faults:
            sys.stdout.write(f"{built.op} / {built.name} / {built.target}: {'; '.join(built.faults)}\n")
        sys.stdout.flush()
    results = [progress[task] for task in work]
    failed = sum(bool(built.faults) for built in results)
    if options.table:
        options.table.parent.mkdir(parents=True, exist_ok=True)
        options.table.write_text(table(results, targets), encoding="utf-8")
    seconds = sum(built.seconds for built in results)
    sys.stderr.write(f"{len(results)} compiled in {seconds:.0f} s of work, {failed} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
