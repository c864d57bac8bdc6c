"""Sampling on through what was guessed, as long as the samples are the guess. Does not know where guesses come from."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from tessera.engine.batch import Batch, Chunk
from tessera.engine.sampler import Sampled, sample
from tessera.engine.scheduler import Scheduler
from tessera.engine.sequence_request import SequenceRequest
from tessera.engine.speculation import Speculation
from tessera.wire.engine import FromEngine, Tokens


def sample_on(
    batch: Batch,
    logits_RV: torch.Tensor,
    scheduler: Scheduler,
    speculation: Speculation,
    take: Callable[[SequenceRequest, Sampled], FromEngine],
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
    rows: list[tuple[Chunk, int]] = []
    row = 0
    for chunk in batch.chunks:
        if chunk.completes and chunk.request.sampling is not None:
            rows.append((chunk, row))
            row += 1 + len(chunk.guess)
    for behind in itertools.count():
        if not rows:
            break
        logits = logits_RV if behind == 0 and row == len(rows) else logits_RV[[place for _, place in rows]]
        found = sample(logits, [chunk.request for chunk, _ in rows])
        on: list[tuple[Chunk, int]] = []
        for (chunk, place), one in zip(rows, found, strict=True):
            answer = take(chunk.request, one)
            answers.append(answer)
            right = behind < len(chunk.guess) and one.token_id == chunk.guess[behind]
            goes_on = isinstance(answer, Tokens) and answer.finish_reason is None
            if right and goes_on:
                scheduler.confirm(chunk.request, 1)
                on.append((chunk, place + 1))
            elif chunk.guess:
                speculation.learn(chunk.request, len(chunk.guess), behind + right)
        rows = on
    return answers
