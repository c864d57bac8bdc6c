"""Smoothed keys lose less when they are quantized to int8, and give the same scores."""

from __future__ import annotations

import pytest
import torch

from tessera.sequence.runner.compiled.key_smoothing import smooth_keys
from tessera_kernels.int8_decoder import DecoderConfig, DecoderLayer, DecoderLinear
from tessera_kernels.int8_linear import int8_linear, quantize_weight

HEADS, KV_HEADS, DIM, FEATURES, TOKENS = 4, 2, 16, 64, 24
SIZES = DecoderConfig(FEATURES, HEADS, KV_HEADS, DIM, "silu", 1e-5, 0.25)


def layer(*, norms: bool, bias: bool) -> DecoderLayer:
    torch.manual_seed(3)
    weight_CF = torch.randn((HEADS + 2 * KV_HEADS) * DIM, FEATURES)
    keys_C1 = weight_CF[HEADS * DIM : (HEADS + KV_HEADS) * DIM].view(KV_HEADS, DIM, FEATURES)
    keys_C1[:, 3] *= 20.0
    qkv = DecoderLinear(quantize_weight(weight_CF, torch.tensor([5, 9])), torch.randn(len(weight_CF)) if bias else None)
    small = DecoderLinear(quantize_weight(torch.randn(16, 16)), None)
    weights = (torch.rand(DIM) + 0.5, torch.rand(DIM) + 0.5)
    query_norm, key_norm = weights if norms else (None, None)
    return DecoderLayer(
        torch.ones(FEATURES), qkv, query_norm, key_norm, small, torch.ones(FEATURES), small, small, None
    )


def heads_of(made: DecoderLayer, x_TF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and keys, rotated, and values: [T, heads, D]."""
    qkv = int8_linear(x_TF, made.qkv.weight, made.qkv.bias_N)
    q, k, v = (
        part.view(len(x_TF), -1, DIM) for part in qkv.split([HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], dim=1)
    )
    if made.query_norm_D is not None and made.key_norm_D is not None:
        q = torch.nn.functional.rms_norm(q, [DIM]) * made.query_norm_D
        k = torch.nn.functional.rms_norm(k, [DIM]) * made.key_norm_D
    angle_T1D = (torch.arange(len(x_TF))[:, None] * 0.3 ** torch.arange(DIM // 2)).repeat(1, 2)[:, None]
    swap = lambda x: torch.cat([-x[..., DIM // 2 :], x[..., : DIM // 2]], dim=-1)  # noqa: E731
    return q * angle_T1D.cos() + swap(q) * angle_T1D.sin(), k * angle_T1D.cos() + swap(k) * angle_T1D.sin(), v


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.einsum("thd,shd->hts", q.double(), k.repeat_interleave(HEADS // KV_HEADS, dim=1).double())


def quantized(k: torch.Tensor) -> torch.Tensor:
    scale = k.abs().amax(-1, keepdim=True) / 127
    return (k / scale).round() * scale


@pytest.mark.parametrize(("norms", "bias"), [(False, False), (False, True), (True, False)])
def test_scores_stay_and_quantizing_costs_less(norms: bool, bias: bool) -> None:
    x_TF, before = (
        torch.randn(TOKENS, FEATURES, generator=torch.Generator().manual_seed(1)),
        layer(norms=norms, bias=bias),
    )
    q, k, v = heads_of(before, x_TF)
    after = smooth_keys(before, SIZES, k.abs().amax(dim=0))
    smooth_q, smooth_k, same_v = heads_of(after, x_TF)
    exact = scores(q, k)
    torch.testing.assert_close(scores(smooth_q, smooth_k), exact, rtol=1e-4, atol=1e-4 * exact.abs().max().item())
    assert torch.equal(same_v, v)
    lost, loses = ((scores(one, quantized(other)) - exact).norm() for one, other in ((q, k), (smooth_q, smooth_k)))
    # Norms already make keys smooth: there is little to win, and nothing may be lost.
    assert loses < (1.05 if norms else 0.8) * lost


def test_without_any_key_the_layer_stays() -> None:
    before = layer(norms=False, bias=False)
    after = smooth_keys(before, SIZES, torch.zeros(KV_HEADS, DIM))
    torch.testing.assert_close(after.qkv.weight.scale_N, before.qkv.weight.scale_N)
