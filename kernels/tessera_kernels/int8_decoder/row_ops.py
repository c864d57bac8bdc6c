"""What happens to one row on its own: norm, rounding, rotary embedding, activation. In compiled code.

A row's result is the same bits whatever stands beside it.
"""
# Compiled functions have no types that Python could check.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from tessera_kernels.cpu import vector_loops
from tessera_kernels.cpu.compiled import ELEMENTWISE, REDUCTIONS, subroutine
from tessera_kernels.cpu.instructions import LANES, float_of_bits
from tessera_kernels.int8_decoder.attention_blocks import HALF, SINGLE
from tessera_kernels.int8_linear.weight import LEVELS

_LEVELS, _SMALLEST = np.float32(LEVELS), np.float32(1e-30)
"""Of magnitudes; the step of a row that has no larger one is so small that its numbers become zero."""
_round_group, _rotate_heads = vector_loops.round_group(LEVELS, float(_SMALLEST)), vector_loops.rotate_heads()
_store_halves, _store_halves_apart = vector_loops.store_halves(apart=False), vector_loops.store_halves(apart=True)
_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY, _LEAST_WORD, _NONE = np.int32(0x7F800000), np.int32(-0x80000000), np.float32(np.nan)
_LEAST_NUMBER = np.float32(-np.inf)
PART = 1024
"""Numbers of which the largest is looked for at once."""
_LOG2_E, _LN2_HIGH, _LN2_LOW = (
    np.float32(number) for number in (vector_loops.LOG2_E, vector_loops.LN2_HIGH, vector_loops.LN2_LOW)
)
_P0, _P1, _P2, _P3, _P4, _P5 = (np.float32(number) for number in vector_loops.POLYNOMIAL)
_LEAST, _MOST = np.float32(vector_loops.LEAST), np.float32(vector_loops.MOST)
_ONE, _TWO = np.float32(1), np.float32(2)
_GELU_SCALE, _GELU_CUBE = np.float32(0.7978845608028654), np.float32(0.044715)


@subroutine(ELEMENTWISE)
def exp(x):
    """e^x within two units in the last place, for numbers from -87 to 88 and clamped outside; NaN stays."""
    if x < _LEAST:  # noqa: PLR1730 (a NaN must stay)
        x = _LEAST
    if x > _MOST:  # noqa: PLR1730
        x = _MOST
    whole = np.rint(x * _LOG2_E)
    rest = x - whole * _LN2_HIGH
    rest = rest - whole * _LN2_LOW
    value = _P0
    value = value * rest + _P1
    value = value * rest + _P2
    value = value * rest + _P3
    value = value * rest + _P4
    value = value * rest + _P5
    value = value * rest * rest + rest + _ONE
    return value * float_of_bits((np.int32(whole) + np.int32(127)) << np.int32(23))


@subroutine(REDUCTIONS)
def norm(row_C, weight_C, epsilon, out_C):
    """Root-mean-square norm; `out` may be `row`."""
    total = np.float32(0)
    for c in range(len(row_C)):
        total += row_C[c] * row_C[c]
    scale = _ONE / np.sqrt(total / np.float32(len(row_C)) + epsilon)
    for c in range(len(row_C)):
        out_C[c] = row_C[c] * scale * weight_C[c]


