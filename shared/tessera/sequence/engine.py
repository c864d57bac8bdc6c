"""The sequence engine: schedule → run → sample → tell, for text and vision-language models.

Ties the scheduler (policy) to the runner (tensors) and the sampler; `tessera.engine.process` has the loop around it.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable
from typing import Literal

import msgspec

from tessera.cache.pages import PageAllocator
from tessera.cache.prefix import PrefixCache
from tessera.device.copies import to_device
from tessera.engine.process import failed
from tessera.engine.stages import StageTimer
from tessera.errors import DeadlineError, InternalError, InvalidRequestError
from tessera.sequence.batch import Batch, Chunk, StepOutput
from tessera.sequence.embeddings import NOT_FINITE, embedded, pool
from tessera.sequence.grammar.queue import GrammarQueue
from tessera.sequence.intake import check_tokens, media_cache_ids, request_of
from tessera.sequence.metrics import metrics_of
from tessera.sequence.overlap import InFlightStep
from tessera.sequence.request import SequenceRequest
from tessera.sequence.runner.protocol import BatchRunner
from tessera.sequence.sampling.forced_tokens import follow, update_forced
from tessera.sequence.sampling.prompt_logprobs import score_prompts
from tessera.sequence.sampling.sampler import SampledToken, draw
from tessera.sequence.scheduler import Scheduler
from tessera.sequence.speculation.policy import Drafter, NGramDrafter, Speculation
from tessera.sequence.speculation.verification import verify_draft_tokens
from tessera.settings.sequence import SequenceEngineSettings
from tessera.wire.engine import (
    Array,
    Embed,
    FromEngine,
    Generate,
    GeneratedTokens,
    Ready,
    ToEngine,
)

logger = logging.getLogger(__name__)

CHECK_EVERY_S = 5.0
LATE = "the request's deadline is over"
STUCK = "the grammar allows no token that goes on here"
GRAMMAR_WAIT_S = 0.005
"""How long a step with nothing else to do waits for a grammar; new messages wait as long."""


class SequenceEngine:
    """Continuous batching of sequence requests over one model."""

    def __init__(
        self,
        runner: BatchRunner,
        settings: SequenceEngineSettings,
        ready: Ready,
        grammars: GrammarQueue | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self.runner = runner
        self.grammars = grammars
        self._ready = ready
        self._isolated = settings.prefix_cache == "tenant"
        cache = PrefixCache(
            PageAllocator(runner.pages, runner.page_size),
            host_slots=runner.host_pages,
            enabled=settings.prefix_cache != "off",
        )
        drafter = NGramDrafter() if settings.speculation == "ngram" else drafter
        self.speculation = (
            Speculation(drafter, max_draft_tokens=settings.speculation_tokens, max_rows=settings.max_batch_tokens)
            if drafter is not None
            else None
        )
        self.scheduler = Scheduler(
            cache,
            max_batch_tokens=settings.max_batch_tokens,
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            context_length=runner.context_length,
            speculation=self.speculation,
        )
        self.requests: dict[str, SequenceRequest] = {}
        self.unseen: dict[str, tuple[SequenceRequest, dict[str, Array]]] = {}
        """Requests whose images are still to be encoded, in the order of arrival."""
        self.unwritten: dict[str, tuple[SequenceRequest, dict[str, Array]]] = {}
        """Requests whose grammar is still being compiled."""
        self.computed_tokens = 0
        self.sampled_tokens = self.forced_tokens = 0
        self.steps = 0
        self.integrity_faults = 0
        self.batch_tokens = 0
        """Positions of the last step."""
        self.stages = StageTimer("schedule", "encode", "forward", "sample")
        self.overlaps = settings.overlap == "on" or (settings.overlap == "auto" and runner.asynchronous)
        if self.overlaps and self.speculation is not None:
            logger.info("steps do not overlap: guesses continue tokens that are known")
            self.overlaps = False
        self._in_flight: InFlightStep | None = None
        self._check_at = 0.0

    def ready(self) -> Ready:
        """What was loaded. A card's context is what this engine holds of one request: perhaps less than the model."""
        context = self.scheduler.context_length
        cards = [msgspec.structs.replace(card, context_length=context) for card in self._ready.cards]
        return msgspec.structs.replace(self._ready, cards=cards)

    def submit(self, message: ToEngine) -> None:
        """Queue a `Generate` or `Embed`."""
        if not isinstance(message, Generate | Embed):
            raise InvalidRequestError(f"this engine does not serve {type(message).__name__}")
        check_tokens(message, self.runner.vocabulary)
        request = request_of(message, isolated=self._isolated)
        sampling = request.sampling
        media = message.media if isinstance(message, Generate) else {}
        if media and self.runner.encoder is None:
            raise InvalidRequestError("images are not supported with this model", param="messages")
        if sampling is not None and sampling.grammar is not None:
            if self.grammars is None:
                raise InvalidRequestError("this engine has no grammars", param=sampling.grammar.param)
            self.scheduler.check(request, ahead=len(self.unseen) + len(self.unwritten))
            self.grammars.start(request.request_id, sampling.grammar)
            self.unwritten[request.request_id] = request, media
            return
        self._queue(request, media)

    def _queue(self, request: SequenceRequest, media: dict[str, Array]) -> None:
        """To the scheduler, or to the encoder first. Raises what `Scheduler.check` raises."""
        if media:
            self.scheduler.check(request, ahead=len(self.unseen))
            self.unseen[request.request_id] = request, media
            return
        self.scheduler.submit(request)
        self.requests[request.request_id] = request

    def cancel(self, request_id: str) -> None:
        """Forget a request and free its pages."""
        self.unseen.pop(request_id, None)
        if self.unwritten.pop(request_id, None) is not None and self.grammars is not None:
            self.grammars.cancel(request_id)
        request = self.requests.pop(request_id, None)
        if request is not None:
            self.scheduler.remove(request)

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.unseen or self.unwritten or self._in_flight) or self.scheduler.has_work()

    def step(self) -> Iterable[FromEngine]:
        """Encode one request's images, compute one batch and tell what came of it."""
        answers = [*self._expire(), *self._constrain(), *self._encode(), *self._compute()]
        if self._in_flight is None and not self.scheduler.has_work():
            self._check_integrity()
        return answers

    def _constrain(self) -> list[FromEngine]:
        """Queue the requests whose grammar is compiled."""
        if not self.unwritten or self.grammars is None:
            return []
        answers: list[FromEngine] = []
        idle = not self.unseen and not self.scheduler.has_work()
        for request_id, found in self.grammars.ready(wait_s=GRAMMAR_WAIT_S if idle else 0.0):
            request, media = self.unwritten.pop(request_id)
            try:
                if isinstance(found, Exception):
                    raise found
                request.matcher = found
                update_forced(request)
                self._queue(request, media)
            except Exception as error:  # noqa: BLE001 - it is this request's answer
                answers.append(failed(request_id, error))
        return answers

    def _expire(self) -> list[FromEngine]:
        """End the requests whose deadline is over, whether they wait or run."""
        expired = self.scheduler.expired(time.monotonic())
        return [self._fail(request, DeadlineError(LATE)) for request in expired]

    def _encode(self) -> list[FromEngine]:
        """The images of the next request: one a step, so that those that are being answered go on."""
        if not self.unseen:
            return []
        request, media = self.unseen.pop(next(iter(self.unseen)))
        assert self.runner.encoder is not None
        try:
            with self.stages.time("encode"):
                request.media = self.runner.encoder.encode(request.token_ids, media)
            request.identify_media(media_cache_ids(media, list(request.media.positions)))
            self.scheduler.submit(request)
        except Exception as error:
            if "CUDA error" in str(error):
                raise
            return [failed(request.request_id, error)]
        self.requests[request.request_id] = request
        return []

    def _compute(self) -> list[FromEngine]:
        """Run a batch; where steps overlap, it is queued before the tokens of the one before it are read."""
        answers: list[FromEngine] = []
        if self._in_flight is not None and self._in_flight.pins_pages:
            answers += self._land()
        with self.stages.time("schedule"):
            batch = self.scheduler.schedule()
        if not batch.chunks:
            stuck = self._in_flight is None and self.scheduler.has_work()
            assert not stuck, "requests wait that can never be computed"
            return [*answers, *self._land()]
        if self._in_flight is not None:
            batch = dataclasses.replace(batch, pending=self._in_flight.pending)
        try:
            with self.stages.time("forward"):
                output = self.runner.run(batch)
            sampled = [chunk for chunk in batch.chunks if chunk.completes and chunk.request.sampling is not None]
            answers += self._land()
            with self.stages.time("sample"):
                score_prompts(batch, output.prompt_logits_SV)
                if self.speculation is None:
                    self._in_flight = self._draw(batch, sampled, output)
                else:
                    if all(chunk.completes and chunk.known_count == 1 for chunk in batch.chunks):
                        self.speculation.record_step_time(batch.tokens, self.stages.last["forward"])
                    self.scheduler.advance(batch)
                    answers += verify_draft_tokens(
                        batch, output.logits_RV, self.scheduler, self.speculation, self._take
                    )
                answers += self._embeddings(batch, output)
        except (RuntimeError, ValueError, IndexError) as error:
            return [*answers, *self._land(), *self._spoil([chunk.request for chunk in batch.chunks], error)]
        if not self.overlaps:
            answers += self._land()
        self.steps += 1
        self.computed_tokens += batch.tokens
        self.batch_tokens = batch.tokens
        return answers

    def _is_here(self, request: SequenceRequest) -> bool:
        """Whether a request has neither ended nor been cancelled."""
        return self.requests.get(request.request_id) is request

    def _spoil(self, requests: list[SequenceRequest], error: Exception) -> list[FromEngine]:
        """End the requests of a step that failed, and forget what half of it may have written."""
        if "CUDA error" in str(error):  # the device's context is lost: only a new process helps
            raise error
        logger.error("a step of %d requests failed", len(requests), exc_info=error)
        answers = [self._fail(request, error) for request in requests if self._is_here(request)]
        self.scheduler.clear_cache()
        return answers

    def _draw(self, batch: Batch, sampled: list[Chunk], output: StepOutput) -> InFlightStep | None:
        """Draw a token behind every chunk that completed, without reading it.

        Args:
            batch: was computed; some of its requests may have ended since it was queued, or taken forced tokens.
            sampled: its chunks that have a row of logits.
            output: of the batch.
        """
        logits_RV, top_logit = output.logits_RV, output.top_logit
        here = [chunk for chunk in batch.chunks if self._is_here(chunk.request)]
        self.scheduler.advance(Batch(here))
        rows = [row for row, chunk in enumerate(sampled) if self._is_here(chunk.request) and chunk.completes]
        if not rows:
            return None
        if len(rows) < len(sampled):
            places = to_device(rows, logits_RV.device)
            logits_RV, top_logit = logits_RV[places], top_logit[places] if top_logit is not None else None
        requests = [sampled[row].request for row in rows]
        flight = InFlightStep(requests, draw(logits_RV, requests, top_logit))
        flight.mark_pending()
        return flight

    def _land(self) -> list[FromEngine]:
        """Read the tokens that were drawn last, and tell them to those who are still here."""
        flight, self._in_flight = self._in_flight, None
        if flight is None:
            return []
        with self.stages.time("sample"):
            try:
                found = flight.collect()
            except RuntimeError as error:
                return self._spoil(flight.requests, error)
            return [self._take(request, sampled) for request, sampled in found if self._is_here(request)]

    def _check_integrity(self) -> None:
        """A violated invariant drops the cache, never the server. Not at every pause: it looks at every page."""
        if time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + CHECK_EVERY_S
        self.scheduler.cache.prune()
        try:
            self.scheduler.check_integrity()
        except AssertionError:
            logger.exception("the cache is inconsistent, which is a fault of ours; it is emptied")
            self.integrity_faults += 1
            self.scheduler.clear_cache()

    def metrics(self) -> dict[str, float]:
        """Queue, cache and counters; see `tessera.sequence.metrics`."""
        return metrics_of(self)

    def _take(self, request: SequenceRequest, sampled: SampledToken) -> FromEngine:
        assert request.sampling is not None
        matcher = request.matcher
        if sampled.token_id is None or (matcher is not None and not matcher.accept(sampled.token_id)):
            stuck = matcher is not None and request.output_length
            return self._fail(request, InternalError(STUCK if stuck else NOT_FINITE), invalidate=True)
        first = request.output_length == 0
        if request.pin and first:
            self.scheduler.pin(request)
        request.append(sampled.token_id)
        stops = sampled.token_id in request.sampling.stop_ids or (matcher is not None and matcher.ended)
        tokens = [sampled.token_id] if stops else [sampled.token_id, *follow(request)]
        reason: Literal["stop", "length"] | None = "stop" if stops else "length" if request.is_full else None
        self.sampled_tokens += 1
        self.forced_tokens += len(tokens) - 1
        if reason is not None:
            self._end(request)
        return GeneratedTokens(
            request_id=request.request_id,
            token_ids=tokens,
            scores=[sampled.score] if sampled.score is not None else [],
            finish_reason=reason,
            cached_tokens=request.cached_tokens if first else None,
            prompt_scores=request.prompt_scores if first else [],
        )

    def _embeddings(self, batch: Batch, output: StepOutput) -> list[FromEngine]:
        answers: list[FromEngine] = []
        for request in pool(batch, output.hidden_TD):
            try:
                answers.append(embedded(request))
                self._end(request)
            except InternalError as error:
                answers.append(self._fail(request, error, invalidate=True))
        return answers

    def _end(self, request: SequenceRequest, *, invalidate: bool = False) -> None:
        self.requests.pop(request.request_id, None)
        self.scheduler.remove(request, invalidate=invalidate)

    def _fail(self, request: SequenceRequest, error: Exception, *, invalidate: bool = False) -> FromEngine:
        self._end(request, invalidate=invalidate)
        return failed(request.request_id, error)
