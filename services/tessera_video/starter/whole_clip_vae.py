"""Wan's VAE over all frames of a clip at once: equal to its own way in chunks of frames, and faster in training.

`AutoencoderKLWan` encodes one frame, then four at a time, and caches the last frames of each chunk. Its convolutions
are causal in time, so one pass over the clip gives the same sums. Knows only the residual variant (Wan 2.2).

Shapes: B clips, C channels, T frames, H and W pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import patchify, unpatchify


def encode(codec: AutoencoderKLWan, pixels_BCTHW: torch.Tensor) -> torch.Tensor:
    """Return the mean of the latents, equal to `codec.encode(…).latent_dist.mean`."""
    encoder: Any = codec.encoder
    hidden = encoder.conv_in(patchify(pixels_BCTHW, codec.config.patch_size))
    for block in encoder.down_blocks:
        before = hidden
        for layer in block.resnets:
            hidden = layer(hidden)
        if block.downsampler is not None:
            hidden = _downsample(block.downsampler, hidden)
        hidden = hidden + block.avg_shortcut(before)
    hidden = encoder.nonlinearity(encoder.norm_out(encoder.mid_block(hidden)))
    moments: torch.Tensor = codec.quant_conv(encoder.conv_out(hidden))
    return moments.chunk(2, dim=1)[0]


def decode(codec: AutoencoderKLWan, latents_BCTHW: torch.Tensor) -> torch.Tensor:
    """Return the pixels, equal to `codec.decode(…).sample` before that is clamped to -1..1."""
    decoder: Any = codec.decoder
    hidden = decoder.mid_block(decoder.conv_in(codec.post_quant_conv(latents_BCTHW)))
    for block in decoder.up_blocks:
        before = hidden
        for layer in block.resnets:
            hidden = layer(hidden)
        if block.upsampler is not None:
            hidden = _upsample(block.upsampler, hidden)
        if block.avg_shortcut is not None:
            hidden = hidden + block.avg_shortcut(before, first_chunk=True)
    hidden = decoder.conv_out(decoder.nonlinearity(decoder.norm_out(hidden)))
    pixels: torch.Tensor = unpatchify(hidden, codec.config.patch_size)
    return pixels


def _downsample(layer: Any, hidden_BCTHW: torch.Tensor) -> torch.Tensor:
    """Halve the pixels per side, and the number of frames after the first, which has no earlier one to merge with."""
    hidden_BCTHW = _each_frame(layer.resample, hidden_BCTHW)
    if layer.mode != "downsample3d" or hidden_BCTHW.shape[2] == 1:
        return hidden_BCTHW
    return torch.cat([hidden_BCTHW[:, :, :1], layer.time_conv(hidden_BCTHW)], dim=2)


def _upsample(layer: Any, hidden_BCTHW: torch.Tensor) -> torch.Tensor:
    """Double the pixels per side, and the number of frames after the first."""
    if layer.mode == "upsample3d" and hidden_BCTHW.shape[2] > 1:
        first, rest = hidden_BCTHW[:, :, :1], hidden_BCTHW[:, :, 1:]
        batch, channels, frames, height, width = rest.shape
        pairs = layer.time_conv(rest).view(batch, 2, channels, frames, height, width)
        rest = pairs.permute(0, 2, 3, 1, 4, 5).reshape(batch, channels, 2 * frames, height, width)
        hidden_BCTHW = torch.cat([first, rest], dim=2)
    return _each_frame(layer.resample, hidden_BCTHW)


def _each_frame(layer: Any, hidden_BCTHW: torch.Tensor) -> torch.Tensor:
    batch, channels, frames, height, width = hidden_BCTHW.shape
    flat = layer(hidden_BCTHW.transpose(1, 2).reshape(batch * frames, channels, height, width))
    shaped: torch.Tensor = flat.view(batch, frames, *flat.shape[1:]).transpose(1, 2)
    return shaped
