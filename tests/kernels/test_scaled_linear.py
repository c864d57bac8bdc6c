"""A linear layer in eight bits: quantization and product equal the definition, for all shapes and configurations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support import BOUNDS, poisoned, relative_rms

from tessera_kernels.quantizers import quantize_scaled
from tessera_kernels.scaled_linear import quantize, quantize_tokens, reference, scaled_linear
from tessera_kernels.scaled_linear import triton as launcher
from tessera_kernels.storage.paged_kv import LARGEST
from tessera_kernels.storage.scaled_weight import dequantize

FP8 = torch.float8_e4m3fn
WAYS = {
    "int8": lambda w: quantize_scaled(w, torch.int8),
    "fp8 tensor": lambda w: quantize_scaled(w, FP8, "tensor"),
    "fp8 tensor, inputs measured": lambda w: quantize_scaled(w, FP8, "tensor", largest_input=3.0),
    "fp8": lambda w: quantize_scaled(w, FP8),
    "fp8 blocks": lambda w: quantize_scaled(w, FP8, "block"),
    "int8 blocks": lambda w: quantize_scaled(w, torch.int8, "block"),
}
NARROW = {"B_T": 16, "B_N": 32, "B_K": 128, "SPLITS": 1, "num_warps": 4, "num_stages": 3}
HOW = [NARROW, {**NARROW, "B_K": 64}, {**NARROW, "SPLITS": 2}]


def elements_equal(got, exact):
    """Rounding may differ in the last bit if a quotient is half way between two steps, which is rare."""
    same = got.float() == exact.float()
    assert same.float().mean() > 0.999 or not same.numel()


@pytest.mark.parametrize("dtype", list(LARGEST))
@settings(max_examples=12, deadline=None)
@given(
    tokens=st.integers(1, 5),
    inputs=st.sampled_from([1, 128, 300, 1200]),
    blocks=st.booleans(),
    kind=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_tokens_are_quantized_as_defined(dtype, tokens, inputs, blocks, kind):
    torch.manual_seed(inputs)
    x = (torch.randn(tokens, inputs) * 7).to(kind)
    x[0, 0] = 0
    elements, scales = reference.quantize_tokens(x, dtype, blocks=blocks)
    out = poisoned(*elements.shape, dtype=dtype), poisoned(*scales.shape, dtype=torch.float32)
    got = quantize.quantize_tokens(x, dtype, blocks=blocks, out=out)
    torch.testing.assert_close(got[1], scales, rtol=1e-6, atol=0)
    elements_equal(got[0], elements)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=7, deadline=None)
@given(
    tokens=st.integers(1, 20),
    outputs=st.integers(1, 150),
    inputs=st.sampled_from([1, 17, 128, 200, 300]),
    how=st.sampled_from(HOW),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    bias=st.booleans(),
)
def test_equals_the_definition(way, tokens, outputs, inputs, how, dtype, bias):
    torch.manual_seed(tokens + outputs)
    x, weight = torch.randn(tokens, inputs).to(dtype), WAYS[way](torch.randn(outputs, inputs))
    added = torch.randn(outputs).to(dtype) if bias else None
    out = poisoned(tokens, outputs, dtype=dtype)
    got = launcher.scaled_linear(x, weight, added, out=out, configuration=how)
    assert relative_rms(got, reference.scaled_linear(x.float(), weight, added)) < BOUNDS[dtype] * 2
    if tokens * outputs > 200 and "measured" not in way:
        unrounded = x.double() @ dequantize(weight).double().t()
        assert relative_rms(got, unrounded + (added.double() if bias else 0)) < BOUNDS[weight.elements_NK.dtype]


@pytest.mark.parametrize("way", WAYS)
def test_a_row_is_the_same_in_any_batch(way):
    torch.manual_seed(1)
    x, weight = torch.randn(40, 300), WAYS[way](torch.randn(70, 300))
    together = launcher.scaled_linear(x, weight, None, invariant=True)
    for row in (0, 39):
        assert torch.equal(launcher.scaled_linear(x[row : row + 1], weight, None, invariant=True)[0], together[row])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_stay_in_their_row(way, bad):
    x, weight = torch.randn(4, 130), WAYS[way](torch.randn(20, 130))
    x[1, 129] = bad
    for got in (launcher.scaled_linear(x, weight, None), scaled_linear(x, weight)):
        finite = got.isfinite()
        assert finite.all(1).tolist() == [True, False, True, True]
        assert not finite[1].any()


def test_empty_inputs_give_empty_results():
    weight = WAYS["fp8"](torch.randn(8, 64))
    assert scaled_linear(torch.randn(0, 64), weight).shape == (0, 8)
    assert launcher.scaled_linear(torch.randn(0, 64), weight, None).shape == (0, 8)
    assert [one.shape for one in quantize_tokens(torch.randn(0, 64), torch.int8)] == [(0, 64), (0,)]


def test_what_does_not_fit_is_refused():
    weight, x = WAYS["fp8"](torch.randn(8, 64)), torch.randn(2, 64)
    blocks = WAYS["fp8 blocks"](torch.randn(8, 64))
    for inputs, one, bias, match in (
        (torch.randn(2, 63), weight, None, "inputs must be float"),
        (x, weight, torch.ones(7), "the bias must be"),
        (x, replace(weight, elements_NK=weight.elements_NK.float()), None, "elements must be"),
        (x, replace(weight, scale=weight.scale[:3]), None, "scales must be float32"),
        (x, replace(blocks, input_scale=torch.ones(1)), None, "not for weights with scales by block"),
        (x, replace(weight, elements_NK=weight.elements_NK.t().contiguous().t()), None, "contiguous"),
        (x, replace(weight, elements_NK=weight.elements_NK[None], scale=weight.scale[None]), None, "experts"),
    ):
        with pytest.raises(ValueError, match=match):
            scaled_linear(inputs, one, bias)
    with pytest.raises(ValueError, match="are rounded to"):
        quantize_tokens(x, torch.float16)
    with pytest.raises(ValueError, match="are rounded to"):
        quantize_scaled(x, torch.float16)


def test_the_registered_op_passes_opcheck():
    weight = WAYS["int8"](torch.randn(8, 64))
    arguments = torch.randn(2, 64), weight.elements_NK, weight.scale, None, torch.ones(8), False
    torch.library.opcheck(torch.ops.tessera.scaled_linear, arguments)
    compiled = torch.compile(lambda x: scaled_linear(x, weight), backend="eager", fullgraph=True)
    x = torch.randn(3, 64)
    assert torch.equal(compiled(x), scaled_linear(x, weight))
