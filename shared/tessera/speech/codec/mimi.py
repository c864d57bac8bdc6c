"""Mimi's decoder over streams: frames of codes in as they come, samples out that join to those of the whole recording.

All parts are causal, so a stream keeps the inputs that they still need: keys and values of the transformer's window,
and the last inputs of each convolution. Nothing is computed twice and nothing is left out. Streams with equally many
new frames share a pass. The modules are Transformers', in the order of `MimiDecoderModel.forward`. Knows nothing about
where frames come from.

Shapes: B streams, K codebooks, F frames, T positions of the transformer, W = its window - 1, S samples, C channels,
L layers, H key heads, D per head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.models.mimi.modeling_mimi import (
    MimiConv1d,
    MimiConvTranspose1d,
    MimiResnetBlock,
    apply_rotary_pos_emb,
)

from tessera.errors import ModelLoadError


class CodecStream:
    """The state of one stream. Made by `StreamingCodec.begin`."""

    def __init__(self, cache_L2HWD: torch.Tensor) -> None:
        self.processed = 0
        """Positions that the transformer has processed."""
        self.cache_L2HWD = cache_L2HWD
        self.inputs_CT: list[torch.Tensor] = []
        """The last inputs of each convolution with a kernel over 1, in the order of the pass."""


class _ConvolutionPass:
    """One pass of several streams through the convolutions, which read and replace the streams' last inputs in turn."""

    def __init__(self, streams: Sequence[CodecStream]) -> None:
        self._streams = streams
        self._next = 0

    def joined(self, fresh_BCT: torch.Tensor, count: int) -> torch.Tensor:
        """`fresh_BCT` after the `count` inputs before it; zeros before the first frame."""
        if count == 0:
            return fresh_BCT
        for stream in self._streams:
            if len(stream.inputs_CT) == self._next:
                stream.inputs_CT.append(fresh_BCT.new_zeros(fresh_BCT.shape[1], count))
        kept_BCT = torch.stack([stream.inputs_CT[self._next] for stream in self._streams])
        whole_BCT = torch.cat([kept_BCT, fresh_BCT], dim=-1)
        for row, stream in enumerate(self._streams):
            stream.inputs_CT[self._next] = whole_BCT[row, :, -count:].clone()
        self._next += 1
        return whole_BCT


