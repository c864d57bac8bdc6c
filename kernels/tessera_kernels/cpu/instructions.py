"""Instructions that Numba does not offer, as functions for compiled code: atomics, bit casts, the spin-loop hint.

They are written as LLVM IR through Numba's `intrinsic`. Addresses are plain integers; nothing is bounds-checked.
The int8 code needs AVX-512 VNNI (Intel since Ice Lake, AMD since Zen 4); `available` tells whether this processor has
it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from tessera_kernels.cpu import compiled

LANES = 16
"""32-bit elements of a 512-bit vector."""
REQUIRED_FEATURES = ("f16c", "avx512f", "avx512bw", "avx512vl", "avx512vnni")


@cache
def available() -> bool:
    """Whether this processor has `REQUIRED_FEATURES`, and Numba is installed to use them."""
    if not compiled.available():
        return False
    features = import_module("llvmlite.binding").get_host_cpu_features()
    return all(features.get(name, False) for name in REQUIRED_FEATURES)


def numba_types() -> Any:
    """The module `numba.types`."""
    return import_module("numba").types


def ir() -> Any:
    """The module `llvmlite.ir`, which writes LLVM IR."""
    return import_module("llvmlite.ir")


def intrinsic(function: Callable[..., Any]) -> Any:
    """`numba.extending.intrinsic`, or the function unchanged where Numba is not installed."""
    if not compiled.available():
        return function
    return import_module("numba.extending").intrinsic(function)


@intrinsic
def bitcast_float32(_context: Any, _bits: Any) -> Any:
    """The float32 whose bits are those of an int32."""
    types = numba_types()

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir().FloatType())

    return types.float32(types.int32), generate


@intrinsic
def fetch_add(_context: Any, _address: Any, _value: Any) -> Any:
    """Atomically add to the int64 at an address (sequentially consistent); returns the value before."""
    types = numba_types()

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir().IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.intp, types.int64), generate


@intrinsic
def atomic_load(_context: Any, _address: Any) -> Any:
    """Atomically load the int64 at an address (acquire), which other threads write to."""
    types = numba_types()

    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir().IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.intp), generate


@intrinsic
def pause(_context: Any) -> Any:
    """The x86 `pause` instruction, which tells the processor that a loop spins."""
    types = numba_types()

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        nothing = ir().VoidType()
        function = builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), ir().FunctionType(nothing, []))
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), generate
