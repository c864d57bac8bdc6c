"""Wan's VAE over all frames of a clip at once: equal to its own frame-by-frame way, and faster, which training wants.

`AutoencoderKLWan` codes one frame, then four at a time, and carries the ends over in a cache. Its convolutions only
look back, so one pass over the clip gives the same sums. Knows the residual kind alone (Wan 2.2), and no training.

Shapes: B clips, C channels, T frames, H and W pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import patchify, unpatchify


def encode(codec: AutoencoderKLWan, pixels_BCTHW: torch.Tensor) -> torch.Tensor:
    """The mean of the latents, as `codec.encode(…).latent_dist.mean`."""
    encoder: Any = codec.encoder
    hidden = encoder.conv_in(patchify(pixels_BCTHW, codec.config.patch_size))
    for block in encoder.down_blocks:
        before = hidden
        for layer in block.resnets:
            hidden = layer(hidden)
        if block.downsampler is not None:
            hidden = _shrink(block.downsampler, hidden)
        hidden = hidden + block.avg_shortcut(before)
    hidden = encoder.nonlinearity(encoder.norm_out(encoder.mid_block(hidden)))
    moments: torch.Tensor = codec.quant_conv(encoder.conv_out(hidden))
    return moments.chunk(2, dim=1)[0]


def decode(codec: AutoencoderKLWan, latents_BCTHW: torch.Tensor) -> torch.Tensor:
    """As `codec.decode(…).sample`, before that is clamped to -1..1."""
    decoder: Any = codec.decoder
    hidden = decoder.mid_block(decoder.conv_in(codec.post_quant_conv(latents_BCTHW)))
    for block in decoder.up_blocks:
        before = hidden
        for layer in block.resnets:
            hidden = layer(hidden)
        if block.upsampler is not None:
            hidden = _stretch(block.upsampler, hidden)
        if block.avg_shortcut is not None:
            hidden = hidden + block.avg_shortcut(before, first_chunk=True)
    hidden = decoder.conv_out(decoder.nonlinearity(decoder.norm_out(hidden)))
    pixels: torch.Tensor = unpatchify(hidden, codec.config.patch_size)
    return pixels


def _shrink(layer: Any, hidden_BCTHW: torch.Tensor) -> torch.Tensor:
    """Half the pixels of a side; half the frames, of which the first has none before it to be merged with."""
    hidden_BCTHW = _each_frame(layer.resample, hidden_BCTHW)
    if layer.mode != "downsample3d" or hidden_BCTHW.shape[2] == 1:
        return hidden_BCTHW
    return torch.cat([hidden_BCTHW[:, :, :1], layer.time_conv(hidden_BCTHW)], dim=2)


def _stretch(layer: Any, hidden_BCTHW: torch.Tensor) -> torch.Tensor:
    """Twice the pixels of a side; twice the frames but for the first."""
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
