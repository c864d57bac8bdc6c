"""int4 on a CPU: torch's product multiplies by the dequantized weight, and GGUF blocks are repacked without loss."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize as dequantize_gguf
from gguf.quants import quantize as quantize_gguf
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera_kernels.quantizers import layer_error, quantize_int4, quantize_int4_offsets, quantize_int8
from tessera_kernels.storage.quantized_weight import dequantize
from tessera_kernels.weight_only_linear import pack, packed_int4_linear, packs, reference

WAYS = {
    "32 offsets": quantize_int4_offsets,
    "128 offsets": lambda weight: quantize_int4_offsets(weight, 128),
    "64 zero points": lambda weight: quantize_int4(weight, 64, symmetric=False),
    "128 symmetric": quantize_int4,
}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=8, deadline=None)
@given(
    tokens=st.integers(1, 40),
    outputs=st.sampled_from([16, 48, 192]),
    inputs=st.sampled_from([128, 256, 640]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    bias=st.booleans(),
)
def test_equals_the_dequantized_weight_in_any_batch(way, tokens, outputs, inputs, dtype, bias):
    torch.manual_seed(tokens + outputs)
    weight = WAYS[way](torch.randn(outputs, inputs))
    x = torch.randn(inputs, tokens).to(dtype).t()
    added = torch.randn(outputs) if bias else None
    packed = pack(weight)
    found = packed_int4_linear(x, packed, added)
    expected = reference.weight_only_linear(x, weight, added)
    assert found.dtype == dtype
    # Inputs, scales, offsets and the result are rounded to bfloat16.
    assert (found.float() - expected.float()).norm() <= 1.5 * torch.finfo(torch.bfloat16).eps * expected.float().norm()
    assert torch.equal(packed_int4_linear(x[:1], packed, added), found[:1])


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_dequantized_gguf_blocks_are_quantized_again_without_loss(kind):
    values = np.random.default_rng(3).standard_normal((64, 256)).astype(np.float32)
    values[0] = 0  # a block of zeros, one value alone, and one sign
    values[1], values[1, 5] = 0, 1.5
    values[2] = np.abs(values[2])
    form = gguf.GGMLQuantizationType[kind]
    stored = torch.from_numpy(dequantize_gguf(quantize_gguf(values, form), form).astype(np.float32))
    error = layer_error(kind, stored, dequantize(quantize_int4_offsets(stored)))
    assert error.relative_rms < 1e-7


def test_offsets_have_smaller_errors_than_zero_points():
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(1))
    points, offsets = (
        layer_error("", weight, dequantize(made)).relative_rms
        for made in (quantize_int4(weight, 32, symmetric=False, clip="mse"), quantize_int4_offsets(weight))
    )
    assert offsets < points


def test_values_that_are_not_finite_stay_in_their_row():
    weight = pack(quantize_int4_offsets(torch.randn(16, 64)))
    x = torch.ones(3, 64)
    x[1, 7] = torch.nan
    assert packed_int4_linear(x, weight).isfinite().all(1).tolist() == [True, False, True]


def test_weights_that_torch_does_not_support_are_refused_before_the_call():
    odd = quantize_int4_offsets(torch.randn(20, 64))
    ends_early = quantize_int4_offsets(torch.randn(16, 80))
    for weight in (odd, ends_early, quantize_int8(torch.randn(16, 64))):
        assert not packs(weight)
        with pytest.raises(ValueError, match="multiple of 16 outputs"):
            pack(weight)
    with pytest.raises(ValueError, match="groups of 32, 64 or 128"):
        quantize_int4_offsets(torch.randn(16, 64), 48)
    good = quantize_int4_offsets(torch.randn(16, 64))
    with pytest.raises(ValueError, match="scales must be"):
        pack(replace(good, scale_GN=good.scale_GN[:, :8].contiguous()))
    packed = pack(good)
    with pytest.raises(ValueError, match=r"inputs must be float \[tokens, 64\]"):
        packed_int4_linear(torch.randn(2, 63), packed)
    with pytest.raises(ValueError, match=r"the bias must be float \[16\]"):
        packed_int4_linear(torch.randn(2, 64), packed, torch.randn(15))
