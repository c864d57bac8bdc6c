"""`int8_linear` on a GPU keeps the promises of the CPU: outlier columns, smoothing, rows independent of the batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support import BOUNDS, poisoned, relative_rms

from tessera_kernels.int8_linear import Int8Weight, int8_linear, quantize_weight, reference
from tessera_kernels.int8_linear import triton as launcher

CONFIGURATION = {"B_T": 16, "B_N": 32, "B_K": 64, "SPLITS": 1, "num_warps": 4, "num_stages": 3}


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    tokens=st.integers(1, 40),
    inputs=st.integers(2, 200),
    outputs=st.integers(1, 90),
    bias=st.booleans(),
    smoothed=st.booleans(),
    columns=st.integers(0, 3),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_equals_the_reference(tokens, inputs, outputs, bias, smoothed, columns, dtype):
    torch.manual_seed(tokens)
    x = torch.randn(tokens, inputs)
    exact = torch.randperm(inputs)[: min(columns, inputs - 1)]
    x[:, exact] *= 40
    x = x.to(dtype)
    weight = quantize_weight(torch.randn(outputs, inputs), exact, torch.rand(inputs) if smoothed else None)
    added = torch.randn(outputs) if bias else None
    got = launcher.int8_linear(
        x, weight, added, out=poisoned(tokens, outputs, dtype=dtype), configuration=CONFIGURATION
    )
    assert got.dtype == dtype
    # A value halfway between two levels may be rounded either way: the reference multiplies where the kernel divides.
    assert relative_rms(got, reference.int8_linear(x.float(), weight, added)) < max(BOUNDS[dtype], 2e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("columns", [None, torch.tensor([3, 32])])
def test_a_token_that_is_not_finite_affects_no_other(bad, columns):
    weight = quantize_weight(torch.randn(20, 33), columns)
    x = torch.randn(3, 33)
    x[1, 32] = bad
    finite = torch.isfinite(launcher.int8_linear(x, weight, None))
    assert finite.all(1).tolist() == [True, False, True]
    assert not finite[1].any()


def test_a_row_has_the_same_bits_whatever_other_rows_are_in_the_batch():
    weight, x = quantize_weight(torch.randn(70, 130), torch.tensor([5])), torch.randn(90, 130)
    together = launcher.int8_linear(x, weight, None)
    for row in (0, 89):
        assert torch.equal(launcher.int8_linear(x[row : row + 1], weight, None)[0], together[row])


def test_the_registered_op_passes_opcheck():
    weight = quantize_weight(torch.randn(8, 64), torch.tensor([5]))
    parts = weight.weight_KN, weight.scale_N, weight.outlier_columns_M, weight.outlier_weight_MN, weight.smoothing_K
    assert isinstance(weight, Int8Weight)
    torch.library.opcheck(torch.ops.tessera.int8_linear, (torch.randn(2, 64), *parts, torch.ones(8)))
    compiled = torch.compile(lambda x: int8_linear(x, weight), backend="eager", fullgraph=True)
    x = torch.randn(3, 64)
    assert torch.equal(compiled(x), int8_linear(x, weight))
