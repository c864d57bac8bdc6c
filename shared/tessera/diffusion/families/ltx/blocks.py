"""The block of LTX-Video (Diffusers' `LTXVideoTransformerBlock`): three passes over the tokens beside its products.

Shapes: B rows of a pass, T tokens, S tokens of the prompt, C channels; modulations are [B, 1 or T, C].
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from tessera.diffusion.families.block_attention import Precision, RotaryTables, attend, attended_first, project_out
from tessera_kernels.layer_norm import adaptive_norm, gated_residual


class LTXBlock(nn.Module):
    """Takes the place of one of Diffusers' blocks, with that block's parts.

    Args:
        block: an `LTXVideoTransformerBlock`.
        precision: precision of self-attention.
        tables: rotary tables that all blocks of a transformer share.
    """

    written: ClassVar[tuple[str, ...]] = ("hidden_states",)
    """Arguments that `forward` writes to; they must be contiguous."""

    def __init__(self, block: Any, precision: Precision, tables: RotaryTables) -> None:
        super().__init__()
        self.norm1, self.norm2 = block.norm1, block.norm2
        self.attn1, self.attn2, self.ff = block.attn1, block.attn2, block.ff
        self.scale_shift_table = block.scale_shift_table
        self.attn1.set_processor(LTXSelfAttention(precision, tables))
        self.attn2.set_processor(LTXCrossAttention())

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor],
        encoder_attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Update the clip's tokens [B, T, C] in place and return them.

        `encoder_hidden_states` is the prompt [B, S, C], `temb` the embedded timesteps [B, 1 or T, 6C], and
        `encoder_attention_mask` the bias [B, 1, S] that masks the prompt's padding.
        """
        x = hidden_states
        modulation = self.scale_shift_table + temb.reshape(*temb.shape[:2], len(self.scale_shift_table), -1)
        shift, scale, gate, feed_shift, feed_scale, feed_gate = modulation.unbind(2)
        normed = adaptive_norm(x, scale, shift, epsilon=self.norm1.eps, weight_C=self.norm1.weight, centered=False)
        attended = self.attn1(normed, encoder_hidden_states=None, image_rotary_emb=image_rotary_emb)
        gated_residual(x, attended, gate)
        attended = self.attn2(x, encoder_hidden_states=encoder_hidden_states, attention_mask=encoder_attention_mask)
        normed = adaptive_norm(
            x,
            feed_scale,
            feed_shift,
            epsilon=self.norm2.eps,
            weight_C=self.norm2.weight,
            centered=False,
            added_BTC=attended,
        )
        gated_residual(x, self.ff(normed), feed_gate)
        return x


class LTXSelfAttention:
    """A processor of Diffusers' `LTXAttention`. Positions span all channels, so all heads are rotated as one."""

    def __init__(self, precision: Precision, tables: RotaryTables) -> None:
        self.precision = precision
        self.tables = tables

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None,  # noqa: ARG002 - a processor's arguments
        attention_mask: torch.Tensor | None,  # noqa: ARG002
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Attend from the clip [B, T, C] to itself. Returns [B, T, C]."""
        query, key = attn.to_q(hidden_states), attn.to_k(hidden_states)
        value = attn.to_v(hidden_states)
        query, key = attn.norm_q(query), attn.norm_k(key)
        self.tables.rotate(query.unsqueeze(2), key.unsqueeze(2), image_rotary_emb)
        return project_out(attn, attend(query, key, value, attn.heads, precision=self.precision))


class LTXCrossAttention:
    """A processor of Diffusers' `LTXAttention` for the prompt. Always exact: a prompt has few keys."""

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,  # noqa: ARG002 - a processor's arguments
    ) -> torch.Tensor:
        """Attend from the clip [B, T, C] to the prompt [B, S, C] under a mask bias [B, 1, S]. Returns [B, T, C]."""
        prompt, lengths = encoder_hidden_states, None
        if attention_mask is not None:
            prompt, lengths = attended_first(prompt, attention_mask)
        query, key, value = attn.to_q(hidden_states), attn.to_k(prompt), attn.to_v(prompt)
        query, key = attn.norm_q(query), attn.norm_k(key)
        return project_out(attn, attend(query, key, value, attn.heads, lengths_B=lengths))
