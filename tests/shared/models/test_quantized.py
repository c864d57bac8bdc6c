"""Linear layers in 8 bits: close to the float layer, exact whatever shares the batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tessera.models.quantized import Int8Linear, QuantizedLinear, quantize, quantize_int8
from tessera.sequence.runner.calibration import calibrate
from tessera_kernels.int8_linear import quantize_weight


def layer(inputs: int, outputs: int, *, bias: bool, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    made = nn.Linear(inputs, outputs, bias=bias)
    made.weight.data *= torch.rand(outputs, 1) * 10  # rows of different sizes
    return made.requires_grad_(False)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 40), inputs=st.integers(8, 200), outputs=st.integers(1, 200), bias=st.booleans())
def test_it_is_within_the_rounding_of_both_sides(rows, inputs, outputs, bias):
    exact = layer(inputs, outputs, bias=bias, seed=rows)
    x = torch.randn(rows, inputs) * torch.logspace(-3, 3, rows)[:, None]
    weight, largest = exact.weight, x.abs().amax(1, keepdim=True)
    # Half a step of each: |x|/254 on inputs against |w|, |w|/254 on weights against |x|, and both at once.
    by_input = largest / 254 * weight.abs().sum(1)
    by_weight = x.abs().sum(1, keepdim=True) * weight.abs().amax(1) / 254
    bound = by_input + by_weight + inputs * largest / 254 * weight.abs().amax(1) / 254
    difference = (Int8Linear(exact)(x) - exact(x)).abs()
    assert (difference <= bound * 1.001 + 1e-6).all()


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(2, 64))
def test_a_row_is_the_same_bits_alone_and_in_any_batch(rows):
    quantized = Int8Linear(layer(96, 160, bias=True), torch.rand(96) + 0.1)
    x = torch.randn(rows, 96)
    together = quantized(x)
    assert all(torch.equal(quantized(x[row : row + 1])[0], together[row]) for row in range(rows))
    assert torch.equal(quantized(x[torch.arange(rows).flip(0)]), together.flip(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes_and_dtypes_are_those_of_the_layer(dtype):
    quantized = Int8Linear(layer(32, 48, bias=True))
    out = quantized(torch.randn(2, 3, 32, dtype=dtype))
    assert (out.shape, out.dtype) == ((2, 3, 48), dtype)
    assert quantized(torch.zeros(0, 32, dtype=dtype)).shape == (0, 48)
    assert torch.isfinite(quantized(torch.zeros(1, 32, dtype=dtype))).all()


def test_what_overflows_stays_not_finite():
    quantized = Int8Linear(layer(32, 48, bias=False))
    x = torch.ones(2, 32)
    x[0, 3] = float("nan")
    x[1, 5] = float("inf")
    assert not torch.isfinite(quantized(x)).any(dim=1).any()


def test_small_layers_stay_and_the_rest_takes_a_quarter_of_the_room():
    model = nn.Sequential(layer(256, 256, bias=True), nn.ReLU(), layer(256, 8, bias=False))
    report = quantize_int8(model)
    assert (report.layers, type(model[2])) == (1, nn.Linear)
    assert report.bytes_after < report.bytes_before * 0.27


def test_the_columns_that_are_large_when_it_is_calibrated_are_multiplied_in_float():
    torch.manual_seed(2)
    model = nn.Sequential(layer(256, 256, bias=True), layer(256, 128, bias=False))
    x = torch.randn(50, 256)
    x[:, [3, 77]] *= 200
    wanted = model(x)
    unreached = nn.ModuleDict({"used": model, "never": layer(256, 256, bias=False)})
    quantize_int8(unreached, calibrate(unreached, [], lambda: model(x)).inputs)
    assert {3, 77} <= set(model[0].weight.outlier_columns_M.tolist())
    assert len(unreached["never"].weight.outlier_columns_M) == 0
    error = (model(x) - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    assert error < 0.01


@pytest.mark.parametrize(
    ("scheme", "bound", "bits"), [("fp8", 0.04, 8.2), ("int4", 0.09, 5.1), ("mxfp4", 0.14, 4.4), ("nvfp4", 0.11, 4.7)]
)
def test_other_schemes_are_as_near_as_their_bits_allow(scheme, bound, bits):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(192, 256), nn.Linear(256, 96, bias=False), nn.Linear(96, 4)).requires_grad_(False)
    x = torch.randn(2, 7, 192)
    middle, wanted = model[0](x), model[1](model[0](x))
    report = quantize(model, scheme)
    assert (report.layers, type(model[2])) == (2, nn.Linear), "a small one stays"
    assert report.bytes_after * 8 / (report.bytes_before / 4) <= bits
    got = model[1](middle)
    assert got.shape == wanted.shape
    assert (got - wanted).norm() / wanted.norm() < bound


def test_four_bits_leave_the_head_eight_on_a_cpu():
    config = LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, vocab_size=512
    )
    model = LlamaForCausalLM(config)
    assert quantize(model, "int4").layers == 8
    assert type(model.lm_head) is Int8Linear
    assert type(model.model.layers[0].mlp.up_proj) is QuantizedLinear


def test_a_layer_that_cannot_be_cut_into_groups_stays():
    model = nn.Sequential(nn.Linear(200, 128), nn.Linear(128, 256))
    assert quantize(model, "int4").layers == 1
    assert type(model[0]) is nn.Linear


def test_a_weight_is_quantized_where_it_is():
    """Torch refuses to mix `meta` with a CPU as it refuses to mix a GPU with it."""
    weight = quantize_weight(torch.empty(32, 64, device="meta"))
    parts = (weight.weight_KN, weight.scale_N, weight.outlier_columns_M, weight.outlier_weight_MN, weight.smoothing_K)
    assert {part.device.type for part in parts} == {"meta"}
