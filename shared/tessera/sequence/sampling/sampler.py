"""Sampling tokens from logits: penalties, bias, grammars, temperature and filters, with noise of each request's own.

Rows are independent: a request with the same seed gets the same token whatever shares its batch, because its noise
depends on seed, place and token only, and the sample is an argmax (Gumbel's trick) over its own row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tessera.device.copies import Readback, to_device
from tessera.sequence.batch import TopLogit
from tessera.sequence.grammar.matcher import fill_single_token, unpack_mask
from tessera.sequence.request import SequenceRequest
from tessera.sequence.sampling import filters
from tessera.sequence.sampling.noise import gumbel, next_noise_key
from tessera.wire.engine import Sampling, TokenScore

_Score = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Log-probability of the sampled token, and those of the likeliest tokens with their ids."""
GREEDY_BELOW = 1e-5
"""Temperature below which sampling is greedy (as in vLLM): dividing by it would overflow."""


@dataclass(frozen=True)
class SampledToken:
    """Token of one row.

    Attributes:
        token_id: None if the row was not finite, or its grammar and its constraints allow no token.
        score: Log-probabilities, if the client wants them.
        is_finite: Whether the model's logits were finite.
    """

    token_id: int | None
    score: TokenScore | None
    is_finite: bool = True


class InFlightTokens:
    """Tokens that the device has sampled and that are being copied to the host.

    Args:
        tokens_R: Token of each row, int64, on the device.
        is_finite_R: Whether a row of logits was finite.
        is_left_R: Whether a row had a token that may be sampled.
        scores: Score of each row, or None where the client wants none.
    """

    def __init__(
        self, tokens_R: torch.Tensor, is_finite_R: torch.Tensor, is_left_R: torch.Tensor, scores: list[_Score | None]
    ) -> None:
        self.tokens_R = tokens_R
        self._scored = [row for row, score in enumerate(scores) if score is not None]
        parts = [part for score in scores if score for part in score]
        self._readback = Readback([tokens_R, is_finite_R, is_left_R, *parts])

    def read(self) -> list[SampledToken]:
        """Wait for the tokens and return them."""
        tokens_R, is_finite_R, is_left_R, *parts = self._readback.read()
        scores: list[TokenScore | None] = [None] * len(tokens_R)
        for index, row in enumerate(self._scored):
            chosen, values, ids = parts[3 * index : 3 * index + 3]
            scores[row] = TokenScore(float(chosen), list(zip(ids.tolist(), values.tolist(), strict=True)))
        rows = zip(tokens_R.tolist(), is_finite_R.tolist(), is_left_R.tolist(), scores, strict=True)
        return [SampledToken(token if finite and left else None, score, finite) for token, finite, left, score in rows]


def sample(logits_RV: torch.Tensor, requests: list[SequenceRequest]) -> list[SampledToken]:
    """Sample a token per row and wait for it, as `start_sampling` says."""
    return start_sampling(logits_RV, requests).read() if requests else []


def start_sampling(
    logits_RV: torch.Tensor, requests: list[SequenceRequest], top_logit: TopLogit | None = None
) -> InFlightTokens:
    """Sample a token per row.

    On a GPU this does not wait for the device, unless a request has filters, penalties or a grammar.

    Args:
        logits_RV: [requests, vocabulary], any float dtype; row r belongs to `requests[r]`.
        requests: At least one, each with `sampling` set.
        top_logit: Largest logits of `logits_RV`, if they are known.
    """
    raw_RV = logits_RV.float()
    tokens_R, is_finite_R = _top_tokens(raw_RV, top_logit)
    if all(_is_plain_greedy(request) for request in requests):
        return InFlightTokens(tokens_R, is_finite_R, is_finite_R, _scores(raw_RV, tokens_R, requests))
    adjusted_RV = raw_RV.clone()
    for row, request in enumerate(requests):
        _adjust(adjusted_RV[row], request)
    is_left_R = _mask(adjusted_RV, requests)
    tokens_R = adjusted_RV.argmax(dim=-1)
    random = [row for row, request in enumerate(requests) if _sampling(request).temperature >= GREEDY_BELOW]
    if random:
        rows = to_device(random, raw_RV.device)
        tokens_R[rows] = _sample_random(adjusted_RV[rows], [requests[row] for row in random])
    return InFlightTokens(tokens_R, is_finite_R, is_left_R, _scores(raw_RV, tokens_R, requests))


def _top_tokens(raw_RV: torch.Tensor, top_logit: TopLogit | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token of each row's largest logit, and whether the row has a finite logit and no NaN, [rows] each."""
    if raw_RV.device.type != "cpu":
        is_finite_R = torch.isfinite(raw_RV).any(dim=-1) & ~torch.isnan(raw_RV).any(dim=-1)
        return raw_RV.argmax(dim=-1), is_finite_R
    if top_logit is None:
        # NumPy's argmax takes a tenth of the time of torch's, and returns the first NaN if there is one.
        tokens = raw_RV.numpy().argmax(axis=-1)
        top_logit = TopLogit(torch.from_numpy(tokens), raw_RV[torch.arange(len(raw_RV)), torch.from_numpy(tokens)])
    # The largest logit therefore tells of a NaN; only a row whose largest is infinite needs a second look.
    is_finite_R = torch.isfinite(top_logit.logits_R)
    for row in torch.isposinf(top_logit.logits_R).nonzero()[:, 0]:
        is_finite_R[row] = torch.isfinite(raw_RV[row]).any()
    return top_logit.tokens_R, is_finite_R


def _is_plain_greedy(request: SequenceRequest) -> bool:
    """Whether a request takes the token of the largest logit as it is: greedy, without bias, grammar and the like."""
    sampling = _sampling(request)
    return (
        sampling.temperature < GREEDY_BELOW
        and request.matcher is None
        and request.constraints is None
        and not sampling.logit_bias
        and sampling.repetition_penalty == 1.0
        and not sampling.presence_penalty
        and not sampling.frequency_penalty
    )


def _sampling(request: SequenceRequest) -> Sampling:
    assert request.sampling is not None
    return request.sampling


def _adjust(logits_V: torch.Tensor, request: SequenceRequest) -> None:
    """Apply bias and penalties in place (as vLLM): presence and frequency count the output, repetition all tokens."""
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
    """Mask the tokens that the requests' grammars and constraints do not allow, in place.

    Returns:
        Whether a row has a token left, bool [requests].
    """
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
        allowed_MV = unpack_mask(mask_MW.to(logits_RV.device), vocabulary)
        rows_M = torch.tensor([row for row, _ in matchers], device=logits_RV.device)
        masked_MV = logits_RV[rows_M].masked_fill(~allowed_MV, float("-inf"))
        logits_RV[rows_M] = masked_MV
        left_R[rows_M] = torch.isfinite(masked_MV).any(dim=-1)
    for row, request in enumerate(requests):
        if request.constraints is not None:
            output = request.token_ids[request.prompt_length :]
            request.constraints.mask(logits_RV[row], output, may_end=request.matcher is not None)
            left_R[row] = torch.isfinite(logits_RV[row]).any()
    return left_R


def _sample_random(logits_RV: torch.Tensor, requests: list[SequenceRequest]) -> torch.Tensor:
    """Return a token, [rows], for each row of a request that is not greedy."""
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
    """Return log-probabilities of the model's own distribution, before temperature, penalties and filters (as vLLM)."""
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
