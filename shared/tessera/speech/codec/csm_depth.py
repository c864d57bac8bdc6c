"""CSM's depth decoder over many frames at once: from hidden states and first codes to all codes of each frame.

All frames of a step are at the same codebook, so one pass per codebook serves them all, and their short cache is dense,
without pages. The modules are Transformers', in the order of `CsmDepthDecoderModel.forward`. The caller picks codes
from logits. Knows nothing about requests or random numbers.

Shapes: R frames, K codebooks, V codes of a codebook, T positions of a pass, P = K + 1 positions, C channels, H key
heads, D per head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from transformers.models.csm.modeling_csm import apply_rotary_pos_emb

DepthCodePicker = Callable[[torch.Tensor, int], torch.Tensor]
"""(logits [R, V], index of the codebook) → codes [R], int64 on the same device."""


class DepthDecoder:
    """The loaded decoder with its cache.

    Args:
        decoder: Transformers' `CsmDepthDecoderForCausalLM`, in eval mode on its device.
        max_frames: frames at once.
    """

    def __init__(self, decoder: Any, max_frames: int) -> None:
        config = decoder.config
        self._model = decoder.model
        self._heads_KCV: torch.Tensor = decoder.codebooks_head.weight
        self._codebooks = int(config.num_codebooks)
        self._vocabulary = int(config.vocab_size)
        self._query_heads, self._key_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self._head_size = int(config.head_dim)
        weight = self._model.inputs_embeds_projector.weight
        shape = (len(self._model.layers), 2, max_frames, self._key_heads, self._codebooks + 1, self._head_size)
        self._cache_L2RHPD = torch.zeros(shape, device=weight.device, dtype=weight.dtype)
        positions_1P = torch.arange(self._codebooks + 1, device=weight.device)[None]
        with torch.inference_mode():
            self._cosine_1PD, self._sine_1PD = self._model.rotary_emb(self._cache_L2RHPD, position_ids=positions_1P)
        attentions = [layer.self_attn for layer in self._model.layers]
        self._projections = [_joined([one.q_proj, one.k_proj, one.v_proj]) for one in attentions]

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values of the frames in flight."""
        return self._cache_L2RHPD.numel() * self._cache_L2RHPD.element_size()

    @torch.inference_mode()
    def frames(self, hidden_RC: torch.Tensor, first_R: torch.Tensor, pick: DepthCodePicker) -> torch.Tensor:
        """All codes of each frame.

        Args:
            hidden_RC: last hidden states of the backbone, at most `max_frames` rows.
            first_R: codes of the first codebook, from the backbone.
            pick: picks codes of the other codebooks, one codebook after another.

        Returns:
            Codes [R, K], int64.
        """
        codes = [first_R]
        inputs_RTC = torch.stack([hidden_RC, self._embedded(first_R, 0)], dim=1)
        for codebook in range(1, self._codebooks):
            hidden_RC = self._pass(inputs_RTC, codebook + 1 - inputs_RTC.shape[1])
            logits_RV = hidden_RC @ self._heads_KCV[codebook - 1]
            codes.append(pick(logits_RV.float(), codebook))
            inputs_RTC = self._embedded(codes[-1], codebook)[:, None]
        return torch.stack(codes, dim=1)

    def _embedded(self, codes_R: torch.Tensor, codebook: int) -> torch.Tensor:
        found: torch.Tensor = self._model.embed_tokens(codes_R + codebook * self._vocabulary)
        return found

    def _pass(self, inputs_RTC: torch.Tensor, start: int) -> torch.Tensor:
        """Hidden states [R, C] of the last of positions `start` … `start + T - 1`."""
        rows, count = inputs_RTC.shape[:2]
        end = start + count
        rotation = self._cosine_1PD[:, start:end], self._sine_1PD[:, start:end]
        hidden = self._model.inputs_embeds_projector(inputs_RTC)
        widths = [self._query_heads, self._key_heads, self._key_heads]
        for layer, (weight, bias), (keys, values) in zip(
            self._model.layers, self._projections, self._cache_L2RHPD, strict=True
        ):
            projected = functional.linear(layer.input_layernorm(hidden), weight, bias)
            heads = projected.view(rows, count, -1, self._head_size).transpose(1, 2)
            query, key, value = torch.split(heads, widths, dim=1)
            query, key = apply_rotary_pos_emb(query, key, *rotation)
            keys[:rows, :, start:end] = key
            values[:rows, :, start:end] = value
            mixed = functional.scaled_dot_product_attention(
                query,
                keys[:rows, :, :end],
                values[:rows, :, :end],
                is_causal=count > 1,  # several positions are a pass only at the beginning
                scale=layer.self_attn.scaling,
                enable_gqa=True,
            )
            hidden = hidden + layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        last: torch.Tensor = self._model.norm(hidden[:, -1])
        return last


def _joined(layers: list[torch.nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Concatenated weights and biases of several linear layers."""
    weights: list[torch.Tensor] = [layer.weight for layer in layers]
    biases: list[torch.Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    return torch.cat(weights), torch.cat(biases) if biases else None
