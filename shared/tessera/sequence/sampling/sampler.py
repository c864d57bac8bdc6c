"""Picking tokens from logits: penalties, bias, grammars, temperature, filters; noise of each request's own.

Rows are independent: the same request with the same seed gets the same token whatever shares its batch, because its
noise follows from seed, place and token, and the pick is an argmax (Gumbel's trick) over its own row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tessera.device.copies import Readback, to_device
from tessera.sequence.batch import TopLogit
from tessera.sequence.grammar.matcher import allowed, fill_single_token
from tessera.sequence.request import SequenceRequest
from tessera.sequence.sampling import filters
from tessera.sequence.sampling.noise import gumbel, next_noise_key
from tessera.wire.engine import Sampling, TokenScore

_Score = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Log-probability of the token, and of the likeliest tokens with their ids."""
GREEDY_BELOW = 1e-5
"""Temperatures below this one are greedy (as vLLM): dividing by them overflows."""


@dataclass(frozen=True)
class SampledToken:
    """Token of one row, and its score if asked for. `token_id` is None when the row was not finite.

    A grammar that allows no further token has the same effect.
    """

    token_id: int | None
    score: TokenScore | None


class InFlightTokens:
    """Tokens that are drawn for some rows, on their way from the device.

    Attributes:
        tokens_R: int64, on the device.
    """

    def __init__(self, tokens_R: torch.Tensor, finite_R: torch.Tensor, scores: list[_Score | None]) -> None:
        self.tokens_R = tokens_R
        self._scored = [row for row, score in enumerate(scores) if score is not None]
        self._readback = Readback([tokens_R, finite_R, *(part for score in scores if score for part in score)])

    def read(self) -> list[SampledToken]:
        """What was drawn; waits for it."""
        tokens_R, finite_R, *parts = self._readback.read()
        scores: list[TokenScore | None] = [None] * len(tokens_R)
        for index, row in enumerate(self._scored):
            chosen, values, ids = parts[3 * index : 3 * index + 3]
            scores[row] = TokenScore(float(chosen), list(zip(ids.tolist(), values.tolist(), strict=True)))
        found = zip(tokens_R.tolist(), finite_R.tolist(), scores, strict=True)
        return [SampledToken(token if good else None, score) for token, good, score in found]


def sample(logits_RV: torch.Tensor, requests: list[SequenceRequest]) -> list[SampledToken]:
    """Pick a token per row, and wait for it. See `draw`."""
    return draw(logits_RV, requests).read() if requests else []


def draw(logits_RV: torch.Tensor, requests: list[SequenceRequest], top_logit: TopLogit | None = None) -> InFlightTokens:
    """Pick a token per row.

    On a GPU it does not wait for the device, unless a request has filters, penalties or a grammar.

    Args:
        logits_RV: [requests, vocabulary], any float dtype; row r belongs to `requests[r]`.
        requests: at least one, each with `sampling` set.
        top_logit: tokens of `logits_RV`, if they are known.
    """
    raw_RV = logits_RV.float()
    tokens_R, finite_R = _top_logits(raw_RV, top_logit)
    if all(_is_plain_greedy(request) for request in requests):
        return InFlightTokens(tokens_R, finite_R, _scores(raw_RV, tokens_R, requests))
    adjusted_RV = raw_RV.clone()
    for row, request in enumerate(requests):
        _adjust(adjusted_RV[row], request)
    finite_R &= _mask(adjusted_RV, requests)
    tokens_R = adjusted_RV.argmax(dim=-1)
    random = [row for row, request in enumerate(requests) if _sampling(request).temperature >= GREEDY_BELOW]
    if random:
        rows = to_device(random, raw_RV.device)
        tokens_R[rows] = _draw(adjusted_RV[rows], [requests[row] for row in random])
    return InFlightTokens(tokens_R, finite_R, _scores(raw_RV, tokens_R, requests))


