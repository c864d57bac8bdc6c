# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Decodes stored bits to the values of elements, exactly, in the dtype that is multiplied. Imports Triton.

Elements of every format fit into float16 and bfloat16 without rounding; scales do not, and are float32. float8 is
decoded from its bits, so chips without float8 can use it too. The interpreter has no bfloat16 arithmetic and decodes to
float32.

Shape letters: N outputs, R inputs of a run.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode_elements(b_bits_NR, b_zero_N, HALF: tl.constexpr, FORMAT: tl.constexpr, DOT: tl.constexpr):
    """Values [N, R] of loaded bits, minus the zero point; HALF selects the four bits of a byte: 0 the lower ones."""
    if FORMAT == "int4":
        b_element = (b_bits_NR >> (4 * HALF)) & 15
        # A float with the element in its last bits is 128 (1024, 2^23) larger than it, which avoids a slow conversion.
        if tl.bfloat16 == DOT:
            b_large = (b_element.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True)
            b_found = b_large - (b_zero_N + 128.0).to(tl.bfloat16)[:, None]
        elif tl.float16 == DOT:
            b_large = (b_element.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True)
            b_found = b_large - (b_zero_N + 1024.0).to(tl.float16)[:, None]
        else:
            b_large = (b_element.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True)
            b_found = b_large - (b_zero_N + 8388608.0)[:, None]
    elif FORMAT == "mxfp4" or FORMAT == "nvfp4":  # noqa: PLR1714 - Triton has no `in` for tuples
        b_element = ((b_bits_NR >> (4 * HALF)) & 15).to(tl.uint16)
        # The same bits in float16 are smaller by 2^14, the difference of the exponent biases, also if subnormal.
        b_small = (((b_element & 8) << 12) | ((b_element & 7) << 9)).to(tl.float16, bitcast=True)
        b_found = (b_small * 16384.0).to(DOT)
    elif FORMAT == "fp8":
        b_found = float8(b_bits_NR).to(DOT)
    else:
        b_found = b_bits_NR.to(DOT)
    return b_found


@triton.jit
def float8(b_bits):
    """float16 values of the bits (uint8) of float8 e4m3."""
    b_wide = b_bits.to(tl.uint16)
    b_small = (((b_wide & 0x80) << 8) | ((b_wide & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return tl.where((b_wide & 0x7F) == 0x7F, float("nan"), b_small * 256.0).to(tl.float16)


@triton.jit
def scales_of(p_scale, o_scale, there, FORMAT: tl.constexpr):
    """Load the scales [N] of a group as float32."""
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
