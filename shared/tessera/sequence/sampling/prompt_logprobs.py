"""How likely a prompt's own tokens were, to the model that reads them. Does not know how logits come to be."""

from __future__ import annotations

import torch

from tessera.sequence.batch import Batch
from tessera.wire.engine import TokenScore

ROWS = 64
"""Positions at a time: of each, the whole vocabulary is held several times."""


def score_prompts(batch: Batch, logits_SV: torch.Tensor | None) -> None:
    """Add the scores that a step brought to its requests.

    Args:
        batch: that was computed.
        logits_SV: of the positions `SequenceRequest.scored` of each chunk in turn; None when there are none.
    """
    if logits_SV is None:
        return
    begins = 0
    for chunk in batch.chunks:
        request = chunk.request
        positions = request.scored_positions(chunk.start, chunk.count)
        mine_PV = logits_SV[begins : begins + len(positions)]
        begins += len(positions)
        assert request.sampling is not None or not positions
        for at in range(0, len(positions), ROWS):
            block = positions[at : at + ROWS]
            tokens = [request.token_ids[position + 1] for position in block]
            assert request.sampling is not None
            request.prompt_scores += _scores(mine_PV[at : at + ROWS], tokens, request.sampling.prompt_logprobs or 0)


def _scores(logits_PV: torch.Tensor, tokens: list[int], most: int) -> list[TokenScore]:
    logprob_PV = torch.log_softmax(logits_PV.float(), dim=-1)
    token_P1 = torch.tensor(tokens, device=logits_PV.device)[:, None]
    own_P1 = logprob_PV.gather(1, token_P1)
    rank_P = (logprob_PV > own_P1).sum(dim=-1) + 1
    values_PK, ids_PK = logprob_PV.topk(min(most, logprob_PV.shape[-1]))
    rows = zip(own_P1[:, 0].tolist(), ids_PK.tolist(), values_PK.tolist(), rank_P.tolist(), strict=True)
    return [TokenScore(own, list(zip(ids, values, strict=True)), rank) for own, ids, values, rank in rows]
