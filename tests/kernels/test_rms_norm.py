"""Root-mean-square normalization equals its definition in float64, in every implementation and variant."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support import BOUNDS, poisoned, relative_rms

from tessera_kernels.rms_norm import add_rms_norm, cpu, reference, registered, rms_norm, rms_norm_quantized
from tessera_kernels.storage.paged_kv import LARGEST, dequantize

QUANTIZED = [torch.int8, torch.float8_e4m3fn]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def defined(x: torch.Tensor, weight: torch.Tensor, offset: float) -> torch.Tensor:
    x, weight = x.double(), weight.double()
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (weight + offset)


@pytest.mark.parametrize("implementation", ["any", "reference"])
@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 70)),
    size=st.sampled_from([1e-20, 1.0, 1e15]),
    offset=st.sampled_from([0.0, 1.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_equals_the_definition(implementation, shape, size, offset, dtype):
    torch.manual_seed(sum(shape))
    x, weight = (torch.randn(*shape) * size).to(dtype), torch.randn(shape[-1]).to(dtype)
    exact = defined(x, weight, offset)
    with pytest.MonkeyPatch.context() as patch:
        if implementation == "reference":
            patch.setattr(cpu, "suited", lambda *_: False)
        got = rms_norm(x, weight, 1e-6, offset=offset)
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=tolerance)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 9),
    width=st.sampled_from([1, 7, 64, 70, 129, 300]),
    size=st.sampled_from([1e-20, 1.0, 1e15]),
    offset=st.sampled_from([0.0, 1.0]),
    dtype=st.sampled_from(DTYPES),
    together=st.sampled_from([1, 4]),
    residual=st.booleans(),
)
def test_the_kernel_equals_the_definition(rows, width, size, offset, dtype, together, residual):
    from tessera_kernels.rms_norm import triton

    torch.manual_seed(rows * width)
    size = size if dtype != torch.float16 else 1.0
    x, added = ((torch.randn(rows, width) * size).to(dtype) for _ in range(2))
    weight = torch.randn(width).to(dtype)
    out, written = poisoned(rows, width, dtype=dtype), added.clone()
    triton.rms_norm(
        x,
        weight,
        1e-6,
        offset,
        residual_TK=written if residual else None,
        out_TK=out,
        configuration={"BLOCK_T": together, "num_warps": 4},
    )
    total = x.double() + added.double() if residual else x
    assert relative_rms(out, defined(total, weight, offset)) <= BOUNDS[dtype] * (2 if residual else 1)
    if residual:
        assert relative_rms(written, total) <= BOUNDS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quantized", QUANTIZED)
@pytest.mark.parametrize("residual", [False, True])
def test_the_kernel_quantizes_what_it_normalizes(dtype, quantized, residual):
    from tessera_kernels.rms_norm import triton

    torch.manual_seed(0)
    x, added, weight = torch.randn(5, 70).to(dtype), torch.randn(5, 70).to(dtype), torch.randn(70).to(dtype)
    out, scale = poisoned(5, 70, dtype=quantized), poisoned(5, dtype=torch.float32)
    exact = defined(x.double() + added.double() if residual else x, weight, 0.0)
    written = added.clone() if residual else None
    triton.rms_norm(x, weight, 1e-6, 0.0, residual_TK=written, out_TK=out, scale_T=scale)
    assert relative_rms(scale, exact.abs().amax(-1) / LARGEST[quantized]) <= BOUNDS[torch.bfloat16]
    assert relative_rms(dequantize(out, scale, torch.float32), exact) <= BOUNDS[quantized]


@pytest.mark.parametrize("quantized", QUANTIZED)
def test_the_kernel_quantizes_as_the_reference_to_the_bit(quantized):
    from tessera_kernels.rms_norm import triton

    torch.manual_seed(1)
    x, weight = torch.randn(6, 256), torch.randn(256)
    x[3] = 0.0
    numbers, scales = reference.rms_norm_quantized(x, weight, 1e-6, 0.0, quantized)
    out, scale = poisoned(6, 256, dtype=quantized), poisoned(6, dtype=torch.float32)
    triton.rms_norm(x, weight, 1e-6, 0.0, out_TK=out, scale_T=scale)
    torch.testing.assert_close(scale, scales, rtol=1e-6, atol=0)
    assert (out.float() != numbers.float()).double().mean() < 0.01
    assert (out[3].float() == 0).all()


def test_an_overflow_stays_in_its_row():
    x = torch.randn(3, 8)
    x[1, 2] = float("nan")
    finite = torch.isfinite(rms_norm(x, torch.ones(8), 1e-6))
    assert finite.all(1).tolist() == [True, False, True]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("quantized", [None, *QUANTIZED])
def test_an_overflow_stays_in_its_row_of_the_kernel(value, quantized):
    from tessera_kernels.rms_norm import triton

    x = torch.randn(3, 8)
    x[1, 2] = value
    out = poisoned(3, 8, dtype=quantized or torch.float32)
    scale = poisoned(3, dtype=torch.float32) if quantized else None
    how = {"BLOCK_T": 4, "num_warps": 1}
    triton.rms_norm(x, torch.ones(8), 1e-6, 0.0, out_TK=out, scale_T=scale, configuration=how)
    found = out.isfinite().all(1) if scale is None else scale.isfinite()
    assert found.tolist() == [True, False, True]


def test_rows_beyond_two_to_the_31_elements_are_found():
    from tessera_kernels.rms_norm import triton

    far = 2**31 + 64  # only the pages that are touched take memory
    x = torch.empty(far + 8, dtype=torch.bfloat16).as_strided((2, 8), (far, 1))
    x.copy_(torch.randn(2, 8))
    out = poisoned(2, 8, dtype=torch.bfloat16)
    triton.rms_norm(x, torch.ones(8, dtype=torch.bfloat16), 1e-6, 0.0, out_TK=out)
    assert relative_rms(out, defined(x, torch.ones(8), 0.0)) <= BOUNDS[torch.bfloat16]


def test_a_sum_is_written_back_and_normalized():
    x, residual, weight = torch.randn(2, 3, 8), torch.randn(2, 3, 8), torch.randn(8)
    total = x + residual
    got = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, total)
    torch.testing.assert_close(got, rms_norm(total, weight, 1e-6))


@pytest.mark.parametrize("quantized", QUANTIZED)
def test_quantized_rows_times_their_scales_are_the_rows(quantized):
    x, residual, weight = torch.randn(2, 3, 64), torch.randn(2, 3, 64), torch.randn(64)
    exact = defined(x + residual, weight, 1.0)
    numbers, scales = rms_norm_quantized(x, weight, 1e-6, quantized, residual_TK=residual, offset=1.0)
    assert (numbers.dtype, scales.shape) == (quantized, (2, 3))
    assert relative_rms(dequantize(numbers, scales, torch.float32), exact) <= BOUNDS[quantized]


@pytest.mark.parametrize("shape", [(2, 3, 8), (0, 8), (8,)])
def test_the_registered_ops_pass_opcheck(shape):
    x, weight = torch.randn(shape), torch.randn(8)
    torch.library.opcheck(registered.rms_norm, (x, weight, 1e-6, 0.0))
    torch.library.opcheck(registered.add_rms_norm, (x, torch.randn(shape), weight, 1e-6, 0.0))
    torch.library.opcheck(registered.rms_norm_quantized, (x, weight, 1e-6, 0.0, torch.int8))
    torch.library.opcheck(registered.add_rms_norm_quantized, (x, torch.randn(shape), weight, 1e-6, 0.0, torch.int8))


def test_torch_compile_sees_one_op():
    def layer(x, residual, weight):
        y = add_rms_norm(x * 2, residual, weight, 1e-6)
        numbers, scales = rms_norm_quantized(y, weight, 1e-6, torch.int8)
        return rms_norm(y, weight, 1e-6), dequantize(numbers, scales, torch.float32)

    x, weight, residual = torch.randn(3, 8), torch.randn(8), torch.randn(3, 8)
    kept = residual.clone()
    whole = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(whole(x, residual, weight), layer(x, kept, weight))
    assert torch.equal(residual, kept)


def test_a_weight_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="does not fit rows of 4"):
        rms_norm(torch.zeros(2, 4), torch.ones(3), 1e-6)


def test_a_residual_or_dtype_that_does_not_fit_is_refused():
    x, weight = torch.zeros(2, 4), torch.ones(4)
    with pytest.raises(ValueError, match=r"must be as x, torch.float32 \(2, 4\), not torch.float32 \(3, 4\)"):
        add_rms_norm(x, torch.zeros(3, 4), weight, 1e-6)
    with pytest.raises(ValueError, match=r"must be contiguous: its strides \(1, 2\)"):
        add_rms_norm(x, torch.zeros(4, 2).T, weight, 1e-6)
    with pytest.raises(ValueError, match=r"int8 or torch.float8_e4m3fn, not torch.int32"):
        rms_norm_quantized(x, weight, 1e-6, torch.int32)
