"""The type by which an op describes its kernels to the compile gate, which compiles them without running them.

Every folder with a `triton.py` has a `launches.py` with `launches()`, which yields each kernel with every launch
configuration that its launcher may choose. This module imports no Triton: types of arguments are given by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Launch:
    """A kernel with one launch configuration.

    Attributes:
        name: unique within the op, for people; says what is special about the launch, as in `decode bf16 D128`.
        kernel: the function under `triton.jit`.
        signature: Triton's type of every argument that is not a constant, as in `{"p_x": "*bf16", "count": "i32"}`.
        constants: values of the `tl.constexpr` arguments.
        num_warps: number of warps of a program.
        num_stages: number of stages of software pipelines.
        registers: upper bound on the registers of a thread (Triton's `maxnreg`); 0 lets the compiler choose.
        matrix: whether the kernel multiplies with matrix units; if so, the gate requires their instructions.
        tuned: whether a tuned table or the heuristic chooses this launch; if so, registers must not spill.
        aligned: names of pointers and sizes that the launcher guarantees to be multiples of 16.
        minimum: the oldest CUDA compute capability that the launcher uses it on: 80, or 89 for float8.
        amd: whether the launcher uses it on GPUs of AMD.
        narrow: why its tiles are too small for Hopper's warp-group instructions, which need 64 rows; if empty, the
            gate requires these instructions.
        only: names of the chips that the launcher uses it on, if it chooses by chip; empty for all chips.
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
