"""Kernels for a CPU, compiled by Numba (LLVM) for the processor they run on: one call where torch needs ten.

A decode step on a CPU is some thousand operations on a few kilobytes each, and what torch takes to start one (1 to
5 µs) is most of the step. Compiled code is kept on disk (`NUMBA_CACHE_DIR`, else beside the source or in the user's
cache), so only the first start compiles. Without Numba the references run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

numba: Any = import_module("numba") if find_spec("numba") else None

REDUCTIONS = {"reassoc", "contract", "arcp", "nsz"}
"""Freedoms of the compiler where there are sums: any order, fused products. Never those that would hide NaN."""
ELEMENTWISE = {"contract"}
"""Freedoms where each element is on its own: the same bits wherever it stands."""


def available() -> bool:
    """Whether compiled kernels can run here."""
    return numba is not None


def compiled(freedoms: set[str], *, cached: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function at its first call for the types it is called with. It takes and fills NumPy arrays, no GIL.

    Args:
        freedoms: of the compiler.
        cached: on disk, as long as the function's own file stays the same; so not where it uses code of other files.
    """

    def compile_lazily(function: Callable[..., Any]) -> Callable[..., Any]:
        if numba is None:
            return function
        options = {"nogil": True, "fastmath": freedoms, "error_model": "numpy"}
        try:
            made: Callable[..., Any] = numba.njit(cache=cached, **options)(function)
        except RuntimeError:  # there is no place to keep compiled code: a read-only installation without a home
            made = numba.njit(**options)(function)
        return made

    return compile_lazily


subroutine = partial(compiled, cached=False)
"""For a function that is called by compiled ones: it is kept with those."""
