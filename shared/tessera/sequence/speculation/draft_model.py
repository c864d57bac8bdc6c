"""A draft model: a smaller model with the same tokens drafts how requests go on.

It samples with each request's own noise, as the target model will (Gumbel coupling: Daliri, Musco & Suresh 2024,
"Coupling without Communication and Drafter-Invariant Speculative Decoding"), so drafts are accepted about as often at
any temperature. Its keys and values are in pages of its own; requests that find no page there get no draft.

Knows nothing about the target model or the number of draft tokens: see `tessera.sequence.speculation.policy`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from tessera.cache.pages import PageAllocator
from tessera.sequence.batch import Batch, Chunk
from tessera.sequence.request import SequenceRequest
from tessera.sequence.runner.protocol import BatchRunner
from tessera.sequence.sampling.sampler import sample

logger = logging.getLogger(__name__)


@dataclass
class _DraftSequence:
    """A request as the draft model computes it.

    Attributes:
        request: Has the same tokens, and draft tokens behind them while drafting.
        known: Number of its tokens that the original has; those behind are draft tokens of the last draft.
    """

    request: SequenceRequest
    known: int


class DraftModel:
    """Drafts by running a model. Implements `tessera.sequence.speculation.policy.Drafter`.

    Args:
        runner: Runs the draft model.
        max_tokens: Positions computed in one forward; a long prompt is computed over several steps.
        vocabulary: Number of token ids of the target model; no draft goes on beyond a token outside of them.
    """

    def __init__(self, runner: BatchRunner, *, max_tokens: int, vocabulary: int) -> None:
        self.runner = runner
        self.allocator = PageAllocator(runner.pages, runner.page_size)
        self._max_tokens = max_tokens
        self._vocabulary = vocabulary
        self._sequences: dict[SequenceRequest, _DraftSequence] = {}
        self._failed = False

    def draft(self, wanted: dict[SequenceRequest, int]) -> dict[SequenceRequest, list[int]]:
        """Draft as `Drafter.draft` says. A draft model that fails is not run again: answers do not depend on it."""
        if self._failed:
            return {}
        try:
            return self._draft(wanted)
        except (RuntimeError, ValueError, IndexError) as error:
            if "CUDA error" in str(error):  # the device's context is lost, for the target model too
                raise
            logger.exception("the draft model failed; from here on nothing is drafted")
            self._failed = True
            for request in list(self._sequences):
                self.forget(request)
            return {}

    def forget(self, request: SequenceRequest) -> None:
        """Free the pages of a request that has ended."""
        sequence = self._sequences.pop(request, None)
        if sequence is not None:
            self.allocator.release(sequence.request.pages)

    def _draft(self, wanted: dict[SequenceRequest, int]) -> dict[SequenceRequest, list[int]]:
        chunks, budget = [], self._max_tokens
        # By the draft model's request: the original, and its number of draft tokens.
        targets: dict[SequenceRequest, tuple[SequenceRequest, int]] = {}
        for request, max_tokens in wanted.items():
            length = min(max_tokens, self.runner.context_length - len(request.token_ids))
            if length < 1 or budget == 0 or request.media is not None:
                continue
            own = self._synchronized(request)
            count = min(own.remaining, budget)
            if not self._grow(own, own.computed + count + length - 1):
                continue
            chunks.append(Chunk(own, own.computed, count))
            budget -= count
            targets[own] = request, length
        drafts: dict[SequenceRequest, list[int]] = {}
        while chunks:
            output = self.runner.run(Batch(chunks))
            complete = [chunk.request for chunk in chunks if chunk.completes]
            for chunk in chunks:
                chunk.request.computed = chunk.start + chunk.count
            chunks = []
            for own, sampled in zip(complete, sample(output.logits_RV, complete), strict=True):
                request, length = targets[own]
                token = sampled.token_id
                if token is None or token >= self._vocabulary:
                    continue
                draft = drafts.setdefault(request, [])
                draft.append(token)
                own.append(token)
                if len(draft) < length:
                    chunks.append(Chunk(own, own.computed, 1))
        return drafts

    def _synchronized(self, request: SequenceRequest) -> SequenceRequest:
        """Return the draft model's request with the original's tokens; rejected draft tokens are dropped."""
        sequence = self._sequences.get(request)
        if sequence is None:
            assert request.sampling is not None
            own = SequenceRequest(
                request.request_id, [], msgspec.structs.replace(request.sampling, logprobs=None, prompt_logprobs=None)
            )
            own.prompt_length = request.prompt_length
            sequence = self._sequences[request] = _DraftSequence(own, 0)
        own, tokens = sequence.request, request.token_ids
        same = sequence.known
        while same < min(len(own.token_ids), len(tokens)) and own.token_ids[same] == tokens[same]:
            same += 1
        own.computed = min(own.computed, same, len(tokens) - 1)
        own.token_ids[same:] = tokens[same:]
        sequence.known = len(tokens)
        own.noise_seed = request.noise_seed
        return own

    def _grow(self, own: SequenceRequest, positions: int) -> bool:
        """Give a request pages for `positions` positions. Returns whether there were enough."""
        missing = self.allocator.pages_for(positions) - len(own.pages)
        if missing > 0:
            if not self.allocator.can_allocate(missing):
                return False
            own.pages += self.allocator.allocate(missing, own.pages[-1] if own.pages else None)
        return True
