"""Instructions that NumPy has no words for, as functions for compiled code: atomics, and numbers as bits.

Written in LLVM's own language through Numba's `intrinsic`. Addresses are plain integers; nothing is checked.
Needs AVX-512 VNNI (Intel since Ice Lake, AMD since Zen 4); `available` says whether this processor has it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from tessera_kernels.cpu import compiled

LANES = 16
"""32-bit numbers in a vector."""
NEEDED = ("f16c", "avx512f", "avx512bw", "avx512vl", "avx512vnni")


@cache
def available() -> bool:
    """Whether this processor has the instructions, and Numba is here to use them."""
    if not compiled.available():
        return False
    features = import_module("llvmlite.binding").get_host_cpu_features()
    return all(features.get(name, False) for name in NEEDED)


def numba_types() -> Any:
    """Numba's types."""
    return import_module("numba").types


def ir() -> Any:
    """What LLVM's language is written with."""
    return import_module("llvmlite.ir")


def intrinsic(function: Callable[..., Any]) -> Any:
    """`numba.extending.intrinsic`, or the function itself where there is no Numba and nothing is compiled."""
    if not compiled.available():
        return function
    return import_module("numba.extending").intrinsic(function)


@intrinsic
def float_of_bits(_context: Any, _bits: Any) -> Any:
    """The float32 that 32 bits are."""
    types = numba_types()

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir().FloatType())

    return types.float32(types.int32), generate


@intrinsic
def fetch_add(_context: Any, _address: Any, _value: Any) -> Any:
    """Add to an int64 at an address that other threads see; returns what was there."""
    types = numba_types()

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir().IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.intp, types.int64), generate


@intrinsic
def load_shared(_context: Any, _address: Any) -> Any:
    """An int64 at an address that other threads write to."""
    types = numba_types()

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir().IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.intp), generate


@intrinsic
def relax(_context: Any) -> Any:
    """Tell the processor that this is a loop that waits."""
    types = numba_types()

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        nothing = ir().VoidType()
        pause = builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), ir().FunctionType(nothing, []))
        builder.call(pause, [])
        return context.get_dummy_value()

    return types.void(), generate
