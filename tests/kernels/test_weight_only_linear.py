"""A linear layer with a quantized weight: kernels multiply by the dequantized weight, for all shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support import BOUNDS, poisoned, relative_rms

from tessera_kernels.chips import CHIPS
from tessera_kernels.quantizers import quantize_fp8, quantize_int4, quantize_int8, quantize_mxfp4, quantize_nvfp4
from tessera_kernels.storage.quantized_weight import E2M1, QuantizedWeight, dequantize
from tessera_kernels.weight_only_linear import reference, weight_only_linear
from tessera_kernels.weight_only_linear import triton as launcher
from tessera_kernels.weight_only_linear.decode import decode_elements


def with_offsets(weight):
    made = quantize_int4(weight, 32, symmetric=False)
    return replace(made, zero_GN=-made.zero_GN.half() * made.scale_GN)


WAYS = {
    "int4 32": lambda w: quantize_int4(w, 32),
    "int4 64 zero points": lambda w: quantize_int4(w, 64, symmetric=False),
    "int4 128": quantize_int4,
    "int4 32 offsets": with_offsets,
    "int8": quantize_int8,
    "int8 32": lambda w: quantize_int8(w, 32),
    "fp8": quantize_fp8,
    "fp8 128": lambda w: quantize_fp8(w, 128),
    "mxfp4": quantize_mxfp4,
    "nvfp4": quantize_nvfp4,
    "dense": lambda w: QuantizedWeight("dense", w.shape[1], 64, w),
}
GEMV = {"GEMV": 1, "B_N": 16, "SPLITS": 1, "num_warps": 4, "num_stages": 3}
GEMM = {"GEMV": 0, "B_T": 16, "B_N": 32, "SPLITS": 1, "AFTER": 0, "num_warps": 4, "num_stages": 2}
HOW = [GEMV, {**GEMV, "SPLITS": 2}, GEMM, {**GEMM, "AFTER": 1, "SPLITS": 3}, {**GEMM, "AFTER": 1}]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=8, deadline=None)
@given(
    tokens=st.integers(1, 8),
    outputs=st.integers(1, 50),
    inputs=st.sampled_from([1, 17, 64, 200, 256]),
    how=st.sampled_from(HOW),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    bias=st.booleans(),
)
def test_equals_the_dequantized_weight(way, tokens, outputs, inputs, how, dtype, bias):
    torch.manual_seed(tokens + outputs)
    x = torch.randn(tokens, inputs).to(dtype)
    weight = WAYS[way](torch.randn(outputs, inputs) if way != "dense" else torch.randn(outputs, inputs).to(dtype))
    added = torch.randn(outputs).to(dtype) if bias else None
    exact = x.double() @ dequantize(weight).double().t() + (added.double() if bias else 0)
    out = poisoned(tokens, outputs, dtype=dtype)
    got = launcher.weight_only_linear(x, weight, added, out=out, configuration=how)
    # A scaled weight is rounded to the dtype that is multiplied, except under the interpreter.
    assert relative_rms(got, exact) < BOUNDS[dtype]
    assert relative_rms(reference.weight_only_linear(x, weight, added), exact) < BOUNDS[dtype]


@pytest.mark.parametrize("way", ["int4 32 offsets", "int8", "nvfp4", "dense"])
@pytest.mark.parametrize("tokens", [2, 40])
def test_a_row_is_the_same_in_any_batch(way, tokens):
    torch.manual_seed(tokens)
    x = torch.randn(tokens, 200)
    weight = WAYS[way](torch.randn(70, 200))
    together = launcher.weight_only_linear(x, weight, None, invariant=True)
    for row in (0, tokens - 1):
        assert torch.equal(
            launcher.weight_only_linear(x[row : row + 1], weight, None, invariant=True)[0], together[row]
        )


def test_the_batch_invariant_configuration_does_not_depend_on_tokens():
    for outputs, inputs in ((4096, 4096), (128, 14336), (151936, 2048)):
        ways = {
            str(launcher.heuristic(tokens, outputs, inputs, 64, CHIPS["sm_90"], 132, invariant=True))
            for tokens in (1, 5, 300, 10**5)
        }
        assert len(ways) == 1
        assert launcher.bucket(1, outputs, inputs, invariant=True) == launcher.bucket(
            9, outputs, inputs, invariant=True
        )


@pytest.mark.parametrize("how", [None, GEMV, GEMM])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_stay_in_their_row(how, bad):
    x, weight = torch.randn(4, 96), quantize_int4(torch.randn(20, 96), 32)
    x[1, 95] = bad
    finite = weight_only_linear(x, weight).isfinite() if how is None else launcher.weight_only_linear(
        x, weight, None, configuration=how
    ).isfinite()  # fmt: skip
    assert finite.all(1).tolist() == [True, False, True, True]


def test_a_nan_scale_is_visible():
    weight = quantize_mxfp4(torch.randn(20, 96))
    weight.scale_GN[1, 3] = 255
    for how in (GEMV, GEMM):
        got = launcher.weight_only_linear(torch.randn(2, 96), weight, None, configuration=how)
        assert got.isnan().any(0).nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("how", [GEMV, GEMM])
def test_rows_beyond_two_to_the_31_elements(how):
    stride = 2**31 // 2 + 64
    memory = torch.empty(stride * 2 + 64, dtype=torch.float16)  # only pages that are touched take memory
    x = torch.as_strided(memory, (3, 64), (stride, 1))
    x.copy_(torch.randn(3, 64))
    weight = quantize_int4(torch.randn(16, 64), 32)
    got = launcher.weight_only_linear(x, weight, None, configuration=how)
    assert relative_rms(got, reference.weight_only_linear(x, weight, None)) < BOUNDS[torch.float16]


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
def test_empty_inputs_give_empty_results(shape):
    tokens, outputs = shape
    weight = quantize_int4(torch.randn(8, 64), 32)
    if not outputs:
        elements, scales = torch.zeros(1, 0, 32, dtype=torch.uint8), torch.ones(2, 0)
        weight = replace(weight, elements=elements, scale_GN=scales)
    assert weight_only_linear(torch.randn(tokens, 64), weight).shape == shape
    assert launcher.weight_only_linear(torch.randn(tokens, 64), weight, None).shape == shape


def test_what_does_not_fit_is_refused():
    weight = quantize_int4(torch.randn(8, 64), 32)
    stacked = replace(weight, elements=weight.elements[None], scale_GN=weight.scale_GN[None])
    for x, one, bias, match in (
        (torch.randn(2, 63), weight, None, "inputs must be float"),
        (torch.ones(2, 64, dtype=torch.int32), weight, None, "inputs must be float"),
        (torch.randn(2, 64), weight, torch.ones(7), "the bias must be"),
        (torch.randn(2, 64), replace(weight, group=48), None, "groups must be"),
        (torch.randn(2, 64), stacked, None, "experts"),
        (torch.randn(2, 64), WAYS["dense"](torch.ones(4, 64, dtype=torch.float16)), None, "must have the inputs'"),
    ):
        with pytest.raises(ValueError, match=match):
            weight_only_linear(x, one, bias)


@pytest.mark.parametrize("way", ["int4 64 zero points", "mxfp4"])
def test_the_registered_op_passes_opcheck(way):
    weight = WAYS[way](torch.randn(8, 64))
    parts = weight.elements, weight.scale_GN, weight.zero_GN, weight.tensor_scale
    arguments = torch.randn(2, 64), *parts, torch.ones(8), weight.format, 64, weight.group, False
    torch.library.opcheck(torch.ops.tessera.weight_only_linear, arguments)
    compiled = torch.compile(lambda x: weight_only_linear(x, weight), backend="eager", fullgraph=True)
    x = torch.randn(3, 64)
    assert torch.equal(compiled(x), weight_only_linear(x, weight))


@triton.jit
def decode_kernel(p_bits, p_zero, p_low, p_high, FORMAT: tl.constexpr, N: tl.constexpr, R: tl.constexpr):
    o_n, o_r = tl.arange(0, N), tl.arange(0, R)
    o_tile = o_n[:, None] * R + o_r[None, :]
    b_bits, b_zero = tl.load(p_bits + o_tile), tl.load(p_zero + o_n)
    tl.store(p_low + o_tile, decode_elements(b_bits, b_zero, 0, FORMAT, tl.float16))
    tl.store(p_high + o_tile, decode_elements(b_bits, b_zero, 1, FORMAT, tl.float16))


@pytest.mark.parametrize("form", ["int4", "mxfp4", "fp8", "int8"])
def test_every_element_is_exact_in_16_bits(form):
    bits = torch.arange(256).repeat(32, 1).to(torch.uint8)
    zero = torch.arange(32).clamp(max=16).float()
    low, high = poisoned(32, 256, dtype=torch.float16), poisoned(32, 256, dtype=torch.float16)
    stored = bits.view(torch.int8) if form == "int8" else bits
    decode_kernel[(1,)](stored, zero, low, high, FORMAT=form, N=32, R=256)
    values = torch.tensor((*E2M1, *(-value for value in E2M1)))
    exact = {
        "int4": lambda number: number.float() - zero[:, None],
        "mxfp4": lambda number: values[number.int()],
        "fp8": lambda _: bits.view(torch.float8_e4m3fn).float(),
        "int8": lambda _: bits.view(torch.int8).float(),
    }[form]
    for found, number in ((low, bits & 15), (high, bits >> 4)):
        torch.testing.assert_close(found.float(), exact(number), rtol=0, atol=0, equal_nan=True)


def test_bfloat16_of_the_decoded_bits_is_128_larger():
    # The interpreter has no bfloat16 arithmetic; torch has.
    number, zero = torch.arange(16, dtype=torch.int16)[:, None], torch.arange(17).float()
    large = (number | 0x4300).view(torch.bfloat16)
    assert torch.equal((large - (zero + 128).bfloat16()).float(), number.float() - zero)
