"""Quantized weights are within the bounds of their format; the search for a clip is never worse than the range."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera_kernels.quantizers import (
    layer_error,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
    quantize_mxfp4,
    quantize_nvfp4,
    table,
)
from tessera_kernels.storage.quantized_weight import E2M1, QuantizedWeight, dequantize, exponents

WAYS = {
    "int4 32": (lambda w: quantize_int4(w, 32), 0.11),
    "int4 128 asymmetric": (lambda w: quantize_int4(w, symmetric=False), 0.11),
    "int4 64 mse": (lambda w: quantize_int4(w, 64, clip="mse"), 0.11),
    "int8": (quantize_int8, 0.009),
    "int8 32": (lambda w: quantize_int8(w, 32), 0.007),
    "fp8": (quantize_fp8, 0.028),
    "fp8 128": (lambda w: quantize_fp8(w, 128), 0.028),
    "mxfp4": (quantize_mxfp4, 0.14),
    "nvfp4": (quantize_nvfp4, 0.11),
    "nvfp4 mse": (lambda w: quantize_nvfp4(w, clip="mse"), 0.11),
}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=8, deadline=None)
@given(outputs=st.integers(1, 9), inputs=st.integers(1, 300), size=st.sampled_from([1e-3, 1.0, 50.0]))
def test_any_shape_fits_within_the_bound_of_its_format(way, outputs, inputs, size):
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(inputs)) * size
    made, bound = WAYS[way][0](weight), WAYS[way][1]
    made.check()
    error = layer_error(way, weight, dequantize(made))
    assert error.relative_rms < bound * (1 if outputs * inputs > 1500 else 2.5)


def test_the_search_for_a_clip_is_better_than_the_range():
    weight = torch.randn(16, 256, generator=torch.Generator().manual_seed(0)) ** 3
    for quantize in (quantize_int4, lambda w, **k: quantize_int4(w, symmetric=False, **k), quantize_mxfp4):
        by_range, searched = (layer_error("", weight, dequantize(quantize(weight, clip=c))) for c in ("range", "mse"))
        assert searched.relative_rms < 0.99 * by_range.relative_rms


def test_e2m1_rounds_to_nearest_ties_to_even():
    values = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.01, 6.0, -0.75, 0.26])
    weight = torch.cat([values, torch.zeros(21)])[None]
    # Scales of one: the group's largest is 6, whose power of two is 4.
    assert dequantize(quantize_mxfp4(weight))[0, :11].tolist() == [0, 1, 1, 2, 2, 4, 4, 6, 6, -1, 0.5]
    assert sorted(E2M1) == list(E2M1)


def test_scales_of_all_exponent_bits():
    bits = torch.arange(256).to(torch.uint8)
    found = exponents(bits)
    assert [float(value) for value in found[:255]] == [2.0 ** (bit - 127) for bit in range(255)]
    assert found[255].isnan()


def test_the_report_names_the_worst_layer_first():
    exact = torch.tensor([3.0, 4.0])
    small, large = layer_error("small", exact, exact + 0.5), layer_error("large", exact, exact * 2)
    assert (large.relative_rms, large.largest, large.sqnr_db) == (1.0, 4.0, 0.0)
    assert layer_error("none", exact, exact).sqnr_db == math.inf
    assert [line.split(" | ")[0] for line in table([small, large]).splitlines()[2:]] == ["| large", "| small"]
    with pytest.raises(ValueError, match="cannot be compared"):
        layer_error("other", exact, torch.ones(3))


def test_zeros_stay_zeros_and_nan_weights_are_visible():
    for way, _ in WAYS.values():
        assert not dequantize(way(torch.zeros(3, 130))).any()
    bad = torch.randn(2, 64)
    bad[1, 3] = float("nan")
    for way in (quantize_int4, quantize_int8, quantize_fp8, quantize_mxfp4):
        finite = dequantize(way(bad)).isfinite()
        assert finite[0].all()
        assert not finite[1].all()


def test_parts_that_do_not_fit_are_refused():
    good = quantize_int4(torch.randn(4, 96), 32)
    for broken, match in (
        (replace(good, format="int3"), "unknown format"),
        (replace(good, group=48), "groups must be"),
        (replace(good, elements=good.elements[:1]), "int4 elements must be"),
        (replace(good, scale_GN=good.scale_GN[:2]), "int4 scales must be"),
        (replace(good, scale_GN=None), "not none"),
        (replace(good, zero_GN=torch.zeros(3, 4, dtype=torch.int32)), "zeros are for int4"),
        (replace(good, tensor_scale=torch.ones(1)), "for nvfp4"),
        (replace(good, scale_GN=torch.ones(4, 3).t()), "contiguous"),
        (replace(quantize_mxfp4(torch.randn(4, 96)), group=64), "groups of 32"),
        (QuantizedWeight("dense", 3, 64, torch.ones(2, 4)), "dense weight must be"),
    ):
        with pytest.raises(ValueError, match=match):
            broken.check()
    with pytest.raises(ValueError, match="32, 64 or 128"):
        quantize_int4(torch.randn(4, 96), 48)
    with pytest.raises(ValueError, match="32, 64 or 128"):
        quantize_int8(torch.randn(4, 96), 48)
