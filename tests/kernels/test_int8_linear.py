"""`int8_linear`: the compiled CPU code equals the reference, outliers cost no precision, and bad input is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tessera_kernels.int8_linear import cpu, int8_linear, quantize_weight


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(0, 70),
    inputs=st.integers(2, 130),
    outputs=st.integers(1, 90),
    bias=st.booleans(),
    strided=st.booleans(),
    columns=st.integers(0, 3),
)
@example(tokens=1, inputs=129, outputs=3, bias=False, strided=True, columns=0)  # a value halfway between two levels
def test_compiled_code_equals_the_reference(tokens, inputs, outputs, bias, strided, columns):
    torch.manual_seed(tokens)
    x = torch.randn(inputs, tokens).t() if strided else torch.randn(tokens, inputs)
    exact = torch.randperm(inputs)[: min(columns, inputs - 1)]
    x[:, exact] *= 40
    weight = quantize_weight(torch.randn(outputs, inputs), exact, torch.rand(inputs) if strided else None)
    added = torch.randn(outputs) if bias else None
    got = int8_linear(x, weight, added)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "suited", lambda *_: False)
        expected = int8_linear(x, weight, added)
    if bias or len(exact):  # a fused multiply-add rounds once where the reference rounds twice
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)
    else:
        assert torch.equal(got, expected)


def test_outlier_columns_keep_the_precision_of_the_other_inputs():
    torch.manual_seed(1)
    x, weight = torch.randn(20, 300), torch.randn(80, 300)
    large = torch.tensor([7, 100, 250])
    x[:, large] *= 100
    wanted = x @ weight.t()

    def error(columns):
        got = int8_linear(x, quantize_weight(weight, columns))
        return (got - wanted).square().mean().sqrt() / (x.index_fill(1, large, 0.0) @ weight.t()).square().mean().sqrt()

    assert error(large) < 0.02
    assert error(None) > 10 * error(large)


def test_smoothing_lowers_the_error_of_inputs_of_different_magnitudes():
    torch.manual_seed(1)
    sizes = torch.logspace(-1, 1, 256)[torch.randperm(256)]
    x, weight = torch.randn(30, 256) * sizes, torch.randn(64, 256)
    wanted = x @ weight.t()

    def error(largest):
        got = int8_linear(x, quantize_weight(weight, torch.tensor([5]), largest))
        return (got - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()

    assert error(x.abs().amax(0)) < 0.8 * error(None)
    constant = torch.zeros(256)
    assert torch.isfinite(int8_linear(x, quantize_weight(weight, None, constant))).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("columns", [None, torch.tensor([3, 32])])
def test_a_token_that_is_not_finite_affects_no_other(bad, columns):
    weight = quantize_weight(torch.randn(20, 33), columns)
    x = torch.randn(3, 33)
    x[1, 32] = bad
    finite = torch.isfinite(int8_linear(x, weight))
    assert finite.all(1).tolist() == [True, False, True]
    assert not finite[1].any()


def test_bad_input_is_refused():
    weight = quantize_weight(torch.randn(4, 8))
    with pytest.raises(ValueError, match="do not fit together"):
        int8_linear(torch.randn(2, 7), weight)
    with pytest.raises(ValueError, match="do not fit together"):
        int8_linear(torch.randn(2, 8), replace(weight, weight_KN=weight.weight_KN.float()))
    with pytest.raises(ValueError, match="one input"):
        int8_linear(torch.randn(2, 1), quantize_weight(torch.randn(4, 1)))


def test_code_is_compiled_without_a_cache_where_no_folder_can_be_written(monkeypatch):
    from tessera_kernels.cpu import compiled

    real = compiled.numba

    class NoPlace:
        @staticmethod
        def njit(**options):
            if options.pop("cache", False):
                return lambda function: (_ for _ in ()).throw(RuntimeError("no locator available"))
            return real.njit(**options)

    monkeypatch.setattr(compiled, "numba", NoPlace)

    @compiled.compiled(compiled.REDUCTIONS)
    def twice(value):
        return value + value

    assert twice(2) == 4
    monkeypatch.setattr(compiled, "numba", None)
    assert not compiled.available()
    assert compiled.compiled(compiled.REDUCTIONS)(len) is len
