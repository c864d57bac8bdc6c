"""Cross-attention that does not compute the padding of prompts, for Diffusers' own blocks of Wan.

Wan's prompts are 512 tokens long, and every token after the words is the same vector of zeros. In a softmax, n equal
keys with equal values weigh as much as one of them whose score is log(n) higher. So a pass needs the words of its
longest prompt and one padding token; in a small model this saves two fifths of the arithmetic. Knows no requests.

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

LENGTH_MULTIPLE = 16
"""Tokens: the prompts of a pass are padded to a multiple of this, so that few different lengths occur."""


class ShortPromptAttention(WanAttnProcessor):  # type: ignore[misc]
    """A processor of Diffusers' `WanAttention` that adds a bias to the scores; a transformer's blocks share one."""

    def __init__(self) -> None:
        super().__init__()
        self._bias: torch.Tensor | None = None

    @contextlib.contextmanager
    def use_bias(self, bias_NS: torch.Tensor | None) -> Iterator[None]:
        """Add `bias_NS` to the scores while the context is open; None when all 512 tokens of the prompts are given."""
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
        """Compute attention as `WanAttnProcessor.__call__` does, with the bias as its mask."""
        mask = attention_mask if self._bias is None else self._bias[:, None, None]
        attended: torch.Tensor = super().__call__(attn, hidden_states, encoder_hidden_states, mask, rotary_emb)
        return attended


def accept_short_prompts(transformer: Any, blocks: Sequence[nn.Module]) -> ShortPromptAttention | None:
    """Let the blocks of a transformer take prompts without most of their padding.

    Returns:
        The processor that all cross-attentions share. None when the blocks are not Diffusers' own, or when they read a
        first frame's features beside the prompt, which are located by counting from the prompt's end.
    """
    if transformer.config.image_dim is not None or not all(type(block) is WanTransformerBlock for block in blocks):
        return None
    shared = ShortPromptAttention()
    for block in blocks:
        attention: Any = block.attn2
        attention.set_processor(shared)
    return shared


def pad_prompts(prompts: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    """Stack prompts [1, words, D] to one tensor [N, length, D], with zeros after the words of each."""
    rows = [torch.nn.functional.pad(prompt, (0, 0, 0, length - prompt.shape[1])) for prompt in prompts]
    return torch.cat(rows)


def shorten_prompts(prompts: Sequence[torch.Tensor], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stack prompts [1, words, D] so that attention to them equals attention to `length` tokens each.

    Returns:
        Prompts [N, S, D], with at least one padding token after the words of each unless the words fill `length`, and
        the bias [N, S] for the scores, with which the padding tokens of a row weigh as much as all of them would.
    """
    words = [prompt.shape[1] for prompt in prompts]
    short = min(length, -(-(max(words) + 1) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)
    stacked = pad_prompts(prompts, short)
    bias_NS = stacked.new_zeros(len(words), short)
    for row, count in enumerate(words):
        if count < short:
            bias_NS[row, count:] = math.log((length - count) / (short - count))
    return stacked, bias_NS