@subroutine(ELEMENTWISE)
def quantize(row_K, smoothing_K, outlier_columns_M, group, work_K, out_K, exact_M, step_G):
    """A row as unsigned bytes around 128, those of `outlier_columns_M` in float.

    Args:
        row_K: float32. smoothing_K: what it is multiplied with.
        outlier_columns_M: int32, which values are kept as they are, in `exact_M`.
        group: values that share a step.
        work_K: float32, overwritten.
        out_K: uint8.
        exact_M: float32.
        step_G: float32, the steps; NaN if a value is none.
    """
    width = len(row_K)
    for k in range(width):
        work_K[k] = row_K[k] * smoothing_K[k]
    bad = False
    for m in range(len(outlier_columns_M)):
        value = row_K[outlier_columns_M[m]]
        exact_M[m] = value
        bad |= not np.isfinite(value)
        work_K[outlier_columns_M[m]] = 0
    # In whole vectors, of which inputs and groups are made (`layout.fits`).
    work, out = work_K.ctypes.data, out_K.ctypes.data
    for g in range(len(step_G)):
        begin, end = g * group, min(width, (g + 1) * group)
        step = step_G[g:].ctypes.data
        _round_group(work + begin * SINGLE, (end - begin) // LANES, out + begin, step, np.int64(bad))


@subroutine(ELEMENTWISE)
def rotate(heads_W, dim, cosine_D, sine_D):
    """Rotary embedding in place of heads side by side, the second half of a head being the first one's other coordinate
    (GPT-NeoX's way)."""
    half, count = dim // 2, len(heads_W) // dim
    if half % LANES == 0:
        _rotate_heads(heads_W.ctypes.data, count, cosine_D.ctypes.data, sine_D.ctypes.data, half // LANES)
        return
    for head in range(count):
        for d in range(head * dim, head * dim + half):
            low, high = heads_W[d], heads_W[half + d]
            of_low, of_high = d - head * dim, d - head * dim + half
            heads_W[d] = low * cosine_D[of_low] - high * sine_D[of_low]
            heads_W[half + d] = high * cosine_D[of_high] + low * sine_D[of_high]


@subroutine(ELEMENTWISE)
def gate_silu(both_2F, out_F):
    """silu(gate) · up of a row with the gate's values first."""
    width = len(out_F)
    for f in range(width):
        gate = both_2F[f]
        out_F[f] = gate / (_ONE + exp(-gate)) * both_2F[width + f]


@subroutine(ELEMENTWISE)
def gate_gelu(both_2F, out_F):
    """gelu(gate) · up with gelu by tanh (Hendrycks & Gimpel 2016)."""
    width = len(out_F)
    for f in range(width):
        gate = both_2F[f]
        inner = _GELU_SCALE * (gate + _GELU_CUBE * gate * gate * gate)
        # tanh(u) = 1 - 2 / (1 + e^2u), so (1 + tanh(u)) / 2 = 1 - 1 / (1 + e^2u).
        out_F[f] = gate * (_ONE - _ONE / (_ONE + exp(_TWO * inner))) * both_2F[width + f]


@subroutine(ELEMENTWISE)
def store(heads_W, stored_HD):
    """Write heads of keys or values, which lie side by side, to the cache: as they are, or as float16 (int16)."""
    heads, dim = stored_HD.shape
    if stored_HD.itemsize == SINGLE:
        for head in range(heads):
            for d in range(dim):
                stored_HD[head, d] = heads_W[head * dim + d]
        return
    begin, vectors, stored = heads_W.ctypes.data, dim // LANES, stored_HD.ctypes.data
    if stored_HD.strides[1] == HALF:
        _store_halves(begin, heads, vectors, stored, stored_HD.strides[0], HALF)
    else:
        _store_halves_apart(begin, heads, vectors, stored, stored_HD.strides[0], stored_HD.strides[1])


@subroutine(ELEMENTWISE)
def store_rounded(heads_W, stored_HD, scale_H):
    """Write heads of keys or values to the cache in 8 bits, each with a step of its own. `heads_W` is overwritten."""
    heads, dim = stored_HD.shape
    for head in range(heads):
        head_D = heads_W[head * dim : (head + 1) * dim]
        bits_D = head_D.view(np.int32)
        largest_bits = np.int32(0)
        for d in range(dim):
            largest_bits = max(largest_bits, bits_D[d] & _MAGNITUDE)
        # A NaN must stay, in the step: it is how an overflow is seen.
        step = float_of_bits(largest_bits) / _LEVELS
        scale_H[head] = step
        factor = _ONE / max(step, _SMALLEST)
        for d in range(dim):
            head_D[d] = np.rint(head_D[d] * factor)
        for d in range(dim):
            stored_HD[head, d] = np.int8(np.int32(head_D[d]))


@subroutine(ELEMENTWISE)
def likeliest(row_V, begin, end):
    """Place of the largest number of `row_V[begin:end]`, the first of equal ones; and that, NaN where any is none.

    0.0 is larger than -0.0 here. Of no numbers the largest is -inf: there may be more threads than blocks of outputs.
    """
    if begin >= end:
        return begin, _LEAST_NUMBER
    bits_V = row_V.view(np.int32)
    best, of_part, size = _LEAST_WORD, begin, np.int32(0)
    for first in range(begin, end, PART):
        largest = _LEAST_WORD
        for at in range(first, min(end, first + PART)):
            bits = bits_V[at]
            # In the numbers' order, but for NaN.
            largest = max(largest, bits ^ ((bits >> np.int32(31)) & _MAGNITUDE))
            size = max(size, bits & _MAGNITUDE)
        if largest > best:
            best, of_part = largest, first
    value = float_of_bits(best ^ ((best >> np.int32(31)) & _MAGNITUDE))
    if size > _INFINITY:
        return of_part, _NONE
    place = of_part
    while row_V[place] != value:
        place += 1
    return place, value
