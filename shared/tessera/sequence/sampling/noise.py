"""Random numbers by counter: what a request draws for a token depends on its seed, its place and the token alone.

So a draw needs no state, is the same on every device and whatever shares the batch, and can be made for a few candidate
tokens without making it for the whole vocabulary. The function is SplitMix64 (Steele, Lea & Flood 2014).
"""

from __future__ import annotations

import secrets

import torch

from tessera.device.copies import to_device
from tessera.sequence.request import SequenceRequest

_GAMMA = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_BITS = 53
"""Of a double's mantissa."""


def next_noise_key(request: SequenceRequest) -> int:
    """What the noise of a request's next token is drawn with, a signed number of 64 bits."""
    if request.noise_seed is None:
        given = request.sampling.seed if request.sampling is not None else None
        request.noise_seed = secrets.randbits(64) if given is None else given
    return noise_key(request.noise_seed, request.output_length)


def noise_key(seed: int, place: int) -> int:
    """What the noise of draw number `place`, from 0, is drawn with, a signed number of 64 bits."""
    return _signed(_mixed((seed & _MASK) ^ _mixed(place + 1)))


def gumbel(keys: list[int], ids_RK: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise (Gumbel's trick: the argmax of logits with it is a sample), float32 [rows, K].

    Args:
        keys: of each row, by `next_noise_key`.
        ids_RK: token ids, int64; [1, K] where they are the same in every row.
    """
    key_R1 = to_device(keys, ids_RK.device, torch.int64)[:, None]
    bits_RK = _mixed_tensor(key_R1 + (ids_RK + 1) * _signed(_GAMMA))
    uniform_RK = _shifted(bits_RK, 64 - _BITS).double() * 2.0**-_BITS
    exponential_RK = -torch.log1p(-uniform_RK)
    return -torch.log(exponential_RK.clamp_min_(2.0 ** -(_BITS + 1))).float()


def _mixed(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def _mixed_tensor(values: torch.Tensor) -> torch.Tensor:
    """As `_mixed` without its addition; products of int64 wrap as those of uint64 do."""
    values = (values ^ _shifted(values, 30)) * _signed(_FIRST)
    values = (values ^ _shifted(values, 27)) * _signed(_SECOND)
    return values ^ _shifted(values, 31)


def _shifted(values: torch.Tensor, places: int) -> torch.Tensor:
    """To the right, with zeros coming in."""
    return (values >> places) & ((1 << (64 - places)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
