"""The block of CogVideoX 1.0 and 1.5 (Diffusers' `CogVideoXBlock`), which updates prompt tokens as it does the clip's.

Shapes: B rows of a pass, T tokens of the clip, S tokens of the prompt, C channels, H heads, D head dim.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from tessera.diffusion.families.block_attention import Precision, RotaryTables, attend, project_out
from tessera_kernels.layer_norm import adaptive_norm, gated_residual, layer_norm


class CogVideoXBlock(nn.Module):
    """Takes the place of one of Diffusers' blocks, with that block's parts.

    Args:
        block: a `CogVideoXBlock`.
        precision: precision of attention.
        tables: rotary tables that all blocks of a transformer share.
    """

    written: ClassVar[tuple[str, ...]] = ("hidden_states", "encoder_hidden_states")
    """Arguments that `forward` writes to; they must be contiguous."""

    def __init__(self, block: Any, precision: Precision, tables: RotaryTables) -> None:
        super().__init__()
        self.norm1, self.norm2 = block.norm1, block.norm2
        self.attn1, self.ff = block.attn1, block.ff
        self.attn1.set_processor(CogVideoXAttention(precision, tables))

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_kwargs: dict[str, Any] | None = None,  # noqa: ARG002 - of adapters of Diffusers' own
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Update the clip's tokens [B, T, C] and the prompt's tokens [B, S, C], both in place, and return them.

        `temb` is the embedded timestep [B, …], `image_rotary_emb` the rotary positions of the clip's tokens.
        """
        x, prompt = hidden_states, encoder_hidden_states
        count = prompt.shape[1]
        shift, scale, gate, text_shift, text_scale, text_gate = _modulations(self.norm1, temb)
        normed = _modulated(self.norm1, x, scale, shift)
        attended, text = self.attn1(
            normed, _modulated(self.norm1, prompt, text_scale, text_shift), image_rotary_emb=image_rotary_emb
        )
        shift, scale, feed_gate, text_shift, text_scale, text_feed_gate = _modulations(self.norm2, temb)
        normed = _modulated(self.norm2, x, scale, shift, attended, gate)
        text = _modulated(self.norm2, prompt, text_scale, text_shift, text, text_gate)
        fed = self.ff(torch.cat([text, normed], dim=1))
        gated_residual(x, fed[:, count:], feed_gate)
        gated_residual(prompt, fed[:, :count], text_feed_gate)
        return x, prompt


def _modulations(norm: Any, temb: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return shift, scale and gate of the clip, then those of the prompt, each [B, 1, C]."""
    parts: tuple[torch.Tensor, ...] = norm.linear(norm.silu(temb)).unsqueeze(1).chunk(6, dim=2)
    return parts


def _modulated(
    norm: Any,
    x_BTC: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    added_BTC: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    inner = norm.norm
    return adaptive_norm(
        x_BTC,
        scale,
        shift,
        epsilon=inner.eps,
        weight_C=inner.weight,
        bias_C=inner.bias,
        added_BTC=added_BTC,
        gate_BSC=gate,
    )


class CogVideoXAttention:
    """A processor of Diffusers' `Attention`: prompt and clip attend to each other, and only the clip has positions."""

    def __init__(self, precision: Precision, tables: RotaryTables) -> None:
        self.precision = precision
        self.tables = tables

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,  # noqa: ARG002 - a processor's arguments
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend from clip [B, T, C] and prompt [B, S, C] to both. Returns the same shapes."""
        count = encoder_hidden_states.shape[1]
        joined = torch.cat([encoder_hidden_states, hidden_states], dim=1)
        query, key, value = attn.to_q(joined), attn.to_k(joined), attn.to_v(joined)
        heads = (attn.heads, -1)
        query, key = _normed(attn.norm_q, query.unflatten(2, heads)), _normed(attn.norm_k, key.unflatten(2, heads))
        if image_rotary_emb is not None:
            self.tables.rotate(query, key, image_rotary_emb, unrotated=count)
        out = project_out(attn, attend(query.flatten(2), key.flatten(2), value, attn.heads, precision=self.precision))
        return out[:, count:], out[:, :count]


def _normed(norm: Any, heads_BTHD: torch.Tensor) -> torch.Tensor:
    """Normalize each head by itself; returns the heads unchanged when the model has no norm there."""
    if norm is None:
        return heads_BTHD
    return layer_norm(heads_BTHD, norm.weight, norm.bias, epsilon=norm.eps)
