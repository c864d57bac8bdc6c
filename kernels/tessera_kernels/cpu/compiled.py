"""CPU kernels compiled by Numba (LLVM) for the processor they run on: one call where torch needs ten.

A decode step on a CPU is some thousand operations on a few kilobytes each, and torch's overhead of 1 to 5 µs for each
operation is most of the step. Compiled code is cached on disk (in `NUMBA_CACHE_DIR`, else beside the source or in the
user's cache folder), so only the first start compiles. Without Numba the references run. Knows no op.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

numba: Any = import_module("numba") if find_spec("numba") else None

REDUCTIONS = {"reassoc", "contract", "arcp", "nsz"}
"""Fast-math flags for functions with sums: any order of addition, fused multiply-add. `nnan` and `ninf`, which would
hide NaN and infinity, are never among them."""
ELEMENTWISE = {"contract"}
"""Fast-math flags for functions that compute each element by itself: an element has the same bits at every position."""


def available() -> bool:
    """Whether Numba is installed, so that compiled kernels can run."""
    return numba is not None


def compiled(fastmath: set[str], *, cached: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that compiles a function at its first call, for the argument types of that call.

    The function reads and fills NumPy arrays and releases the interpreter lock. Division by zero gives infinity or NaN.

    Args:
        fastmath: LLVM's fast-math flags, `REDUCTIONS` or `ELEMENTWISE`.
        cached: whether compiled code is cached on disk. Numba's cache key is the function's own source file (and its
            closure), so a function that calls code of other files must have a checksum of them in its closure.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if numba is None:
            return function
        options = {"nogil": True, "fastmath": fastmath, "error_model": "numpy"}
        try:
            dispatcher: Callable[..., Any] = numba.njit(cache=cached, **options)(function)
        except RuntimeError:  # no folder can be written for the cache: a read-only installation without a home
            dispatcher = numba.njit(**options)(function)
        return dispatcher

    return decorate


subroutine = partial(compiled, cached=False)
"""`compiled` for a function that only compiled functions call: its code is cached as part of theirs."""
