# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""From stored bits to the numbers that they are, exactly, in the dtype that is multiplied. Imports Triton.

Every format's numbers fit into float16 and bfloat16 without rounding; scales do not, and are float32. float8 is decoded
from its bits, so chips without it have it too. The interpreter has no bfloat16 arithmetic: it gets float32.

Shape letters: N outputs, R inputs of a run.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def numbers_of(b_bits_NR, b_zero_N, HALF: tl.constexpr, FORMAT: tl.constexpr, DOT: tl.constexpr):
    """Numbers [N, R], less the zero point, of what was loaded; HALF is which four bits of a byte."""
    if FORMAT == "int4":
        b_number = (b_bits_NR >> (4 * HALF)) & 15
        # A float whose last bits are the number is 128 (1024, 2^23) more than it: no slow conversion.
        if tl.bfloat16 == DOT:
            b_large = (b_number.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True)
            b_found = b_large - (b_zero_N + 128.0).to(tl.bfloat16)[:, None]
        elif tl.float16 == DOT:
            b_large = (b_number.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True)
            b_found = b_large - (b_zero_N + 1024.0).to(tl.float16)[:, None]
        else:
            b_large = (b_number.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True)
            b_found = b_large - (b_zero_N + 8388608.0)[:, None]
    elif FORMAT == "mxfp4" or FORMAT == "nvfp4":  # noqa: PLR1714 - Triton has no `in` for tuples
        b_number = ((b_bits_NR >> (4 * HALF)) & 15).to(tl.uint16)
        # The same bits in float16 are smaller by 2^14, the difference of the exponents' offsets, also below 1.
        b_small = (((b_number & 8) << 12) | ((b_number & 7) << 9)).to(tl.float16, bitcast=True)
        b_found = (b_small * 16384.0).to(DOT)
    elif FORMAT == "fp8":
        b_found = float8(b_bits_NR).to(DOT)
    else:
        b_found = b_bits_NR.to(DOT)
    return b_found


@triton.jit
def float8(b_bits):
    """float16 of e4m3's bits (uint8)."""
    b_wide = b_bits.to(tl.uint16)
    b_small = (((b_wide & 0x80) << 8) | ((b_wide & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return tl.where((b_wide & 0x7F) == 0x7F, float("nan"), b_small * 256.0).to(tl.float16)


@triton.jit
def scales_of(p_scale, o_scale, there, FORMAT: tl.constexpr):
    """float32 scales [N] of a group."""
    b_stored = tl.load(p_scale + o_scale, mask=there, other=0)
    if FORMAT == "mxfp4":
        b_exponent = b_stored.to(tl.int32)
        b_bits = tl.where(b_exponent == 0, 0x400000, b_exponent << 23)
        b_scale = tl.where(b_exponent == 255, float("nan"), b_bits.to(tl.float32, bitcast=True))
    elif FORMAT == "nvfp4":
        b_scale = float8(b_stored).to(tl.float32)
    else:
        b_scale = b_stored.to(tl.float32)
    return b_scale
