"""Verification of draft tokens: sample at their positions and accept them as long as the samples are the same.

Every sample is the one that would have been drawn without drafts, so the text is the same, too. Knows nothing about the
drafter.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tessera.sequence.batch import Batch, Chunk, StepOutput
from tessera.sequence.request import SequenceRequest
from tessera.sequence.sampling.sampler import SampledToken, sample
from tessera.sequence.scheduler import Scheduler
from tessera.sequence.speculation.policy import Speculation
from tessera.wire.engine import FromEngine, GeneratedTokens


def verify_draft_tokens(
    batch: Batch,
    output: StepOutput,
    scheduler: Scheduler,
    speculation: Speculation,
    append: Callable[[SequenceRequest, SampledToken], FromEngine],
) -> list[FromEngine]:
    """Sample behind every chunk that completes, and go on through its draft tokens while they are accepted.

    Args:
        batch: Computed batch, which the scheduler has advanced by.
        output: What it computed: a row of logits for each chunk that completes and is sampled, and one for each of
            its draft tokens.
        scheduler: Gets the number of accepted tokens.
        speculation: Gets the number of drafted and accepted tokens.
        append: Gives a request a sampled token and returns the answer.
    """
    answers: list[FromEngine] = []
    rows: list[tuple[Chunk, int, int]] = []
    """Chunks that go on, each with its next row of logits and the number of draft tokens accepted so far."""
    row = 0
    for chunk in batch.chunks:
        if chunk.completes and chunk.request.sampling is not None:
            rows.append((chunk, row, 0))
            row += 1 + len(chunk.draft_ids)
    logits_RV = output.logits_RV
    while rows:
        if len(rows) < len(output.logits_RV):
            logits_RV = output.logits_RV[[row for _, row, _ in rows]]
        sampled = sample(logits_RV, [chunk.request for chunk, _, _ in rows])
        continuing: list[tuple[Chunk, int, int]] = []
        for (chunk, row, before), token in zip(rows, sampled, strict=True):
            answer = append(chunk.request, token)
            answers.append(answer)
            appended = answer.token_ids if isinstance(answer, GeneratedTokens) else []  # a grammar may have forced some
            accepted = _matching_length(appended, chunk.draft_ids[before:])
            if isinstance(answer, GeneratedTokens) and answer.finish_reason is None:
                scheduler.accept(chunk.request, accepted)
                if accepted == len(appended):
                    continuing.append((chunk, row + accepted, before + accepted))
                    continue
            if chunk.draft_ids:
                speculation.record_acceptance(chunk.request, len(chunk.draft_ids), before + accepted)
        rows = continuing
    return answers


def _matching_length(tokens: list[int], draft_ids: tuple[int, ...]) -> int:
    """Return how many tokens from the first on are equal."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(tokens, draft_ids, strict=False)))
