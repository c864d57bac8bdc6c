"""Cross-attention to prompts whose padding is not computed, for Diffusers' own blocks of Wan.

Wan's prompts are 512 tokens long, and all behind the words are the same token: zeros. Equal keys with equal values have
in a softmax the part of one of them with the logarithm of their number added to its score. So a pass needs the longest
prompt's words and one token more, and little of its arithmetic is padding (two fifths of it, in a small model).

Shape letters: N rows of a pass, S tokens of the prompts, D features.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from diffusers.models.transformers.transformer_wan import WanAttnProcessor, WanTransformerBlock
from torch import nn

EVERY = 16
"""Prompts of a pass are made a multiple of so many tokens long, so that few lengths are ever computed."""


class ShortPromptAttention(WanAttnProcessor):  # type: ignore[misc]
    """A processor of Diffusers' `WanAttention`; all blocks of a transformer share it."""

    def __init__(self) -> None:
        super().__init__()
        self._bias: torch.Tensor | None = None

    @contextlib.contextmanager
    def of(self, bias_NS: torch.Tensor | None) -> Iterator[None]:
        """During a pass: what is added to the scores, or None where all 512 tokens are there."""
        self._bias = bias_NS
        try:
            yield
        finally:
            self._bias = None

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rotary_emb: Any = None,
    ) -> torch.Tensor:
        """See `WanAttnProcessor`."""
        mask = attention_mask if self._bias is None else self._bias[:, None, None]
        attended: torch.Tensor = super().__call__(attn, hidden_states, encoder_hidden_states, mask, rotary_emb)
        return attended


def shorten(transformer: Any, blocks: Sequence[nn.Module]) -> ShortPromptAttention | None:
    """Let the blocks of a transformer take short prompts.

    Returns:
        What their attentions share; None where they are not Diffusers' own, or read a first frame's features beside
        the prompt, whose place is counted from the end.
    """
    if transformer.config.image_dim is not None or not all(type(block) is WanTransformerBlock for block in blocks):
        return None
    shared = ShortPromptAttention()
    for block in blocks:
        attention: Any = block.attn2
        attention.set_processor(shared)
    return shared


def padded(prompts: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    """Prompts [1, words, D] as one tensor [N, length, D], zeros behind their words."""
    rows = [torch.nn.functional.pad(prompt, (0, 0, 0, length - prompt.shape[1])) for prompt in prompts]
    return torch.cat(rows)


def shortened(prompts: Sequence[torch.Tensor], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts [1, words, D] that stand for ones of `length` tokens.

    Returns:
        [N, S, D] with at least one zero behind the words of each unless they fill its length, and what is to be added
        to the scores, [N, S]: all zeros of a row together count as many as it lacks.
    """
    words = [prompt.shape[1] for prompt in prompts]
    short = min(length, -(-(max(words) + 1) // EVERY) * EVERY)
    whole = padded(prompts, short)
    bias_NS = whole.new_zeros(len(words), short)
    for row, count in enumerate(words):
        if count < short:
            bias_NS[row, count:] = math.log((length - count) / (short - count))
    return whole, bias_NS
