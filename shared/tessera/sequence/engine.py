"""The sequence engine: schedule → run → sample → answer, for text and vision-language models.

Connects the scheduler (policy) to the runner (tensors) and the sampler; `tessera.engine.process` has the loop around
`step`. Knows nothing about sockets, models or the order of requests.
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
from tessera.sequence.dead_ends import no_token_error
from tessera.sequence.embeddings import add_hidden_states, finish_embedding
from tessera.sequence.grammar.queue import GrammarQueue
from tessera.sequence.intake import check_tokens, media_cache_ids, to_request
from tessera.sequence.metrics import EngineCounters, metrics_of
from tessera.sequence.overlap import InFlightStep
from tessera.sequence.request import RequestState, SequenceRequest
from tessera.sequence.runner.protocol import BatchRunner
from tessera.sequence.sampling.forced_tokens import append_forced, update_forced
from tessera.sequence.sampling.prompt_logprobs import score_prompts
from tessera.sequence.sampling.sampler import SampledToken, start_sampling
from tessera.sequence.scheduler import Scheduler
from tessera.sequence.speculation.ngram_drafter import NGramDrafter
from tessera.sequence.speculation.policy import Drafter, Speculation
from tessera.sequence.speculation.verification import verify_draft_tokens
from tessera.settings.sequence import SequenceEngineSettings
from tessera.wire.engine import Array, Embed, FromEngine, Generate, GeneratedTokens, Ready, ToEngine

logger = logging.getLogger(__name__)

CHECK_EVERY_S = 5.0
"""Least seconds between two integrity checks of an idle engine: a check looks at every page."""
LATE = "the request's deadline is over"
GRAMMAR_WAIT_S = 0.005
"""Seconds that a step with nothing else to do waits for a grammar; new messages wait as long."""


class SequenceEngine:
    """Continuous batching of sequence requests over one model.

    Args:
        runner: Runs the model.
        settings: Budgets, prefix cache, speculation and overlap.
        ready: What was loaded, for the service.
        grammars: Compiles grammars; None refuses requests that have one.
        drafter: Draft model; the setting `speculation` = "ngram" needs none.
    """

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
        rows, most = settings.max_batch_tokens, settings.speculation_tokens
        self.speculation = Speculation(drafter, max_draft_tokens=most, max_rows=rows) if drafter is not None else None
        self.scheduler = Scheduler(
            cache,
            max_batch_tokens=settings.max_batch_tokens,
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            context_length=runner.context_length,
            speculation=self.speculation,
        )
        self.intake = self.scheduler.intake
        """All requests that wait, for their grammar, their images or to be admitted."""
        self.requests: dict[str, SequenceRequest] = {}
        """Requests that wait to be admitted or run, by id."""
        self.steps = self.batch_tokens = self.integrity_faults = 0
        self.computed_tokens = self.sampled_tokens = self.forced_tokens = 0
        self.stages = StageTimer("schedule", "encode", "forward", "sample")
        self.overlaps = settings.overlap == "on" or (settings.overlap == "auto" and runner.asynchronous)
        if self.overlaps and self.speculation is not None:
            logger.info("steps do not overlap: draft tokens continue tokens that are known")
            self.overlaps = False
        self._in_flight: InFlightStep | None = None
        self._check_at = 0.0

    def ready(self) -> Ready:
        """Return what was loaded, with the context length that this engine holds: perhaps less than the model's."""
        context = self.scheduler.context_length
        cards = [msgspec.structs.replace(card, context_length=context) for card in self._ready.cards]
        return msgspec.structs.replace(self._ready, cards=cards)

    def submit(self, message: ToEngine) -> None:
        """Queue a `Generate` or `Embed`."""
        if not isinstance(message, Generate | Embed):
            raise InvalidRequestError(f"this engine does not serve {type(message).__name__}")
        check_tokens(message, self.runner.vocabulary)
        request = to_request(message, isolated=self._isolated)
        sampling = request.sampling
        media = message.media if isinstance(message, Generate) else {}
        if media and self.runner.encoder is None:
            raise InvalidRequestError("images are not supported with this model", param="messages")
        if sampling is None or sampling.grammar is None:
            self._queue(request, media)
            return
        if self.grammars is None:
            raise InvalidRequestError("this engine has no grammars", param=sampling.grammar.param)
        self.scheduler.check(request, RequestState.AWAITING_GRAMMAR)
        self.grammars.start(request.request_id, sampling.grammar, request.tenant)
        self.intake.hold(request, RequestState.AWAITING_GRAMMAR, media)

    def _queue(self, request: SequenceRequest, media: dict[str, Array]) -> None:
        """Let a request wait for the encoder, or to be admitted if it has no images. Raises as `Scheduler.check`."""
        if media:
            self.scheduler.check(request, RequestState.AWAITING_ENCODER)
            self.intake.hold(request, RequestState.AWAITING_ENCODER, media)
            return
        self.scheduler.submit(request)
        self.requests[request.request_id] = request

    def cancel(self, request_id: str) -> None:
        """Forget a request and free its pages."""
        if self.intake.cancel(request_id) is RequestState.AWAITING_GRAMMAR and self.grammars is not None:
            self.grammars.cancel(request_id)
        request = self.requests.pop(request_id, None)
        if request is not None:
            self.scheduler.remove(request)

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.scheduler.running or self._in_flight or len(self.intake))

    def step(self) -> Iterable[FromEngine]:
        """Encode one request's images, compute one batch, and return what came of it."""
        answers = [*self._fail_expired(), *self._queue_compiled(), *self._encode_next(), *self._compute()]
        if self._in_flight is None and not self.scheduler.has_work():
            self._check_integrity()
        return answers

    def _fail_expired(self) -> list[FromEngine]:
        """End the requests whose deadline is over, whether they wait to be admitted or run."""
        return [self._fail(request, DeadlineError(LATE)) for request in self.scheduler.expired(time.monotonic())]

    def _queue_compiled(self) -> list[FromEngine]:
        """Queue the requests whose grammar is compiled."""
        if self.grammars is None or not self.intake.count(RequestState.AWAITING_GRAMMAR):
            return []
        answers: list[FromEngine] = []
        idle = not self.intake.count(RequestState.AWAITING_ENCODER) and not self.scheduler.has_work()
        for request_id, result in self.grammars.take_ready(wait_s=GRAMMAR_WAIT_S if idle else 0.0):
            request, media = self.intake.take(RequestState.AWAITING_GRAMMAR, request_id)
            try:
                if isinstance(result, Exception):
                    raise result
                request.matcher = result
                update_forced(request)
                self._queue(request, media)
            except Exception as error:  # noqa: BLE001 - it is this request's answer
                answers.append(failed(request_id, error))
        return answers

    def _encode_next(self) -> list[FromEngine]:
        """Encode the images of one request and queue it: one in a step, so that running requests go on."""
        if not self.intake.count(RequestState.AWAITING_ENCODER):
            return []
        request, media = self.intake.take_first(RequestState.AWAITING_ENCODER)
        assert self.runner.encoder is not None
        try:
            with self.stages.time("encode"):
                request.media = self.runner.encoder.encode(request.token_ids, media)
            request.identify_media(media_cache_ids(media, list(request.media.positions)))
            self._queue(request, {})
        except Exception as error:
            if "CUDA error" in str(error):
                raise
            return [failed(request.request_id, error)]
        return []

    def _compute(self) -> list[FromEngine]:
        """Run a batch. If steps overlap, it is queued before the tokens of the previous step are read."""
        answers: list[FromEngine] = []
        if self._in_flight is not None and self._in_flight.pins_pages:
            answers += self._collect()
        with self.stages.time("schedule"):
            batch = self.scheduler.schedule()
        if not batch.chunks:
            stuck = self._in_flight is None and self.scheduler.has_work()
            assert not stuck, "requests wait that can never be computed"
            return [*answers, *self._collect()]
        if self._in_flight is not None:
            batch = dataclasses.replace(batch, pending=self._in_flight.pending)
        try:
            with self.stages.time("forward"):
                output = self.runner.run(batch)
            sampled = [chunk for chunk in batch.chunks if chunk.completes and chunk.request.sampling is not None]
            answers += self._collect()
            with self.stages.time("sample"):
                score_prompts(batch, output.prompt_logits_SV)
                if self.speculation is None:
                    self._in_flight = self._start_sampling(batch, sampled, output)
                else:
                    if all(chunk.completes and chunk.known_count == 1 for chunk in batch.chunks):
                        self.speculation.record_step_time(batch.tokens, self.stages.last["forward"])
                    self.scheduler.advance(batch)
                    answers += verify_draft_tokens(batch, output, self.scheduler, self.speculation, self._append)
                answers += self._finish_embeddings(batch, output)
        except (RuntimeError, ValueError, IndexError) as error:
            return [*answers, *self._collect(), *self._fail_step([chunk.request for chunk in batch.chunks], error)]
        if not self.overlaps:
            answers += self._collect()
        self.steps += 1
        self.computed_tokens += batch.tokens
        self.batch_tokens = batch.tokens
        return answers

    def _is_active(self, request: SequenceRequest) -> bool:
        """Whether a request has neither ended nor been cancelled."""
        return self.requests.get(request.request_id) is request

    def _fail_step(self, requests: list[SequenceRequest], error: Exception) -> list[FromEngine]:
        """End the requests of a failed step, and clear the cache, which may hold half of what the step wrote."""
        if "CUDA error" in str(error):  # the device's context is lost: only a new process helps
            raise error
        logger.error("a step of %d requests failed", len(requests), exc_info=error)
        answers = [self._fail(request, error) for request in requests if self._is_active(request)]
        self.scheduler.clear_cache()
        return answers

    def _start_sampling(self, batch: Batch, sampled: list[Chunk], output: StepOutput) -> InFlightStep | None:
        """Sample a token behind every chunk that completes, without waiting for it.

        Args:
            batch: Some of its requests may have ended since it was queued; others may have got forced tokens, so that
                their chunks no longer complete.
            sampled: Its chunks that have a row of logits.
            output: What it computed.
        """
        logits_RV, top_logit = output.logits_RV, output.top_logit
        self.scheduler.advance(Batch([chunk for chunk in batch.chunks if self._is_active(chunk.request)]))
        rows = [row for row, chunk in enumerate(sampled) if self._is_active(chunk.request) and chunk.completes]
        if not rows:
            return None
        if len(rows) < len(sampled):
            rows_R = to_device(rows, logits_RV.device)
            logits_RV, top_logit = logits_RV[rows_R], top_logit[rows_R] if top_logit is not None else None
        requests = [sampled[row].request for row in rows]
        step = InFlightStep(requests, start_sampling(logits_RV, requests, top_logit))
        step.mark_pending()
        return step

    def _collect(self) -> list[FromEngine]:
        """Read the tokens in flight, and answer the requests that are still active."""
        step, self._in_flight = self._in_flight, None
        if step is None:
            return []
        with self.stages.time("sample"):
            try:
                tokens = step.collect()
            except RuntimeError as error:
                return self._fail_step(step.requests, error)
            return [self._append(request, token) for request, token in tokens if self._is_active(request)]

    def _check_integrity(self) -> None:
        """Check the cache, at most every `CHECK_EVERY_S`. A violated invariant empties the cache, never the server."""
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
        """Return the values of `tessera.sequence.metrics`."""
        counters = EngineCounters(
            steps=self.steps,
            graph_steps=self.runner.graph_steps,
            batch_tokens=self.batch_tokens,
            computed_tokens=self.computed_tokens,
            sampled_tokens=self.sampled_tokens,
            forced_tokens=self.forced_tokens,
            grammars_compiled=self.grammars.compiled if self.grammars is not None else 0,
            integrity_faults=self.integrity_faults,
        )
        return metrics_of(self.scheduler, counters, self.stages)

    def _append(self, request: SequenceRequest, sampled: SampledToken) -> FromEngine:
        """Give a request its sampled token and those that its grammar forces behind it, and return the answer."""
        assert request.sampling is not None
        matcher = request.matcher
        if sampled.token_id is None or (matcher is not None and not matcher.accept(sampled.token_id)):
            error = no_token_error(request, sampled)
            return self._fail(request, error, invalidate=not sampled.is_finite)
        first = request.output_length == 0
        if request.pin and first:
            self.scheduler.pin(request)
        request.append(sampled.token_id)
        stops = sampled.token_id in request.sampling.stop_ids or (matcher is not None and matcher.ended)
        tokens = [sampled.token_id] if stops else [sampled.token_id, *append_forced(request)]
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

    def _finish_embeddings(self, batch: Batch, output: StepOutput) -> list[FromEngine]:
        answers: list[FromEngine] = []
        for request in add_hidden_states(batch, output.hidden_TD):
            try:
                answers.append(finish_embedding(request))
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