def _top_logits(raw_RV: torch.Tensor, found: TopLogit | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each row the largest logit's token, and whether it has finite ones and none that is no number, [R] each."""
    if raw_RV.device.type != "cpu":
        finite_R = torch.isfinite(raw_RV).any(dim=-1) & ~torch.isnan(raw_RV).any(dim=-1)
        return raw_RV.argmax(dim=-1), finite_R
    if found is None:
        # NumPy's takes a tenth of the time, and of numbers that are none the first.
        tokens = raw_RV.numpy().argmax(axis=-1)
        found = TopLogit(torch.from_numpy(tokens), raw_RV[torch.arange(len(raw_RV)), torch.from_numpy(tokens)])
    # So one look at a row is enough unless its largest is infinite.
    finite_R = torch.isfinite(found.logits_R)
    for row in torch.isposinf(found.logits_R).nonzero()[:, 0]:
        finite_R[row] = torch.isfinite(raw_RV[row]).any()
    return found.tokens_R, finite_R


def _is_plain_greedy(request: SequenceRequest) -> bool:
    """Whether nothing is added to a request's logits or taken from them."""
    sampling = _sampling(request)
    return (
        sampling.temperature < GREEDY_BELOW
        and request.matcher is None
        and not sampling.logit_bias
        and sampling.repetition_penalty == 1.0
        and not sampling.presence_penalty
        and not sampling.frequency_penalty
    )


def _sampling(request: SequenceRequest) -> Sampling:
    assert request.sampling is not None
    return request.sampling


def _adjust(logits_V: torch.Tensor, request: SequenceRequest) -> None:
    """Apply bias and penalties in place. Presence and frequency count the output, repetition all tokens (as vLLM)."""
    sampling = _sampling(request)
    if sampling.repetition_penalty != 1.0:
        seen = torch.unique(torch.tensor(request.token_ids, device=logits_V.device))
        values = logits_V[seen]
        logits_V[seen] = torch.where(
            values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty
        )
    if (sampling.presence_penalty or sampling.frequency_penalty) and request.output_length:
        output = torch.tensor(request.token_ids[request.prompt_length :], device=logits_V.device)
        used, counts = torch.unique(output, return_counts=True)
        logits_V[used] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    if sampling.logit_bias:
        ids = to_device(list(sampling.logit_bias), logits_V.device)
        logits_V[ids] += to_device(list(sampling.logit_bias.values()), logits_V.device)


def _mask(logits_RV: torch.Tensor, requests: list[SequenceRequest]) -> torch.Tensor:
    """Exclude what the requests' grammars do not allow, in place. Returns which rows have a token left, [requests]."""
    matchers = [(row, request.matcher) for row, request in enumerate(requests) if request.matcher is not None]
    left_R = torch.ones(len(requests), dtype=torch.bool, device=logits_RV.device)
    if matchers:
        vocabulary = logits_RV.shape[-1]
        mask_MW = torch.zeros(len(matchers), -(-vocabulary // 32), dtype=torch.int32)
        for index, (row, matcher) in enumerate(matchers):
            if requests[row].forced:
                fill_single_token(mask_MW, index, requests[row].forced[0])
            else:
                matcher.fill_mask(mask_MW, index)
        allowed_MV = allowed(mask_MW.to(logits_RV.device), vocabulary)
        rows_M = torch.tensor([row for row, _ in matchers], device=logits_RV.device)
        masked_MV = logits_RV[rows_M].masked_fill(~allowed_MV, float("-inf"))
        logits_RV[rows_M] = masked_MV
        left_R[rows_M] = torch.isfinite(masked_MV).any(dim=-1)
    return left_R


def _draw(logits_RV: torch.Tensor, requests: list[SequenceRequest]) -> torch.Tensor:
    """Sample rows that are not greedy, [rows]."""
    samplings = [_sampling(request) for request in requests]
    keys = [next_noise_key(request) for request in requests]
    temperature_R1 = to_device([s.temperature for s in samplings], logits_RV.device)[:, None]
    logits_RV = logits_RV / temperature_R1
    tokens_R = torch.empty(len(requests), dtype=torch.int64, device=logits_RV.device)
    rest = [row for row, sampling in enumerate(samplings) if not filters.fits_candidates(sampling)]
    few = [row for row, sampling in enumerate(samplings) if filters.fits_candidates(sampling)]
    if few:
        few_F = to_device(few, logits_RV.device)
        ids_FK, kept_FK, complete_F = filters.filter_candidates(logits_RV[few_F], [samplings[row] for row in few])
        chosen_F1 = (kept_FK + gumbel([keys[row] for row in few], ids_FK)).argmax(dim=-1, keepdim=True)
        tokens_R[few_F] = ids_FK.gather(1, chosen_F1)[:, 0]
        rest += [row for row, complete in zip(few, complete_F.tolist(), strict=True) if not complete]
    if rest:
        rest_W = to_device(rest, logits_RV.device)
        kept_WV = filters.filter_vocabulary(logits_RV[rest_W], [samplings[row] for row in rest])
        ids_1V = torch.arange(logits_RV.shape[-1], device=logits_RV.device)[None]
        tokens_R[rest_W] = (kept_WV + gumbel([keys[row] for row in rest], ids_1V)).argmax(dim=-1)
    return tokens_R


def _scores(raw_RV: torch.Tensor, tokens_R: torch.Tensor, requests: list[SequenceRequest]) -> list[_Score | None]:
    """Log-probabilities of the model's own distribution, before temperature, penalties and filters (as vLLM)."""
    wanted = [row for row, request in enumerate(requests) if _sampling(request).logprobs is not None]
    scores: list[_Score | None] = [None] * len(requests)
    if wanted:
        rows = to_device(wanted, raw_RV.device)
        logprob_WV = torch.log_softmax(raw_RV[rows], dim=-1)
        chosen_W = logprob_WV.gather(1, tokens_R[rows, None])[:, 0]
        for index, row in enumerate(wanted):
            count = min(_sampling(requests[row]).logprobs or 0, logprob_WV.shape[-1])
            scores[row] = chosen_W[index], *logprob_WV[index].topk(count)
    return scores
