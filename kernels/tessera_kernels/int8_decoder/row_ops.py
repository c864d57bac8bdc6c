"""Operations on one row by itself, as compiled code: norm, quantize, rotary embedding, gates, KV store, argmax.

A row's result has the same bits whatever other rows there are. Knows no layers.
"""
# Compiled functions have no types that Python could check.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from tessera_kernels.cpu import vector_loops
from tessera_kernels.cpu.compiled import ELEMENTWISE, REDUCTIONS, subroutine
from tessera_kernels.cpu.instructions import LANES, bitcast_float32
from tessera_kernels.cpu.llvm_ir import F16_BYTES, F32_BYTES
from tessera_kernels.int8_linear.weight import LEVELS

_LEVELS, _SMALLEST = np.float32(LEVELS), np.float32(1e-30)
"""Largest quantized magnitude; and the smallest magnitude that a scale is made of, so that zeros stay zeros."""
_quantize_group, _rotate_heads = vector_loops.quantize_group(LEVELS, float(_SMALLEST)), vector_loops.rotate_heads()
_store_float16, _store_float16_strided = (
    vector_loops.store_float16(strided=False),
    vector_loops.store_float16(strided=True),
)
_MAGNITUDE_MASK = np.int32(0x7FFFFFFF)
_INFINITY_BITS, _MIN_INT32 = np.int32(0x7F800000), np.int32(-0x80000000)
_NAN, _MINUS_INFINITY = np.float32(np.nan), np.float32(-np.inf)
ARGMAX_CHUNK = 1024
"""Elements whose maximum `argmax` finds in one loop, which the compiler vectorizes; the index is looked for in the best
chunk alone."""
_LOG2_E, _LN2_HIGH, _LN2_LOW = (
    np.float32(value) for value in (vector_loops.LOG2_E, vector_loops.LN2_HIGH, vector_loops.LN2_LOW)
)
_P0, _P1, _P2, _P3, _P4, _P5 = (np.float32(value) for value in vector_loops.POLYNOMIAL)
_EXP_MIN, _EXP_MAX = np.float32(vector_loops.EXP_MIN), np.float32(vector_loops.EXP_MAX)
_ONE, _TWO = np.float32(1), np.float32(2)
_GELU_SCALE, _GELU_CUBE = np.float32(0.7978845608028654), np.float32(0.044715)


@subroutine(ELEMENTWISE)
def exp(x):
    """e^x of a float32 within two units in the last place; x is clamped to -87 … 88, and NaN stays NaN."""
    if x < _EXP_MIN:  # noqa: PLR1730 (`max` would not keep NaN)
        x = _EXP_MIN
    if x > _EXP_MAX:  # noqa: PLR1730
        x = _EXP_MAX
    exponent = np.rint(x * _LOG2_E)
    rest = x - exponent * _LN2_HIGH
    rest = rest - exponent * _LN2_LOW
    value = _P0
    value = value * rest + _P1
    value = value * rest + _P2
    value = value * rest + _P3
    value = value * rest + _P4
    value = value * rest + _P5
    value = value * rest * rest + rest + _ONE
    return value * bitcast_float32((np.int32(exponent) + np.int32(127)) << np.int32(23))


@subroutine(REDUCTIONS)
def norm(row_C, weight_C, epsilon, out_C):
    """RMSNorm of a float32 row (Zhang & Sennrich 2019); `out_C` may be `row_C`."""
    total = np.float32(0)
    for c in range(len(row_C)):
        total += row_C[c] * row_C[c]
    scale = _ONE / np.sqrt(total / np.float32(len(row_C)) + epsilon)
    for c in range(len(row_C)):
        out_C[c] = row_C[c] * scale * weight_C[c]


