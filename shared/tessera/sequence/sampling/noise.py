"""Random numbers by counter: the noise of a token depends on the request's seed, the token's place and its id alone.

A draw therefore needs no state, is the same on every device and whatever shares the batch, and can be made for a few
candidate tokens without making it for the whole vocabulary. The function is SplitMix64 (Steele, Lea & Flood 2014).
"""

from __future__ import annotations

import secrets

import torch

from tessera.device.copies import to_device
from tessera.sequence.request import SequenceRequest

_GAMMA = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_MANTISSA_BITS = 53
"""Bits of the mantissa of a float64."""


def next_noise_key(request: SequenceRequest) -> int:
    """Return the noise key of a request's next token, a signed 64-bit integer. Chooses a seed if none is given."""
    if request.noise_seed is None:
        given = request.sampling.seed if request.sampling is not None else None
        request.noise_seed = secrets.randbits(64) if given is None else given
    return noise_key(request.noise_seed, request.output_length)


def noise_key(seed: int, place: int) -> int:
    """Return the key of the noise of draw number `place`, from 0, a signed 64-bit integer."""
    return _signed(_mix((seed & _MASK) ^ _mix(place + 1)))


def gumbel(keys: list[int], ids_RK: torch.Tensor) -> torch.Tensor:
    """Return standard Gumbel noise, float32 [rows, K]. The argmax of logits plus this noise is a sample.

    Args:
        keys: Key of each row, by `noise_key`.
        ids_RK: Token ids, int64; [1, K] if they are the same in every row.
    """
    key_R1 = to_device(keys, ids_RK.device, torch.int64)[:, None]
    bits_RK = _mix_tensor(key_R1 + (ids_RK + 1) * _signed(_GAMMA))
    uniform_RK = _shift_right(bits_RK, 64 - _MANTISSA_BITS).double() * 2.0**-_MANTISSA_BITS
    exponential_RK = -torch.log1p(-uniform_RK)
    return -torch.log(exponential_RK.clamp_min_(2.0 ** -(_MANTISSA_BITS + 1))).float()


def _mix(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def _mix_tensor(values: torch.Tensor) -> torch.Tensor:
    """Mix as `_mix` does, without its addition; products of int64 wrap as those of uint64 do."""
    values = (values ^ _shift_right(values, 30)) * _signed(_FIRST)
    values = (values ^ _shift_right(values, 27)) * _signed(_SECOND)
    return values ^ _shift_right(values, 31)


def _shift_right(values: torch.Tensor, places: int) -> torch.Tensor:
    """Shift bits to the right; zeros come in, whatever the sign."""
    return (values >> places) & ((1 << (64 - places)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
