"""Attention for the blocks of every family: attention of a chosen precision, rotary positions, fused projections.

Shapes: B rows of a pass, T tokens, S tokens that are attended to, H heads, D head dim, C = H · D, P rows of a table,
F pairs of elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import nn

from tessera_kernels.attention import attention
from tessera_kernels.rotary import rotary_by_table

Precision = Literal["exact", "int8", "int8_fp8"]
"""Precision of self-attention's scores, and after the underscore of its values; see `tessera_kernels.attention`."""
SELF, CROSS, IMAGE = ("to_q", "to_k", "to_v"), ("to_k", "to_v"), ("add_k_proj", "add_v_proj")
"""Layers of an attention that read the same input, so that they can be fused into one product."""


def attend(
    query_BTC: torch.Tensor,
    key_BSC: torch.Tensor,
    value_BSC: torch.Tensor,
    heads: int,
    *,
    precision: Precision = "exact",
    lengths_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend from every query to all keys of its row, or to the first `lengths_B` of them. Returns [B, T, C]."""
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
    """Move the unmasked tokens of each row to its front, so that a mask becomes a length.

    Attention does not depend on the order of keys, so any mask equals a length after reordering. Does not wait for the
    device.

    Args:
        context_BSC: input of the keys and values, which have no positions.
        mask_B1S: 0 for tokens that are attended to, a large negative value for masked ones, as Diffusers adds it to the
            scores. A row whose tokens are all masked attends to all of them, as in Diffusers.

    Returns:
        The reordered context [B, S, C] and the number of unmasked tokens of each row, int64 [B].
    """
    seen_BS = mask_B1S[:, 0] > -1.0
    seen_BS = seen_BS | ~seen_BS.any(1, keepdim=True)
    order_BS = seen_BS.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    return context_BSC.take_along_dim(order_BS[..., None], 1), seen_BS.sum(1)


class RotaryTables:
    """Tables of cosines and sines, one per pair, made once per pass from Diffusers' tables, which hold each one twice.

    Used by one thread.
    """

    def __init__(self) -> None:
        self._source: torch.Tensor | None = None
        self._unrotated = 0
        self._tables: tuple[torch.Tensor, torch.Tensor] | None = None

    def rotate(
        self,
        query_BTHD: torch.Tensor,
        key_BTHD: torch.Tensor,
        given: tuple[torch.Tensor, torch.Tensor],
        *,
        unrotated: int = 0,
    ) -> None:
        """Rotate pairs of neighbouring elements of queries and keys, in place.

        Args:
            query_BTHD: queries, contiguous or a part of a fused product.
            key_BTHD: keys, likewise.
            given: cosines and sines [..., tokens, …, 2F], each value twice in a row; one row for all, or one per row.
            unrotated: number of tokens at the beginning of each row that have no position.
        """
        cos_PF, sin_PF = self._pairs(given, unrotated)
        query, key = (heads.view(-1, *heads.shape[2:]) for heads in (query_BTHD, key_BTHD))
        rotary_by_table(query, key, cos_PF, sin_PF, interleaved=True)

    def _pairs(self, given: tuple[torch.Tensor, torch.Tensor], unrotated: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._tables is None or self._source is not given[0] or self._unrotated != unrotated:
            cos_PF, sin_PF = (table.reshape(-1, table.shape[-1])[:, ::2].float() for table in given)
            if unrotated:
                zeros = cos_PF.new_zeros(unrotated, cos_PF.shape[1])
                cos_PF, sin_PF = torch.cat([zeros + 1, cos_PF]), torch.cat([zeros, sin_PF])
            self._tables = cos_PF.contiguous(), sin_PF.contiguous()
            self._source, self._unrotated = given[0], unrotated
        return self._tables


def attentions(block: nn.Module) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    """Yield the attentions of one of Diffusers' blocks, each with its layers that read the same input."""
    for name, names in (("attn1", SELF), ("attn2", CROSS)):
        layer = getattr(block, name, None)
        if isinstance(layer, nn.Module):
            yield layer, names


def project_out(attn: Any, attended_BTC: torch.Tensor) -> torch.Tensor:
    """Apply an attention's output projection. Dropout is left out: it is for training."""
    out: torch.Tensor = attn.to_out[0](attended_BTC)
    return out
