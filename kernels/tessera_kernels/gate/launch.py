"""How an op describes its kernels to those that compile them without running them: the compile gate and the tuner.

Every folder with a `triton.py` has a `launches.py` with `launches()`, which yields each kernel with every configuration
that its launcher may choose. Imports Triton's types only by name, so it can be read without Triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Launch:
    """A kernel and a configuration of it.

    Attributes:
        name: unique within the op, for people: what is special about it, as in `decode bf16 D128`.
        kernel: the function under `triton.jit`.
        signature: Triton's type of every argument that is not a constant, as in `{"p_x": "*bf16", "count": "i32"}`.
        constants: values of the `tl.constexpr` arguments.
        num_warps: of a program.
        num_stages: of software pipelines.
        registers: the most that a thread is given (Triton's `maxnreg`), 0: as many as the compiler likes.
        matrix: whether it multiplies with matrix units; the gate looks for their instructions.
        tuned: whether a tuned table or the heuristic chooses it, so that registers must not spill.
        aligned: names of pointers and sizes that are multiples of 16, as the launcher guarantees.
        minimum: the oldest CUDA architecture that it is launched on: 80, or 89 for float8.
        amd: whether it is launched on AMD's GPUs.
        narrow: why its tiles are too small for Hopper's warp-group instructions (they need 64 rows); empty when they
            are not, and then the gate demands them.
        only: names of the chips that it is launched on, where a launcher chooses by chip; empty: all.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 2
    registers: int = 0
    matrix: bool = False
    tuned: bool = True
    aligned: frozenset[str] = field(default_factory=frozenset)
    minimum: int = 80
    amd: bool = True
    narrow: str = ""
    only: frozenset[str] = field(default_factory=frozenset)
