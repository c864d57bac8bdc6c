"""Samples one token for each row of logits: penalties, temperature, top-k, top-p and min-p.

Filters are defined by values, so that tokens with equal logits are treated alike and the order of sorting does not
matter. A token may be drawn if fewer than k tokens are likelier, if the likelier tokens have less than the fraction p
of the probability mass that top-k leaves, and if it is at least min-p times as likely as the likeliest token (Fan et
al. 2018; Holtzman et al. 2019; Nguyen et al. 2024). The token is the argmax of logits plus Gumbel noise, which depends
on seed, position and token alone (Philox, Salmon et al. 2011): a request draws the same tokens in any batch and on
every device. Knows nothing of requests, grammars or logit biases: forbidden tokens have logits of -inf.

Shape letters: B rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tessera_kernels.sampling import registered
from tessera_kernels.sampling.reference import GREEDY_BELOW, SEEN, count_tokens

__all__ = ["GREEDY_BELOW", "SEEN", "Penalties", "SamplingParameters", "count_tokens", "sample"]


@dataclass(frozen=True)
class SamplingParameters:
    """Sampling parameters of each row; all tensors are [B] on the device of the logits.

    Attributes:
        temperature_B: float32; below `GREEDY_BELOW` the likeliest token is chosen.
        top_k_B: int32; 0 for no bound.
        top_p_B: float32 in (0, 1]; 1 for no bound.
        min_p_B: float32 in [0, 1]; 0 for no bound.
        seed_B: int64, the seed of the request.
        position_B: int64, the number of tokens that the request has drawn before.
    """

    temperature_B: torch.Tensor
    top_k_B: torch.Tensor
    top_p_B: torch.Tensor
    min_p_B: torch.Tensor
    seed_B: torch.Tensor
    position_B: torch.Tensor


@dataclass(frozen=True)
class Penalties:
    """Penalties of each row on tokens of its prompt and on tokens that it has drawn (`count_tokens` counts them).

    Attributes:
        counts_BV: int32, contiguous rows: how often the row drew each token, plus `SEEN` if its prompt contains it.
        repetition_B: float32; positive logits of tokens that were drawn or are in the prompt are divided by it, the
            others are multiplied by it. 1 for no penalty.
        presence_B: float32, subtracted from logits of tokens that were drawn. 0 for no penalty.
        frequency_B: float32, subtracted once for each time that a token was drawn. 0 for no penalty.
    """

    counts_BV: torch.Tensor
    repetition_B: torch.Tensor
    presence_B: torch.Tensor
    frequency_B: torch.Tensor


def sample(logits_BV: torch.Tensor, settings: SamplingParameters, penalties: Penalties | None = None) -> torch.Tensor:
    """Draw one token from each row.

    Args:
        logits_BV: any float dtype, contiguous rows; tokens with a logit of -inf are never drawn.
        settings: sampling parameters of each row.
        penalties: penalties of each row; None for no penalties.

    Returns:
        Token ids, int64 [B]; -1 for a row with NaN or +inf, or without a finite logit.

    Raises:
        ValueError: shapes or dtypes do not fit. Values are not checked, because that would wait for the device.
    """
    rows, vocabulary = _checked_logits(logits_BV)
    _check("temperature", settings.temperature_B, torch.float32, rows)
    _check("top_k", settings.top_k_B, torch.int32, rows)
    _check("top_p", settings.top_p_B, torch.float32, rows)
    _check("min_p", settings.min_p_B, torch.float32, rows)
    _check("seed", settings.seed_B, torch.int64, rows)
    _check("position", settings.position_B, torch.int64, rows)
    of_row = (
        settings.temperature_B,
        settings.top_k_B,
        settings.top_p_B,
        settings.min_p_B,
        settings.seed_B,
        settings.position_B,
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
