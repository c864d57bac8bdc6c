"""Gated activations equal their definition in float64, in every implementation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support import BOUNDS, poisoned, relative_rms

from tessera_kernels.gated_activation import (
    ACTIVATIONS,
    gated_activation,
    gated_activation_quantized,
    reference,
    registered,
)
from tessera_kernels.storage.paged_kv import dequantize

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
QUANTIZED = [torch.int8, torch.float8_e4m3fn]


def defined(packed: torch.Tensor, activation: str) -> torch.Tensor:
    gate, up = packed.double().chunk(2, -1)
    acted = {
        "silu": gate / (1 + (-gate).exp()),
        "gelu": gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2))),
        "gelu_tanh": gate * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))),
    }[activation]
    return acted * up


@settings(max_examples=40, deadline=None)
@given(
    implementation=st.sampled_from(["any", "triton"]),
    rows=st.integers(0, 4),
    inner=st.sampled_from([1, 7, 64, 70, 1030]),
    activation=st.sampled_from(list(ACTIVATIONS)),
    dtype=st.sampled_from(DTYPES),
    size=st.sampled_from([1e-3, 1.0, 20.0]),
)
def test_equals_the_definition(implementation, rows, inner, activation, dtype, size):
    torch.manual_seed(inner)
    size = 1.0 if dtype == torch.float16 else size  # float16 has no values so near zero
    # A slice of a wider tensor, so that rows are not adjacent.
    packed = (torch.randn(rows, 2 * inner + 3) * size).to(dtype)[:, 1:-2]
    exact = defined(packed, activation)
    if implementation == "any":
        got = gated_activation(packed, activation)
    else:
        from tessera_kernels.gated_activation import triton

        got = poisoned(rows, inner, dtype=dtype)
        triton.gated_activation(packed, activation, out_TI=got)
    assert relative_rms(got, exact) <= BOUNDS[dtype]


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("quantized", QUANTIZED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_quantizes(activation, quantized, dtype):
    from tessera_kernels.gated_activation import triton

    torch.manual_seed(0)
    packed = torch.randn(3, 140).to(dtype)
    out, scale = poisoned(3, 70, dtype=quantized), poisoned(3, dtype=torch.float32)
    triton.gated_activation(packed, activation, out_TI=out, scale_T=scale)
    numbers, scales = reference.gated_activation_quantized(packed, quantized, activation)
    torch.testing.assert_close(scale, scales, rtol=1e-5, atol=0)
    assert (out.float() != numbers.float()).double().mean() < 0.02
    # Few elements of a gated row are near its largest, so int8 is coarser for the others.
    assert relative_rms(dequantize(out, scale, torch.float32), defined(packed, activation)) <= 2 * BOUNDS[quantized]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("quantized", [None, *QUANTIZED])
def test_an_overflow_stays_in_its_row_of_the_kernel(value, quantized):
    from tessera_kernels.gated_activation import triton

    packed = torch.randn(3, 16)
    packed[1, 2] = value
    out = poisoned(3, 8, dtype=quantized or torch.float32)
    scale = poisoned(3, dtype=torch.float32) if quantized else None
    triton.gated_activation(packed, "silu", out_TI=out, scale_T=scale)
    found = out.isfinite().all(1) if scale is None else scale.isfinite()
    assert found.tolist() == [True, False, True]


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_large_gates_overflow_nowhere_in_the_kernel(activation):
    from tessera_kernels.gated_activation import triton

    packed = torch.tensor([[-1e30, -200.0, -30.0, 30.0, 200.0, 1e12, *[1.0] * 6]])
    out = poisoned(1, 6, dtype=torch.float32)
    triton.gated_activation(packed, activation, out_TI=out)
    torch.testing.assert_close(out, torch.tensor([[0.0, 0.0, 0.0, 30.0, 200.0, 1e12]]), rtol=1e-6, atol=1e-10)


def test_rows_beyond_two_to_the_31_elements_are_found():
    from tessera_kernels.gated_activation import triton

    far = 2**31 + 64  # only the pages that are touched take memory
    packed = torch.empty(far + 16, dtype=torch.bfloat16).as_strided((2, 16), (far, 1))
    packed.copy_(torch.randn(2, 16))
    for quantized in (None, torch.int8):
        out = poisoned(2, 8, dtype=quantized or torch.bfloat16)
        scale = torch.zeros(2) if quantized else None
        triton.gated_activation(packed, "silu", out_TI=out, scale_T=scale)
        got = out if scale is None else dequantize(out, scale, torch.float32)
        assert relative_rms(got, defined(packed, "silu")) <= BOUNDS[torch.int8]


@pytest.mark.parametrize("shape", [(2, 3, 8), (0, 8), (8,), (2, 0)])
def test_the_registered_ops_pass_opcheck(shape):
    packed = torch.randn(shape)
    torch.library.opcheck(registered.gated_activation, (packed, "silu"))
    if packed.shape[-1]:
        torch.library.opcheck(registered.gated_activation_quantized, (packed, torch.int8, "gelu"))


def test_torch_compile_sees_one_op():
    def layer(packed):
        numbers, scales = gated_activation_quantized(packed * 2, torch.int8, "gelu_tanh")
        return gated_activation(packed), dequantize(numbers, scales, torch.float32)

    packed = torch.randn(3, 8)
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(packed), layer(packed))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="there is no activation 'relu'; there are silu, gelu, gelu_tanh"):
        gated_activation(torch.zeros(2, 4), "relu")
    with pytest.raises(ValueError, match=r"two halves of the last axis, not of shape \(2, 5\)"):
        gated_activation(torch.zeros(2, 5))
    with pytest.raises(ValueError, match=r"not torch.int32"):
        gated_activation_quantized(torch.zeros(2, 4), torch.int32)