@subroutine(ELEMENTWISE)
def quantize(row_K, smoothing_K, outlier_columns_M, group, scratch_K, out_K, outliers_M, scale_G):
    """Quantize a row of activations to unsigned bytes with zero point 128; outlier columns stay float32.

    Args:
        row_K: float32.
        smoothing_K: float32, factors of the inputs (SmoothQuant) that are not outliers.
        outlier_columns_M: int32, inputs that are copied to `outliers_M`, and count as zero in the bytes.
        group: inputs that share a scale.
        scratch_K: float32, overwritten.
        out_K: uint8, written.
        outliers_M: float32, written.
        scale_G: float32, written: the scale of each group; NaN if a value of the group or an outlier is not finite.
    """
    width = len(row_K)
    for k in range(width):
        scratch_K[k] = row_K[k] * smoothing_K[k]
    not_finite = False
    for m in range(len(outlier_columns_M)):
        value = row_K[outlier_columns_M[m]]
        outliers_M[m] = value
        not_finite |= not np.isfinite(value)
        scratch_K[outlier_columns_M[m]] = 0
    # Inputs and groups are whole vectors (`layout.fits`).
    scratch, out = scratch_K.ctypes.data, out_K.ctypes.data
    for g in range(len(scale_G)):
        begin, end = g * group, min(width, (g + 1) * group)
        scale = scale_G[g:].ctypes.data
        _quantize_group(scratch + begin * F32_BYTES, (end - begin) // LANES, out + begin, scale, np.int64(not_finite))


@subroutine(ELEMENTWISE)
def rotate(heads_W, dim, cosine_D, sine_D):
    """Apply the rotary embedding to adjacent heads of `dim` elements in place.

    Element d of a head is rotated with element d + D / 2, as in GPT-NeoX.
    """
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
    """silu(gate) · up; the row has the gate's elements first, then those of up."""
    width = len(out_F)
    for f in range(width):
        gate = both_2F[f]
        out_F[f] = gate / (_ONE + exp(-gate)) * both_2F[width + f]


@subroutine(ELEMENTWISE)
def gate_gelu(both_2F, out_F):
    """gelu(gate) · up with the tanh approximation of GELU (Hendrycks & Gimpel 2016)."""
    width = len(out_F)
    for f in range(width):
        gate = both_2F[f]
        inner = _GELU_SCALE * (gate + _GELU_CUBE * gate * gate * gate)
        # tanh(u) = 1 - 2 / (1 + e^2u), so (1 + tanh(u)) / 2 = 1 - 1 / (1 + e^2u).
        out_F[f] = gate * (_ONE - _ONE / (_ONE + exp(_TWO * inner))) * both_2F[width + f]


@subroutine(ELEMENTWISE)
def store(heads_W, stored_HD):
    """Write adjacent heads of keys or values to their slot of the cache, which has float32 or float16 (as int16)."""
    heads, dim = stored_HD.shape
    if stored_HD.itemsize == F32_BYTES:
        for head in range(heads):
            for d in range(dim):
                stored_HD[head, d] = heads_W[head * dim + d]
        return
    begin, vectors, stored = heads_W.ctypes.data, dim // LANES, stored_HD.ctypes.data
    if stored_HD.strides[1] == F16_BYTES:
        _store_float16(begin, heads, vectors, stored, stored_HD.strides[0], F16_BYTES)
    else:
        _store_float16_strided(begin, heads, vectors, stored, stored_HD.strides[0], stored_HD.strides[1])


@subroutine(ELEMENTWISE)
def store_int8(heads_W, stored_HD, scale_H):
    """Quantize adjacent heads of keys or values to int8, one scale for each head, and write them to their slot.

    `heads_W` is overwritten.
    """
    heads, dim = stored_HD.shape
    for head in range(heads):
        head_D = heads_W[head * dim : (head + 1) * dim]
        bits_D = head_D.view(np.int32)
        largest_bits = np.int32(0)
        for d in range(dim):
            largest_bits = max(largest_bits, bits_D[d] & _MAGNITUDE_MASK)
        # A NaN must reach the scale, so that an overflow stays visible.
        scale = bitcast_float32(largest_bits) / _LEVELS
        scale_H[head] = scale
        factor = _ONE / max(scale, _SMALLEST)
        for d in range(dim):
            head_D[d] = np.rint(head_D[d] * factor)
        for d in range(dim):
            stored_HD[head, d] = np.int8(np.int32(head_D[d]))


@subroutine(ELEMENTWISE)
def argmax(row_V, begin, end):
    """Index of the largest element of `row_V[begin:end]`, the first of equal ones; and that element.

    The element is NaN if any of the range is NaN; 0.0 is larger than -0.0 here. An empty range gives `begin` and -inf:
    there may be more threads than blocks of columns.
    """
    if begin >= end:
        return begin, _MINUS_INFINITY
    bits_V = row_V.view(np.int32)
    best, best_chunk, magnitude = _MIN_INT32, begin, np.int32(0)
    for first in range(begin, end, ARGMAX_CHUNK):
        largest = _MIN_INT32
        for at in range(first, min(end, first + ARGMAX_CHUNK)):
            bits = bits_V[at]
            # Flipping the magnitude bits of negative floats gives integers in the order of the floats, but for NaN.
            largest = max(largest, bits ^ ((bits >> np.int32(31)) & _MAGNITUDE_MASK))
            magnitude = max(magnitude, bits & _MAGNITUDE_MASK)
        if largest > best:
            best, best_chunk = largest, first
    value = bitcast_float32(best ^ ((best >> np.int32(31)) & _MAGNITUDE_MASK))
    if magnitude > _INFINITY_BITS:
        return best_chunk, _NAN
    place = best_chunk
    while row_V[place] != value:
        place += 1
    return place, value
