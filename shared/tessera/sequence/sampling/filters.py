"""Filters of tokens: top-k, then top-p, then min-p, then typical, each on what the one before has left.

Two functions with the same result for a row. `filter_candidates` looks at the `CANDIDATES` likeliest tokens only, and
reports the rows for which more tokens may be drawn; `filter_vocabulary` sorts the whole vocabulary. Which function a
row needs depends on the row alone, never on what shares its batch.
"""

from __future__ import annotations

import torch

from tessera.wire.engine import Sampling

CANDIDATES = 256
"""Likeliest tokens that `filter_candidates` looks at; nearly always more than may be sampled."""


def fits_candidates(sampling: Sampling) -> bool:
    """Return whether `filter_candidates` may be enough for a row."""
    few = 0 < sampling.top_k <= CANDIDATES
    return sampling.typical_p >= 1 and (few or sampling.top_p < 1 or sampling.min_p > 0)


def is_unfiltered(sampling: Sampling) -> bool:
    """Return whether every token may be sampled."""
    return not sampling.top_k and sampling.top_p >= 1 and sampling.min_p <= 0 and sampling.typical_p >= 1


def filter_candidates(
    logits_RV: torch.Tensor, samplings: list[Sampling]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Filter the `CANDIDATES` likeliest tokens of each row.

    Args:
        logits_RV: Logits after temperature, [rows, vocabulary].
        samplings: Sampling options of each row, all of which `fits_candidates`.

    Returns:
        Ids of the candidates [rows, K], their logits (-inf for those that may not be sampled), and whether a row is
        complete: no other token may be sampled, [rows].
    """
    vocabulary = logits_RV.shape[-1]
    values_RK, ids_RK = logits_RV.topk(min(CANDIDATES, vocabulary), dim=-1)
    count = values_RK.shape[-1]
    k_R1, p_R1, min_R1 = _limits(samplings, vocabulary, logits_RV.device)
    rank_K = torch.arange(count, device=logits_RV.device)
    values_RK = values_RK.masked_fill(rank_K >= k_R1, float("-inf"))
    among_R1 = k_R1 <= count
    total_R1 = torch.where(
        among_R1, values_RK.logsumexp(dim=-1, keepdim=True), logits_RV.logsumexp(dim=-1, keepdim=True)
    )
    drop_RK = _dropped(torch.exp(values_RK - total_R1), p_R1, min_R1)
    # A token that is less likely than a dropped one would be dropped, too.
    complete_R = among_R1[:, 0] | drop_RK[:, -1]
    return ids_RK, values_RK.masked_fill(drop_RK, float("-inf")), complete_R


def filter_vocabulary(logits_RV: torch.Tensor, samplings: list[Sampling]) -> torch.Tensor:
    """Filter all tokens: return logits after temperature, [rows, vocabulary], with -inf for those that are dropped."""
    if all(is_unfiltered(sampling) for sampling in samplings):
        return logits_RV
    vocabulary, device = logits_RV.shape[-1], logits_RV.device
    k_R1, p_R1, min_R1 = _limits(samplings, vocabulary, device)
    sorted_RV, order_RV = logits_RV.sort(dim=-1, descending=True)
    sorted_RV = sorted_RV.masked_fill(torch.arange(vocabulary, device=device) >= k_R1, float("-inf"))
    drop_RV = _dropped(torch.softmax(sorted_RV, dim=-1), p_R1, min_R1)
    sorted_RV = sorted_RV.masked_fill(drop_RV, float("-inf"))
    kept_RV = torch.empty_like(logits_RV).scatter_(1, order_RV, sorted_RV)
    return _typical(kept_RV, samplings) if any(sampling.typical_p < 1 for sampling in samplings) else kept_RV


def _limits(
    samplings: list[Sampling], vocabulary: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    k_R1 = torch.tensor([min(s.top_k or vocabulary, vocabulary) for s in samplings], device=device)[:, None]
    # Rounded sums reach 1 before the last token: a row without top-p must not lose its tail to one that has it.
    p_R1 = torch.tensor([s.top_p if s.top_p < 1 else float("inf") for s in samplings], device=device)[:, None]
    min_R1 = torch.tensor([s.min_p for s in samplings], device=device)[:, None]
    return k_R1, p_R1, min_R1


def _dropped(probability_RK: torch.Tensor, p_R1: torch.Tensor, min_R1: torch.Tensor) -> torch.Tensor:
    """Return which of the sorted probabilities top-p and min-p drop; never the first."""
    before_RK = probability_RK.cumsum(dim=-1) - probability_RK
    drop_RK = (before_RK >= p_R1) | (probability_RK < min_R1 * probability_RK[:, :1])
    drop_RK[:, 0] = False
    return drop_RK


def _typical(logits_RV: torch.Tensor, samplings: list[Sampling]) -> torch.Tensor:
    """Keep the tokens whose surprisal is nearest to the entropy (Meister et al. 2022), up to a probability mass."""
    mass_R1 = torch.tensor(
        [s.typical_p if s.typical_p < 1 else float("inf") for s in samplings], device=logits_RV.device
    )[:, None]
    logprob_RV = torch.log_softmax(logits_RV, dim=-1)
    probability_RV = logprob_RV.exp()
    entropy_R1 = -(probability_RV * logprob_RV).nansum(dim=-1, keepdim=True)
    distance_RV, order_RV = (-logprob_RV - entropy_R1).abs().sort(dim=-1)
    reached_RV = probability_RV.gather(-1, order_RV).cumsum(dim=-1)
    last_R1 = (reached_RV < mass_R1).sum(dim=-1, keepdim=True).clamp_max(logits_RV.shape[-1] - 1)
    drop_RV = distance_RV > distance_RV.gather(-1, last_R1)
    return logits_RV.masked_fill(torch.empty_like(drop_RV).scatter_(1, order_RV, drop_RV), float("-inf"))
