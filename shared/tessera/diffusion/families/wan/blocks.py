"""A block of Wan 2.1 and 2.2 (Diffusers' `WanTransformerBlock`): four passes over the tokens beside its products.

Shape letters: B rows of a pass, T tokens, S tokens of the prompt, C channels; modulations are [B, 1 or T, C].
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from tessera.diffusion.families.block_attention import Precision, RotaryTables, attend, project_out
from tessera_kernels.layer_norm import adaptive_norm, gated_residual

PROMPT_TOKENS = 512
"""Of the prompt; what stands before them is an image's."""


class WanBlock(nn.Module):
    """Stands where a block of Diffusers was, whose parts it has.

    Args:
        block: a `WanTransformerBlock`.
        precision: of self attention.
        tables: shared by all blocks.
    """

    written: ClassVar[tuple[str, ...]] = ("hidden_states",)
    """Arguments that are written to; contiguous."""

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
        """Hidden states [B, T, C], written to; prompt [B, S, C]; timesteps [B, 6, C] or [B, T, 6, C]; positions."""
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
            weight, still = self.norm2.weight, torch.zeros_like(shift[:, :1])
            normed = adaptive_norm(
                x,
                still,
                still,
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
    """A processor of Diffusers' `WanAttention`: positions are turned in place, heads are not copied."""

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
        """[B, T, C] → the same."""
        query, key = attn.to_q(hidden_states), attn.to_k(hidden_states)
        value = attn.to_v(hidden_states)
        query, key = attn.norm_q(query), attn.norm_k(key)
        heads = (-1, query.shape[2] // attn.heads)
        self.tables.rotate(query.unflatten(2, heads), key.unflatten(2, heads), rotary_emb)
        return project_out(attn, attend(query, key, value, attn.heads, precision=self.precision))


class WanCrossAttention:
    """A processor of Diffusers' `WanAttention`: the prompt, and before it a first frame's features where it has some.

    Always exact: a prompt has few keys, so little would be gained.
    """

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,  # noqa: ARG002 - a processor's arguments
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """[B, T, C] and [B, S, C] → [B, T, C]."""
        prompt, image = encoder_hidden_states, None
        if attn.add_k_proj is not None:
            image, prompt = prompt[:, :-PROMPT_TOKENS], prompt[:, -PROMPT_TOKENS:]
        query = attn.norm_q(attn.to_q(hidden_states))
        key, value = attn.norm_k(attn.to_k(prompt)), attn.to_v(prompt)
        found = attend(query, key, value, attn.heads)
        if image is not None:
            key, value = attn.norm_added_k(attn.add_k_proj(image)), attn.add_v_proj(image)
            found = attend(query, key, value, attn.heads) + found
        return project_out(attn, found)
