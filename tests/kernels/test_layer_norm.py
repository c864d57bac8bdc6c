"""Layer normalization and its modulated forms equal their definitions in float64, in every implementation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support import BOUNDS, poisoned, relative_rms

from tessera_kernels.layer_norm import adaptive_norm, gated_residual, layer_norm, registered

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
EPSILON = 1e-6


def defined(x, weight=None, bias=None, scale=None, shift=None, *, centered=True):
    x = x.double()
    if centered:
        x = x - x.mean(-1, keepdim=True)
    y = x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    y = y if weight is None else y * weight.double()
    y = y if bias is None else y + bias.double()
    return y if scale is None else y * (1 + scale.double()) + shift.double()


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(2, 70)),
    dtype=st.sampled_from(DTYPES),
    affine=st.booleans(),
)
def test_equals_the_definition(shape, dtype, affine):
    torch.manual_seed(sum(shape))
    x, weight, bias = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype), torch.randn(shape[-1]).to(dtype)
    got = layer_norm(x, weight, bias, epsilon=EPSILON) if affine else layer_norm(x, epsilon=EPSILON)
    assert relative_rms(got, defined(x, weight, bias) if affine else defined(x)) <= BOUNDS[dtype]


@settings(max_examples=25, deadline=None)
@given(
    samples=st.integers(1, 3),
    tokens=st.integers(1, 4),
    channels=st.sampled_from([2, 7, 64, 70, 129]),
    dtype=st.sampled_from(DTYPES),
    modulation=st.sampled_from([torch.float32, torch.bfloat16]),
    stepped=st.booleans(),
    affine=st.booleans(),
    added=st.booleans(),
    gated=st.booleans(),
    centered=st.booleans(),
    together=st.sampled_from([1, 4]),
)
def test_the_kernel_equals_the_definition(
    samples, tokens, channels, dtype, modulation, stepped, affine, added, gated, centered, together
):
    from tessera_kernels.layer_norm import triton

    torch.manual_seed(channels)
    x, y = (torch.randn(samples, tokens, channels).to(dtype) for _ in range(2))
    # Slices of one tensor, as a block's six modulations are.
    packed = torch.randn(samples, tokens if stepped else 1, 3, channels).to(modulation)
    scale, shift, gate = packed.unbind(2)
    weight, bias = (torch.randn(channels).to(dtype) if affine else None for _ in range(2))
    total = x.double() + y.double() * (gate.double() if gated else 1) if added else x.double()
    out, written = poisoned(samples * tokens, channels, dtype=dtype), x.clone()
    triton.norm(
        written.flatten(0, 1),
        out_TC=out,
        epsilon=EPSILON,
        tokens=tokens,
        centered=centered,
        weight_C=weight,
        bias_C=bias,
        scale_BSC=scale,
        shift_BSC=shift,
        added_TC=y.flatten(0, 1) if added else None,
        gate_BSC=gate if added and gated else None,
        configuration={"BLOCK_T": together, "num_warps": 1},
    )
    assert relative_rms(written, total) <= BOUNDS[dtype]
    # With two channels, rounding the sum changes the result a lot: normalize the stored sum, to test only this step.
    exact = defined(written, weight, bias, scale, shift, centered=centered)
    assert relative_rms(out.view_as(x), exact) <= BOUNDS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stepped", [False, True])
def test_the_kernel_adds_a_gated_residual(dtype, stepped):
    from tessera_kernels.layer_norm import triton

    x, y = torch.randn(2, 3, 70).to(dtype), torch.randn(2, 3, 70).to(dtype)
    gate = torch.randn(2, 3 if stepped else 1, 70)
    exact = x.double() + y.double() * gate.double()
    triton.gated_residual(x.flatten(0, 1), y.flatten(0, 1), gate, tokens=3)
    assert relative_rms(x, exact) <= BOUNDS[dtype]


def test_an_overflow_stays_in_its_row_of_the_kernel():
    from tessera_kernels.layer_norm import triton

    x = torch.randn(3, 8)
    x[1, 2] = float("nan")
    out = poisoned(3, 8, dtype=torch.float32)
    triton.norm(x, out_TC=out, epsilon=EPSILON, tokens=1, configuration={"BLOCK_T": 4, "num_warps": 1})
    assert out.isfinite().all(1).tolist() == [True, False, True]


def test_rows_and_modulations_beyond_two_to_the_31_elements_are_found():
    from tessera_kernels.layer_norm import triton

    far = 2**31 + 64  # only the pages that are touched take memory
    base = torch.empty(far + 8, dtype=torch.bfloat16)
    x, out = base.as_strided((2, 8), (far, 1)), poisoned(2, 8, dtype=torch.bfloat16)
    x.copy_(torch.randn(2, 8))
    scale = torch.empty(far + 8, dtype=torch.bfloat16).as_strided((2, 1, 8), (far, 8, 1))
    scale.copy_(torch.randn(2, 1, 8))
    triton.norm(x, out_TC=out, epsilon=EPSILON, tokens=1, scale_BSC=scale, shift_BSC=scale)
    assert relative_rms(out, defined(x, scale=scale[:, 0], shift=scale[:, 0])) <= BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("centered", [False, True])
def test_a_block_of_a_diffusion_transformer(centered):
    x, y, gate, scale, shift = (torch.randn(2, size, 16) for size in (5, 5, 1, 1, 5))
    total = x + y * gate
    got = adaptive_norm(x, scale, shift, epsilon=EPSILON, centered=centered, added_BTC=y, gate_BSC=gate)
    torch.testing.assert_close(x, total)
    torch.testing.assert_close(got, defined(total, scale=scale, shift=shift, centered=centered).float())
    gated_residual(x, y, gate)
    torch.testing.assert_close(x, total + y * gate)


def test_the_registered_ops_pass_opcheck():
    x, y, scale, shift, gate = (torch.randn(2, 3, 8) for _ in range(5))
    vector = torch.randn(8)
    torch.library.opcheck(registered.layer_norm, (x, vector, None, EPSILON))
    torch.library.opcheck(registered.layer_norm, (x.transpose(0, 1), None, vector, EPSILON))
    torch.library.opcheck(registered.adaptive_norm, (x, scale, shift, vector, vector, EPSILON, True))
    torch.library.opcheck(registered.gated_adaptive_norm, (x, y, gate, scale, shift, None, None, EPSILON, False))
    torch.library.opcheck(registered.gated_residual, (x, y, gate))


def test_torch_compile_sees_one_op():
    def block(x, y, gate, scale, shift):
        z = adaptive_norm(x, scale, shift, epsilon=EPSILON, added_BTC=y, gate_BSC=gate)
        gated_residual(x, z, gate)
        return layer_norm(adaptive_norm(x, scale, shift, epsilon=EPSILON), epsilon=EPSILON)

    inputs = [torch.randn(2, 3, 8) for _ in range(5)]
    kept = [tensor.clone() for tensor in inputs]
    whole = torch.compile(block, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(whole(*inputs), block(*kept))
    torch.testing.assert_close(inputs, kept)


def test_what_does_not_fit_is_refused():
    x = torch.zeros(2, 3, 4)
    fits = torch.zeros(2, 1, 4)
    with pytest.raises(ValueError, match=r"a bias of shape \(3,\) does not fit rows of 4"):
        layer_norm(x, None, torch.zeros(3), epsilon=EPSILON)
    with pytest.raises(ValueError, match=r"scale must be of shape \(2, 1 or 3, 4\), not \(2, 2, 4\)"):
        adaptive_norm(x, torch.zeros(2, 2, 4), fits, epsilon=EPSILON)
    with pytest.raises(ValueError, match=r"must be \[samples, tokens, channels\]"):
        adaptive_norm(x[0], fits, fits, epsilon=EPSILON)
    with pytest.raises(ValueError, match="nothing is"):
        adaptive_norm(x, fits, fits, epsilon=EPSILON, gate_BSC=fits)
    with pytest.raises(ValueError, match=r"must be as x, torch.float32 \(2, 3, 4\), not torch.float16"):
        gated_residual(x, x.half(), fits)
    with pytest.raises(ValueError, match="must be contiguous"):
        gated_residual(x.expand(2, 3, 4).transpose(0, 1), x.transpose(0, 1), torch.zeros(3, 1, 4))
