"""What blocks of every family share: attention of a chosen precision, positions as pairs, projections in one product.

Shape letters: B rows of a pass, T tokens, S tokens that are attended to, H heads, D head dim, C = H · D, P rows of a
table, F pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import nn

from tessera_kernels.attention import attention
from tessera_kernels.rotary import rotary_by_table

Precision = Literal["exact", "int8", "int8_fp8"]
"""What scores, and values, of self attention are made of: see `tessera_kernels.attention`."""
SELF, CROSS, IMAGE = ("to_q", "to_k", "to_v"), ("to_k", "to_v"), ("add_k_proj", "add_v_proj")
"""Layers of an attention that read the same input."""


def attend(
    query_BTC: torch.Tensor,
    key_BSC: torch.Tensor,
    value_BSC: torch.Tensor,
    heads: int,
    *,
    precision: Precision = "exact",
    lengths_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """[B, T, C]: every query over all keys of its row, or over the first `lengths_B` of them."""
    query, key, value = (part.view(*part.shape[:2], heads, -1) for part in (query_BTC, key_BSC, value_BSC))
    out_BTHD = attention(
        query,
        key,
        value,
        lengths_B=lengths_B,
        int8_scores=precision != "exact",
        float8_values=precision == "int8_fp8",
    )
    return out_BTHD.flatten(2)


def attended_first(context_BSC: torch.Tensor, mask_B1S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is attended to, brought to the front of each row, and how much that is: int64 [B].

    Attention does not depend on the order of keys, so any mask is a length of keys in another order. Nobody waits for
    the device to know it.

    Args:
        context_BSC: keys and values are made of it, without positions.
        mask_B1S: 0 for what is attended to, a large negative number for the rest, as Diffusers adds it to scores. A row
            of which nothing is attended to attends to all, as there.
    """
    seen_BS = mask_B1S[:, 0] > -1.0
    seen_BS = seen_BS | ~seen_BS.any(1, keepdim=True)
    order_BS = seen_BS.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    return context_BSC.take_along_dim(order_BS[..., None], 1), seen_BS.sum(1)


class RotaryTables:
    """Cosines and sines of pairs, out of tables that have them twice: made once for all layers of a pass.

    Used by one thread.
    """

    def __init__(self) -> None:
        self._source: torch.Tensor | None = None
        self._unrotated = 0
        self._made: tuple[torch.Tensor, torch.Tensor] | None = None

    def rotate(
        self,
        query_BTHD: torch.Tensor,
        key_BTHD: torch.Tensor,
        given: tuple[torch.Tensor, torch.Tensor],
        *,
        unrotated: int = 0,
    ) -> None:
        """Turn neighbouring numbers of queries and keys, in place.

        Args:
            query_BTHD: contiguous, or a part of a product of several layers.
            key_BTHD: likewise.
            given: cosines and sines [..., tokens, …, 2F], each twice in a row; of one row for all, or of each row.
            unturned: tokens at the beginning of each row that have no position.
        """
        cos_PF, sin_PF = self._pairs(given, unrotated)
        query, key = (heads.view(-1, *heads.shape[2:]) for heads in (query_BTHD, key_BTHD))
        rotary_by_table(query, key, cos_PF, sin_PF, interleaved=True)

    def _pairs(self, given: tuple[torch.Tensor, torch.Tensor], unrotated: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._made is None or self._source is not given[0] or self._unrotated != unrotated:
            cos_PF, sin_PF = (table.reshape(-1, table.shape[-1])[:, ::2].float() for table in given)
            if unrotated:
                still = cos_PF.new_zeros(unrotated, cos_PF.shape[1])
                cos_PF, sin_PF = torch.cat([still + 1, cos_PF]), torch.cat([still, sin_PF])
            self._made = cos_PF.contiguous(), sin_PF.contiguous()
            self._source, self._unrotated = given[0], unrotated
        return self._made


def attentions(block: nn.Module) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    """The attentions of a block of Diffusers, and which of their layers read the same input."""
    for name, names in (("attn1", SELF), ("attn2", CROSS)):
        layer = getattr(block, name, None)
        if isinstance(layer, nn.Module):
            yield layer, names


def project_out(attn: Any, found_BTC: torch.Tensor) -> torch.Tensor:
    """Through an attention's last layer; dropout is for training."""
    out: torch.Tensor = attn.to_out[0](found_BTC)
    return out
