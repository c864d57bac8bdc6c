"""Drawing a token a row: penalties, temperature, top-k, top-p and min-p, with random numbers of the row's own.

What may be drawn is said by values, so that equal logits share a fate and no sorting order matters: a token may be
drawn if fewer than k tokens are likelier, if what is likelier has less than the share p of the mass that top-k leaves,
and if it is at least min-p times as likely as the likeliest (Fan et al. 2018; Holtzman et al. 2019; Nguyen et al.
2024). The draw is the argmax of logits and Gumbel noise, which follows from seed, place and token alone (Philox, Salmon
et al. 2011): a request draws the same whatever shares its batch, on every device. Does not know requests, grammars or
biases: what must not be drawn is -inf already. B rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tessera_kernels.sampling import registered
from tessera_kernels.sampling.reference import GREEDY_BELOW, SEEN, count_tokens

__all__ = ["GREEDY_BELOW", "SEEN", "Penalties", "SamplingParameters", "count_tokens", "sample"]


@dataclass(frozen=True)
class SamplingParameters:
    """How each row is drawn; all tensors [B] on the logits' device.

    Attributes:
        temperature_B: float32; below `GREEDY_BELOW` the likeliest token is taken.
        top_k_B: int32; 0 for no bound.
        top_p_B: float32 in (0, 1]; 1 for no bound.
        min_p_B: float32 in [0, 1]; 0 for no bound.
        seed_B: int64, of the request.
        place_B: int64, how many tokens the request has drawn before.
    """

    temperature_B: torch.Tensor
    top_k_B: torch.Tensor
    top_p_B: torch.Tensor
    min_p_B: torch.Tensor
    seed_B: torch.Tensor
    place_B: torch.Tensor


@dataclass(frozen=True)
class Penalties:
    """What a row thinks of tokens that it has seen (`count_tokens` counts them).

    Attributes:
        counts_BV: int32, rows of contiguous numbers: how often the row drew a token, plus `SEEN` if its prompt has it.
        repetition_B: float32; logits of seen tokens are divided by it if positive, else multiplied. 1 for none.
        presence_B: float32, taken off logits of tokens drawn. 0 for none.
        frequency_B: float32, likewise for each time. 0 for none.
    """

    counts_BV: torch.Tensor
    repetition_B: torch.Tensor
    presence_B: torch.Tensor
    frequency_B: torch.Tensor


def sample(logits_BV: torch.Tensor, settings: SamplingParameters, penalties: Penalties | None = None) -> torch.Tensor:
    """Draw a token from each row.

    Args:
        logits_BV: any float dtype, rows of contiguous numbers; tokens of -inf are never drawn.
        settings: of each row.
        penalties: of each row, or None for none.

    Returns:
        Token ids, int64 [B]; -1 for a row with NaN or +inf, or without a finite logit.

    Raises:
        ValueError: shapes or dtypes do not fit. Values are not looked at: that would wait for the device.
    """
    rows, vocabulary = _checked_logits(logits_BV)
    _check("temperature", settings.temperature_B, torch.float32, rows)
    _check("top_k", settings.top_k_B, torch.int32, rows)
    _check("top_p", settings.top_p_B, torch.float32, rows)
    _check("min_p", settings.min_p_B, torch.float32, rows)
    _check("seed", settings.seed_B, torch.int64, rows)
    _check("place", settings.place_B, torch.int64, rows)
    of_row = (
        settings.temperature_B,
        settings.top_k_B,
        settings.top_p_B,
        settings.min_p_B,
        settings.seed_B,
        settings.place_B,
    )
    seen: tuple[torch.Tensor | None, ...] = (None, None, None, None)
    if penalties is not None:
        counts = penalties.counts_BV
        if counts.shape != (rows, vocabulary) or counts.dtype != torch.int32 or counts.stride(-1) != 1:
            raise ValueError(f"counts must be int32 [{rows}, {vocabulary}], not {counts.dtype} {tuple(counts.shape)}")
        _check("repetition", penalties.repetition_B, torch.float32, rows)
        _check("presence", penalties.presence_B, torch.float32, rows)
        _check("frequency", penalties.frequency_B, torch.float32, rows)
        seen = (counts, penalties.repetition_B, penalties.presence_B, penalties.frequency_B)
    if torch.compiler.is_compiling():
        drawn: torch.Tensor = registered.sample(logits_BV, *of_row, *seen)
        return drawn
    return registered.compute(logits_BV, *of_row, *seen)


def _checked_logits(logits_BV: torch.Tensor) -> tuple[int, int]:
    if logits_BV.dim() != 2 or not logits_BV.is_floating_point() or (logits_BV.shape[1] and logits_BV.stride(1) != 1):
        raise ValueError(
            "logits must be [rows, vocabulary] of a float dtype with contiguous rows, "
            f"not {logits_BV.dtype} {tuple(logits_BV.shape)} with strides {logits_BV.stride()}"
        )
    if not logits_BV.shape[1]:
        raise ValueError("logits must have a vocabulary, and this one is empty")
    return logits_BV.shape[0], logits_BV.shape[1]


def _check(name: str, values_B: torch.Tensor, dtype: torch.dtype, rows: int) -> None:
    if values_B.shape != (rows,) or values_B.dtype != dtype:
        raise ValueError(f"{name} must be {dtype} [{rows}], not {values_B.dtype} {tuple(values_B.shape)}")
