"""Finds which elements of a head a rotary embedding pairs, and puts weights into the order that `int8_decoder` rotates.

`int8_decoder` has GPT-NeoX's order: element i of a head's first half is rotated with element i of its second half. GLM
and Ernie pair neighbours. The product of queries and keys is the same in any order that both have, so the weights of
such models are reordered once.

Shape letters: T tokens, D head dim, H heads, C outputs of the fused projection.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tessera_kernels.int8_decoder import DecoderConfig, DecoderLayer, DecoderLinear


def half_order(dim: int) -> torch.Tensor:
    """The order of a head's elements for a model with GPT-NeoX's pairs, which changes nothing; int64 [D]."""
    return torch.arange(dim)


def neighbour_order(dim: int) -> torch.Tensor:
    """The order of a head's elements that turns pairs of neighbours into GPT-NeoX's pairs; int64 [D]."""
    return torch.arange(dim).view(-1, 2).t().reshape(-1)


ORDERS = (half_order, neighbour_order)
"""The orders that are known, each as a function of the head dim."""


def rotations(rotary: nn.Module, position_1T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of positions from a model's rotary embedding, float32 [T, D]."""
    cosine_1TD, sine_1TD = rotary(torch.zeros(0), position_1T)  # it reads only dtype and device of the first
    return cosine_1TD[0].float().contiguous(), sine_1TD[0].float().contiguous()


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate heads [..., D] in GPT-NeoX's order."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-second, first], dim=-1) * sine


def reorder(layer: DecoderLayer, sizes: DecoderConfig, order_D: torch.Tensor) -> DecoderLayer:
    """The layer with the elements of its queries and keys in another order."""
    count, dim = sizes.heads + sizes.kv_heads, sizes.head_dim
    order_C = (torch.arange(count)[:, None] * dim + order_D).reshape(-1)
    values_C = torch.arange(count * dim, (count + sizes.kv_heads) * dim)
    return replace(
        layer,
        qkv=_select_outputs(layer.qkv, torch.cat([order_C, values_C])),
        query_norm_D=_reordered(layer.query_norm_D, order_D),
        key_norm_D=_reordered(layer.key_norm_D, order_D),
    )


def _select_outputs(linear: DecoderLinear, order_C: torch.Tensor) -> DecoderLinear:
    weight = linear.weight
    changes: dict[str, Any] = {"weight_KN": weight.weight_KN.t()[order_C].t()}
    changes |= {"scale_N": weight.scale_N[order_C], "outlier_weight_MN": weight.outlier_weight_MN[:, order_C]}
    return replace(linear, weight=replace(weight, **changes), bias_N=_reordered(linear.bias_N, order_C))


def _reordered(values: torch.Tensor | None, order: torch.Tensor) -> torch.Tensor | None:
    return None if values is None else values[order]
