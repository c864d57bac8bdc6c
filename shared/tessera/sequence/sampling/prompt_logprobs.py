"""Log-probabilities of a prompt's own tokens. Knows nothing about how logits are computed."""

from __future__ import annotations

import torch

from tessera.sequence.batch import Batch
from tessera.wire.engine import TokenScore

ROWS_AT_ONCE = 64
"""Positions scored at a time: for each of them, several tensors hold the whole vocabulary."""


def score_prompts(batch: Batch, logits_SV: torch.Tensor | None) -> None:
    """Add the scores of a step's prompt positions to its requests.

    Args:
        batch: Computed batch.
        logits_SV: Logits at the `SequenceRequest.scored_positions` of each chunk in turn; None if there are none.
    """
    if logits_SV is None:
        return
    offset = 0
    for chunk in batch.chunks:
        request = chunk.request
        positions = request.scored_positions(chunk.start, chunk.count)
        own_PV = logits_SV[offset : offset + len(positions)]
        offset += len(positions)
        assert request.sampling is not None or not positions
        for at in range(0, len(positions), ROWS_AT_ONCE):
            block = positions[at : at + ROWS_AT_ONCE]
            tokens = [request.token_ids[position + 1] for position in block]
            assert request.sampling is not None
            count = request.sampling.prompt_logprobs or 0
            request.prompt_scores += _scores(own_PV[at : at + ROWS_AT_ONCE], tokens, count)


def _scores(logits_PV: torch.Tensor, tokens: list[int], count: int) -> list[TokenScore]:
    """Score one token per row, with the `count` likeliest tokens beside it."""
    logprob_PV = torch.log_softmax(logits_PV.float(), dim=-1)
    token_P1 = torch.tensor(tokens, device=logits_PV.device)[:, None]
    own_P1 = logprob_PV.gather(1, token_P1)
    rank_P = (logprob_PV > own_P1).sum(dim=-1) + 1
    values_PK, ids_PK = logprob_PV.topk(min(count, logprob_PV.shape[-1]))
    rows = zip(own_P1[:, 0].tolist(), ids_PK.tolist(), values_PK.tolist(), rank_P.tolist(), strict=True)
    return [TokenScore(own, list(zip(ids, values, strict=True)), rank) for own, ids, values, rank in rows]
