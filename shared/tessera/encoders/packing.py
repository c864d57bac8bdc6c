"""Attention over texts that are packed into one row without padding: an `AttentionInterface` of Transformers.

The forward pass sees `[1, tokens]`. Every layer's linear parts run over all tokens at once; attention alone knows where
a text begins and ends, from the keyword argument `tessera_packing`, which the model passes on. Texts of similar length
attend together, padded to the longest of them: that padding costs only attention, which is cheap for short texts.

Shape letters: T tokens of the row, B texts of a group, L tokens of the longest text of a group, Q query heads, H key
heads, D head dim. Knows no model.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from tessera.errors import ModelLoadError
from tessera_kernels.attention import attention as bidirectional_attention

NAME = "tessera_packed"
SIMILAR = 1.25
"""Texts attend together if the longest has at most this many times the tokens of the shortest …"""
SIMILAR_TOKENS = 8
"""… or at most so many tokens more."""
BLOCK = 256
"""Queries that attend together in a layer with a window, where a text is much longer than the window."""


@dataclass(frozen=True)
class AttentionGroup:
    """Consecutive texts of the row that attend together.

    Attributes:
        begin: row of the first token.
        end: row behind the last token.
        texts: number of texts.
        longest: tokens of the longest text.
        lengths_B: tokens of each text; None if all are as long as the longest.
        rows_BL: rows of the padded texts, counted from `begin`; None without padding.
        places_T: place of each token in the padded texts; None without padding.
    """

    begin: int
    end: int
    texts: int
    longest: int
    lengths_B: torch.Tensor | None = None
    rows_BL: torch.Tensor | None = None
    places_T: torch.Tensor | None = None


@dataclass
class Packing:
    """Where the texts of a row are, and what the layers said when they attended.

    Attributes:
        groups: the texts in the order of the row.
        calls: how often a layer called `attention`.
        windows: the windows that layers asked for.
    """

    groups: list[AttentionGroup]
    calls: int = 0
    windows: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Packing:
        """The packing of texts in ascending order of their lengths."""
        groups, begin, rest = [], 0, list(lengths)
        while rest:
            most = max(rest[0] * SIMILAR, rest[0] + SIMILAR_TOKENS)
            members = list(itertools.takewhile(lambda length: length <= most, rest))  # noqa: B023 - used at once
            rest = rest[len(members) :]
            groups.append(_group(begin, members, device))
            begin += sum(members)
        return cls(groups)


def _group(begin: int, lengths: list[int], device: torch.device) -> AttentionGroup:
    end, longest = begin + sum(lengths), max(lengths)
    if min(lengths) == longest:
        return AttentionGroup(begin, end, len(lengths), longest)
    lengths_B = torch.tensor(lengths)
    starts_B = torch.cumsum(lengths_B, 0) - lengths_B
    offsets_L = torch.arange(longest)
    inside_BL = offsets_L < lengths_B[:, None]
    rows_BL = torch.where(inside_BL, starts_B[:, None] + offsets_L, 0)
    places_T = inside_BL.flatten().nonzero()[:, 0]
    return AttentionGroup(
        begin, end, len(lengths), longest, lengths_B.to(device), rows_BL.to(device), places_T.to(device)
    )


def attention(
    module: torch.nn.Module,
    query_1QTD: torch.Tensor,
    key_1HTD: torch.Tensor,
    value_1HTD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    tessera_packing: Packing | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within each text. Transformers' attention modules call this.

    Returns:
        [1, tokens, query heads, head dim] and None for the weights.

    Raises:
        ModelLoadError: the model does not pass its keyword arguments on to its attention, or has a mask of its own.
    """
    if tessera_packing is None:
        raise ModelLoadError(f"the layers {type(module).__name__} do not pass keyword arguments on to their attention")
    if attention_mask is not None:
        raise ModelLoadError(f"the layers {type(module).__name__} decide by a mask of their own what is attended to")
    tessera_packing.calls += 1
    if sliding_window is not None:
        tessera_packing.windows.add(sliding_window)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    scaling = query_1QTD.shape[3] ** -0.5 if scaling is None else scaling
    copies = query_1QTD.shape[1] // key_1HTD.shape[1]
    query_TQD, key_TQD, value_TQD = (
        each[0].transpose(0, 1).repeat_interleave(times, dim=1) if times > 1 else each[0].transpose(0, 1)
        for each, times in ((query_1QTD, 1), (key_1HTD, copies), (value_1HTD, copies))
    )
    parts = [
        _attend_group(group, query_TQD, key_TQD, value_TQD, causal, sliding_window, scaling)
        for group in tessera_packing.groups
    ]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0), None


def register() -> None:
    """Register `attention` with Transformers. Idempotent."""
    AttentionInterface.register(NAME, attention)


def _attend_group(
    group: AttentionGroup,
    query_TQD: torch.Tensor,
    key_TQD: torch.Tensor,
    value_TQD: torch.Tensor,
    causal: bool,
    window: int | None,
    scaling: float,
) -> torch.Tensor:
    def texts(rows_TQD: torch.Tensor) -> torch.Tensor:
        mine = rows_TQD[group.begin : group.end]
        if group.rows_BL is not None:
            return mine[group.rows_BL]
        return mine.view(group.texts, group.longest, *mine.shape[1:])

    query, key, value = texts(query_TQD), texts(key_TQD), texts(value_TQD)
    if not causal and (window is None or window >= group.longest):
        out_BLQD = bidirectional_attention(query, key, value, scaling=scaling, lengths_B=group.lengths_B)
    else:
        out_BLQD = _masked(query, key, value, group, causal, window, scaling)
    out_TQD = out_BLQD.flatten(0, 1)
    return out_TQD if group.places_T is None else out_TQD[group.places_T]


def _masked(
    query_BLQD: torch.Tensor,
    key_BLQD: torch.Tensor,
    value_BLQD: torch.Tensor,
    group: AttentionGroup,
    causal: bool,
    window: int | None,
    scaling: float,
) -> torch.Tensor:
    """Causal attention, attention in a window, or both. A token sees those less than `window` places away.

    With a window, queries attend in blocks, each to the keys within its reach, so that long texts take linear time.
    """
    query, key, value = (each.transpose(1, 2) for each in (query_BLQD, key_BLQD, value_BLQD))
    longest = group.longest
    if window is None:
        # Padding is behind a text, where no query of the text looks.
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
        return out.transpose(1, 2)
    outs = []
    for begin in range(0, longest, BLOCK):
        end = min(longest, begin + BLOCK)
        first, last = max(0, begin - window + 1), end if causal else min(longest, end + window - 1)
        at_L1 = torch.arange(begin, end, device=query.device)[:, None]
        key_at = torch.arange(first, last, device=query.device)
        seen = (at_L1 - key_at).abs() < window
        if causal:
            seen &= key_at <= at_L1
        if group.lengths_B is not None and not causal:
            seen = seen & (key_at < group.lengths_B[:, None, None, None])
            seen = seen | (key_at == at_L1)  # a padded query sees itself, so that nothing is divided by 0
        outs.append(
            scaled_dot_product_attention(
                query[:, :, begin:end], key[:, :, first:last], value[:, :, first:last], attn_mask=seen, scale=scaling
            )
        )
    return torch.cat(outs, dim=2).transpose(1, 2)
