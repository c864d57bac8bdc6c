"""Sampling on through what was guessed, as long as the samples are the guess. Does not know where guesses come from."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from tessera.sequence.batch import Batch, Chunk
from tessera.sequence.request import SequenceRequest
from tessera.sequence.sampling.sampler import SampledToken, sample
from tessera.sequence.scheduler import Scheduler
from tessera.sequence.speculation.policy import Speculation
from tessera.wire.engine import FromEngine, GeneratedTokens


def verify_draft_tokens(
    batch: Batch,
    logits_RV: torch.Tensor,
    scheduler: Scheduler,
    speculation: Speculation,
    take: Callable[[SequenceRequest, SampledToken], FromEngine],
) -> list[FromEngine]:
    """Sample behind every chunk that completes, and on through its guess as long as the samples are the guess.

    Each round samples what would be sampled without guesses, so the text is the same with them.

    Args:
        batch: was computed, and the scheduler knows it.
        logits_RV: one row of each chunk that completes and is sampled, and of each of its guessed tokens.
        scheduler: is told of guesses that were right.
        speculation: learns from all of them.
        take: gives a request its token, and says what to answer.
    """
    answers: list[FromEngine] = []
    rows: list[tuple[Chunk, int, int]] = []
    """Each with its row of logits, and how much of its guess lies before that."""
    row = 0
    for chunk in batch.chunks:
        if chunk.completes and chunk.request.sampling is not None:
            rows.append((chunk, row, 0))
            row += 1 + len(chunk.draft_ids)
    logits = logits_RV
    while rows:
        if len(rows) < len(logits_RV):
            logits = logits_RV[[place for _, place, _ in rows]]
        found = sample(logits, [chunk.request for chunk, _, _ in rows])
        on: list[tuple[Chunk, int, int]] = []
        for (chunk, place, behind), one in zip(rows, found, strict=True):
            answer = take(chunk.request, one)
            answers.append(answer)
            taken = answer.token_ids if isinstance(answer, GeneratedTokens) else []  # a grammar may have added some
            right = _agree(taken, chunk.draft_ids[behind:])
            if isinstance(answer, GeneratedTokens) and answer.finish_reason is None:
                scheduler.accept(chunk.request, right)
                if right == len(taken):
                    on.append((chunk, place + right, behind + right))
                    continue
            if chunk.draft_ids:
                speculation.record_acceptance(chunk.request, len(chunk.draft_ids), behind + right)
        rows = on
    return answers


def _agree(tokens: list[int], guess: tuple[int, ...]) -> int:
    """How many of both are the same, from the first on."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(tokens, guess, strict=False)))
