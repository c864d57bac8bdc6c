"""The block of Wan 2.1 and 2.2 (Diffusers' `WanTransformerBlock`): four passes over the tokens beside its products.

Shapes: B rows of a pass, T tokens, S tokens of the prompt, C channels; modulations are [B, 1 or T, C].
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from tessera.diffusion.families.block_attention import Precision, RotaryTables, attend, project_out
from tessera_kernels.layer_norm import adaptive_norm, gated_residual

PROMPT_TOKENS = 512
"""Tokens of the prompt; the tokens before them are features of a first frame."""


class WanBlock(nn.Module):
    """Takes the place of one of Diffusers' blocks, with that block's parts.

    Args:
        block: a `WanTransformerBlock`.
        precision: precision of self-attention.
        tables: rotary tables that all blocks of a transformer share.
    """

    written: ClassVar[tuple[str, ...]] = ("hidden_states",)
    """Arguments that `forward` writes to; they must be contiguous."""

    def __init__(self, block: Any, precision: Precision, tables: RotaryTables) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = block.norm1, block.norm2, block.norm3
        self.attn1, self.attn2, self.ffn = block.attn1, block.attn2, block.ffn
        self.scale_shift_table = block.scale_shift_table
        self.attn1.set_processor(WanSelfAttention(precision, tables))
        self.attn2.set_processor(WanCrossAttention())

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        rotary_emb: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Update the clip's tokens [B, T, C] in place and return them.

        `encoder_hidden_states` is the prompt [B, S, C], `temb` the embedded timesteps [B, 6, C] or [B, T, 6, C], and
        `rotary_emb` the rotary positions of the clip's tokens.
        """
        x = hidden_states
        modulation = self.scale_shift_table + temb.float()
        parts = modulation.unbind(2) if temb.ndim == 4 else modulation.split(1, dim=1)
        shift, scale, gate, feed_shift, feed_scale, feed_gate = parts
        normed = adaptive_norm(x, scale, shift, epsilon=self.norm1.eps)
        attended = self.attn1(normed, None, None, rotary_emb)
        if isinstance(self.norm2, nn.Identity):
            gated_residual(x, attended, gate)
            normed = x
        else:
            weight, zero = self.norm2.weight, torch.zeros_like(shift[:, :1])
            normed = adaptive_norm(
                x,
                zero,
                zero,
                epsilon=self.norm2.eps,
                weight_C=weight,
                bias_C=self.norm2.bias,
                added_BTC=attended,
                gate_BSC=gate,
            )
        attended = self.attn2(normed, encoder_hidden_states, None, None)
        normed = adaptive_norm(x, feed_scale, feed_shift, epsilon=self.norm3.eps, added_BTC=attended)
        gated_residual(x, self.ffn(normed), feed_gate)
        return x


class WanSelfAttention:
    """A processor of Diffusers' `WanAttention`: rotates positions in place and does not copy heads."""

    def __init__(self, precision: Precision, tables: RotaryTables) -> None:
        self.precision = precision
        self.tables = tables

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None,  # noqa: ARG002 - a processor's arguments
        attention_mask: torch.Tensor | None,  # noqa: ARG002
        rotary_emb: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Attend from the clip [B, T, C] to itself. Returns [B, T, C]."""
        query, key = attn.to_q(hidden_states), attn.to_k(hidden_states)
        value = attn.to_v(hidden_states)
        query, key = attn.norm_q(query), attn.norm_k(key)
        heads = (-1, query.shape[2] // attn.heads)
        self.tables.rotate(query.unflatten(2, heads), key.unflatten(2, heads), rotary_emb)
        return project_out(attn, attend(query, key, value, attn.heads, precision=self.precision))


class WanCrossAttention:
    """A processor of Diffusers' `WanAttention` for the prompt, and for a first frame's features if there are any.

    Always exact: a prompt has few keys, so lower precision would gain little.
    """

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,  # noqa: ARG002 - a processor's arguments
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """Attend from the clip [B, T, C] to the prompt [B, S, C]. Returns [B, T, C]."""
        prompt, image = encoder_hidden_states, None
        if attn.add_k_proj is not None:
            image, prompt = prompt[:, :-PROMPT_TOKENS], prompt[:, -PROMPT_TOKENS:]
        query = attn.norm_q(attn.to_q(hidden_states))
        key, value = attn.norm_k(attn.to_k(prompt)), attn.to_v(prompt)
        attended = attend(query, key, value, attn.heads)
        if image is not None:
            key, value = attn.norm_added_k(attn.add_k_proj(image)), attn.add_v_proj(image)
            attended = attend(query, key, value, attn.heads) + attended
        return project_out(attn, attended)
