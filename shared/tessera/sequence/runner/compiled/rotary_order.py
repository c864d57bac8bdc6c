"""Which numbers of a head a rotary embedding turns into each other, and weights in the order that `int8_decoder` turns.

That is GPT-NeoX's: number i of a head's first half with number i of its second. Others pair neighbours (GLM, Ernie). A
product of queries and keys is the same in any order that both have, so theirs are put into that one, once.

Shape letters: T tokens, D head dim, H heads, C outputs of the fused projection.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tessera_kernels.int8_decoder import DecoderConfig, DecoderLayer, DecoderLinear


def half_order(dim: int) -> torch.Tensor:
    """The order in which a head's numbers are GPT-NeoX's where they already are; int64 [D]."""
    return torch.arange(dim)


def neighbour_order(dim: int) -> torch.Tensor:
    """The order in which they are where neighbours are turned into each other; int64 [D]."""
    return torch.arange(dim).view(-1, 2).t().reshape(-1)


ORDERS = (half_order, neighbour_order)


def rotations(rotary: nn.Module, position_1T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of positions from a model's rotary embedding, float32 [T, D]."""
    cosine_1TD, sine_1TD = rotary(torch.zeros(0), position_1T)  # of the first it takes type and device alone
    return cosine_1TD[0].float().contiguous(), sine_1TD[0].float().contiguous()


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Heads [..., D] rotated in GPT-NeoX's way."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-second, first], dim=-1) * sine


def reorder(layer: DecoderLayer, sizes: DecoderConfig, order_D: torch.Tensor) -> DecoderLayer:
    """The layer with the numbers of its queries and keys in an order."""
    count, dim = sizes.heads + sizes.kv_heads, sizes.head_dim
    order_C = (torch.arange(count)[:, None] * dim + order_D).reshape(-1)
    values_C = torch.arange(count * dim, (count + sizes.kv_heads) * dim)
    return replace(
        layer,
        qkv=_taken(layer.qkv, torch.cat([order_C, values_C])),
        query_norm_D=_maybe(layer.query_norm_D, order_D),
        key_norm_D=_maybe(layer.key_norm_D, order_D),
    )


def _taken(linear: DecoderLinear, order_C: torch.Tensor) -> DecoderLinear:
    weight = linear.weight
    changes: dict[str, Any] = {"weight_KN": weight.weight_KN.t()[order_C].t()}
    changes |= {"scale_N": weight.scale_N[order_C], "outlier_weight_MN": weight.outlier_weight_MN[:, order_C]}
    return replace(linear, weight=replace(weight, **changes), bias_N=_maybe(linear.bias_N, order_C))


def _maybe(values: torch.Tensor | None, order: torch.Tensor) -> torch.Tensor | None:
    return None if values is None else values[order]
