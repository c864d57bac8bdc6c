"""Root-mean-square normalization equals its definition in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera_kernels.rms_norm import cpu, rms_norm


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
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * (weight.double() + offset)
    with pytest.MonkeyPatch.context() as patch:
        if implementation == "reference":
            patch.setattr(cpu, "suited", lambda *_: False)
        got = rms_norm(x, weight, 1e-6, offset=offset)
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=tolerance)


def test_an_overflow_stays_in_its_row():
    x = torch.randn(3, 8)
    x[1, 2] = float("nan")
    finite = torch.isfinite(rms_norm(x, torch.ones(8), 1e-6))
    assert finite.all(1).tolist() == [True, False, True]


def test_a_weight_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="does not fit rows of 4"):
        rms_norm(torch.zeros(2, 4), torch.ones(3), 1e-6)
