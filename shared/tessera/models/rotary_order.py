"""Which numbers of a head a rotary embedding turns into each other, and weights in the order that `int8_decoder` turns.

That is GPT-NeoX's: number i of a head's first half with number i of its second. Others pair neighbours (GLM, Ernie). A
product of queries and keys is the same in any order that both have, so theirs are put into that one, once.

Shape letters: D head dim, H heads, C outputs of the fused projection.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tessera_kernels.int8_decoder import Layer, Linear, Sizes

TRIED = (0, 3, 50)
"""Positions."""
FARTHEST = 1e-4


def order_of(attention: nn.Module, rotary: nn.Module, dim: int) -> torch.Tensor | str:
    """The order of a head's numbers in which the embedding is GPT-NeoX's, int64 [D]; or what is different about it.

    Found by trying the function that the attention's own source calls.
    """
    apply = getattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None)
    if apply is None:
        return "it has no rotary embedding that is known"
    head_11TD = torch.randn(1, 1, len(TRIED), dim, generator=torch.Generator().manual_seed(0))
    try:
        cosine_1TD, sine_1TD = (one.float().cpu() for one in rotary(head_11TD, torch.tensor([TRIED])))
        if cosine_1TD.shape[-1] != dim:
            return f"{cosine_1TD.shape[-1]} of a head's {dim} numbers are rotated"
        turned, _ = apply(head_11TD, head_11TD, cosine_1TD, sine_1TD)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"a rotary embedding that is called in another way ({error})"
    halves, neighbours = torch.arange(dim), torch.arange(dim).view(-1, 2).t().reshape(-1)
    for order in (halves, neighbours):
        x = head_11TD[..., order]
        first, second = x.chunk(2, dim=-1)
        ours = x * cosine_1TD + torch.cat([-second, first], dim=-1) * sine_1TD
        if float((ours - turned[..., order]).abs().max()) < FARTHEST:
            return order
    return "a rotary embedding of another kind"


def reordered(layer: Layer, sizes: Sizes, order_D: torch.Tensor) -> Layer:
    """The layer with the numbers of its queries and keys in an order."""
    turned, dim = sizes.heads + sizes.kv_heads, sizes.head_dim
    order_C = (torch.arange(turned)[:, None] * dim + order_D).reshape(-1)
    values_C = torch.arange(turned * dim, (turned + sizes.kv_heads) * dim)
    return replace(
        layer,
        qkv=_taken(layer.qkv, torch.cat([order_C, values_C])),
        query_norm_D=_maybe(layer.query_norm_D, order_D),
        key_norm_D=_maybe(layer.key_norm_D, order_D),
    )


def _taken(linear: Linear, order_C: torch.Tensor) -> Linear:
    weight = linear.weight
    changes: dict[str, Any] = {"weight_KN": weight.weight_KN.t()[order_C].t()}
    changes |= {"scale_N": weight.scale_N[order_C], "float_MN": weight.float_MN[:, order_C]}
    return replace(linear, weight=replace(weight, **changes), bias_N=_maybe(linear.bias_N, order_C))


def _maybe(values: torch.Tensor | None, order: torch.Tensor) -> torch.Tensor | None:
    return None if values is None else values[order]