class StreamingCodec:
    """A loaded codec that decodes streams.

    Args:
        codec: Transformers' `MimiModel` with its decoder, in eval mode on its device.

    Raises:
        ModelLoadError: a configuration whose parts look ahead, or pad with anything but zeros.
    """

    def __init__(self, codec: Any) -> None:
        config = codec.config
        self._codec = codec
        if codec.decoder is None or not config.use_causal_conv or config.trim_right_ratio != 1.0:
            raise ModelLoadError("the model's codec cannot decode a stream: `use_causal_conv` must be true")
        if config.pad_mode != "constant" or codec.decoder.upsample is None:
            raise ModelLoadError("the model's codec cannot decode a stream: it must upsample, with `pad_mode` constant")
        self._transformer = codec.decoder.decoder_transformer
        self._query_heads, self._key_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self._head_size = int(config.head_dim)
        self._window = int(config.sliding_window)
        weight = codec.decoder.upsample.conv.weight
        self._device, self._dtype = weight.device, weight.dtype
        self.sample_rate = int(config.sampling_rate)
        self.hop = int(config.frame_size)
        """Samples of one frame."""

    @property
    def codes(self) -> int:
        """Codes of a codebook."""
        return int(self._codec.config.codebook_size)

    @property
    def stream_bytes(self) -> int:
        """Bytes of a stream's state in the transformer, which is nearly all of its state."""
        layers = len(self._transformer.layers)
        values = layers * 2 * self._key_heads * (self._window - 1) * self._head_size
        return int(values * self._dtype.itemsize)

    def begin(self) -> CodecStream:
        """The state of a new stream."""
        shape = (len(self._transformer.layers), 2, self._key_heads, self._window - 1, self._head_size)
        return CodecStream(torch.zeros(shape, device=self._device, dtype=self._dtype))

    @torch.inference_mode()
    def decode(self, streams: Sequence[CodecStream], codes_BKF: torch.Tensor) -> list[torch.Tensor]:
        """The samples of the next frames of each stream.

        Args:
            streams: one for each row of codes. Their state changes, also when this fails half way: drop them then.
            codes_BKF: int64, below `codes`.

        Returns:
            For each, float32 samples of shape [F * hop] on the CPU, within -1 and 1.
        """
        decoder, memory = self._codec.decoder, _ConvolutionPass(streams)
        latents_BCF = self._codec.quantizer.decode(codes_BKF.to(self._device))
        hidden_BTC = self._attend(_transposed(decoder.upsample, latents_BCF, memory).transpose(1, 2), streams)
        hidden = hidden_BTC.transpose(1, 2)
        for layer in decoder.decoder_seanet.layers:
            if isinstance(layer, MimiConv1d):
                hidden = _convolved(layer, hidden, memory)
            elif isinstance(layer, MimiConvTranspose1d):
                hidden = _transposed(layer, hidden, memory)
            elif isinstance(layer, MimiResnetBlock):
                hidden = _resnet(layer, hidden, memory)
            else:
                hidden = layer(hidden)
        return list(hidden[:, 0].float().clamp(-1, 1).cpu())

    @torch.inference_mode()
    def encode(self, samples_S: torch.Tensor, codebooks: int) -> torch.Tensor:
        """Codes [F, K] of a whole recording, float32 samples at the codec's rate."""
        values_11S = samples_S.to(self._device, self._dtype)[None, None]
        found = self._codec.encode(values_11S, num_quantizers=codebooks).audio_codes
        codes_FK: torch.Tensor = found[0].transpose(0, 1).cpu()
        return codes_FK

    def _attend(self, hidden_BTC: torch.Tensor, streams: Sequence[CodecStream]) -> torch.Tensor:
        """The transformer: each position attends to itself and to the window before it."""
        count = hidden_BTC.shape[1]
        before = self._window - 1
        processed_B1 = torch.tensor([[stream.processed] for stream in streams], device=self._device)
        positions_BT = processed_B1 + torch.arange(count, device=self._device)
        there_BS = processed_B1 - before + torch.arange(before + count, device=self._device)
        visible = (there_BS[:, None] >= 0) & (there_BS[:, None] <= positions_BT[:, :, None])
        mask_B1TS = (visible & (there_BS[:, None] > positions_BT[:, :, None] - self._window))[:, None]
        rotation = self._transformer.rotary_emb(hidden_BTC, positions_BT)
        cache_LB2HWD = torch.stack([stream.cache_L2HWD for stream in streams], dim=1)
        for number, layer in enumerate(self._transformer.layers):
            attention = layer.self_attn
            normed = layer.input_layernorm(hidden_BTC)
            query = self._split(attention.q_proj(normed), self._query_heads)
            key = self._split(attention.k_proj(normed), self._key_heads)
            query, key = apply_rotary_pos_emb(query, key, *rotation)
            value = self._split(attention.v_proj(normed), self._key_heads)
            keys = torch.cat([cache_LB2HWD[number, :, 0], key], dim=2)
            values = torch.cat([cache_LB2HWD[number, :, 1], value], dim=2)
            mixed = functional.scaled_dot_product_attention(
                query, keys, values, attn_mask=mask_B1TS, scale=attention.scaling, enable_gqa=True
            )
            added = attention.o_proj(mixed.transpose(1, 2).flatten(2))
            hidden_BTC = hidden_BTC + layer.self_attn_layer_scale(added)
            added = layer.mlp(layer.post_attention_layernorm(hidden_BTC))
            hidden_BTC = hidden_BTC + layer.mlp_layer_scale(added)
            for row, stream in enumerate(streams):
                stream.cache_L2HWD[number, 0] = keys[row, :, count:]
                stream.cache_L2HWD[number, 1] = values[row, :, count:]
        for stream in streams:
            stream.processed += count
        return hidden_BTC

    def _split(self, projected: torch.Tensor, heads: int) -> torch.Tensor:
        return projected.view(*projected.shape[:2], heads, self._head_size).transpose(1, 2)


def _convolved(layer: MimiConv1d, fresh_BCT: torch.Tensor, memory: _ConvolutionPass) -> torch.Tensor:
    """A causal convolution of stride 1."""
    convolved: torch.Tensor = layer.conv(memory.joined(fresh_BCT, int(layer.padding_total)))
    return convolved


def _transposed(layer: MimiConvTranspose1d, fresh_BCT: torch.Tensor, memory: _ConvolutionPass) -> torch.Tensor:
    """A causal transposed convolution: what an input adds to later outputs is returned with those."""
    kernel, stride = layer.conv.kernel_size[0], layer.conv.stride[0]
    before = -(-kernel // stride) - 1
    convolved: torch.Tensor = layer.conv(memory.joined(fresh_BCT, before))
    return convolved[..., before * stride : (before + fresh_BCT.shape[-1]) * stride]


def _resnet(block: MimiResnetBlock, fresh_BCT: torch.Tensor, memory: _ConvolutionPass) -> torch.Tensor:
    hidden = fresh_BCT
    for layer in block.block:
        hidden = _convolved(layer, hidden, memory) if isinstance(layer, MimiConv1d) else layer(hidden)
    shortcut: nn.Module = block.shortcut
    skipped = _convolved(shortcut, fresh_BCT, memory) if isinstance(shortcut, MimiConv1d) else fresh_BCT
    return skipped + hidden
