"""From token ids to pieces of text: `n` choices of one prompt through the engine, merged into one stream.

Knows tokens, stop strings and the engine's messages; does not know OpenAI's shapes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from tessera.engine.client import EngineClient
from tessera.errors import ContextLengthError, InvalidRequestError
from tessera.language.metrics import GenerationMetrics, GenerationTimer
from tessera.language.stops import StopFinder
from tessera.tokenizer.detokenizer import Detokenizer
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.web.tenant import tenant_var
from tessera.wire.chat import SamplingRequest
from tessera.wire.engine import Array, Generate, GeneratedTokens, Grammar, Sampling, TokenScore

Finish = Literal["stop", "length"]
_TOKEN_ID = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class GenerationLimits:
    """What the service allows, beside the engine's own limits."""

    context_length: int
    max_output_tokens: int
    max_choices: int


@dataclass(frozen=True)
class RequestTerms:
    """What a request asks of the engine beside its tokens."""

    priority: int = 0
    cache_salt: str = ""
    deadline_s: float | None = None

    @classmethod
    def of(cls, request: SamplingRequest) -> RequestTerms:
        """Those of a request."""
        return cls(request.priority, request.cache_salt or "", request.deadline_s)


@dataclass(frozen=True)
class TextDelta:
    """What one choice gained: text (maybe empty), the tokens behind it with their scores, and how it ended.

    `cached_tokens` of the prompt were not computed, and `prompt_scores` are those of its tokens behind the first, when
    they were asked for: both are said with a choice's first piece.
    """

    choice: int
    text: str
    token_ids: list[int]
    scores: list[TokenScore]
    finish_reason: Finish | None
    cached_tokens: int | None = None
    prompt_scores: list[TokenScore] = field(default_factory=list)


@dataclass(frozen=True)
class Prompt:
    """Token ids and, for a vision-language model, its processor's tensors. `text` is what the template wrote."""

    token_ids: list[int]
    media: dict[str, Array]
    text: str = ""


def sampling_of(
    request: SamplingRequest,
    tokenizer: Tokenizer,
    *,
    max_tokens: int,
    logprobs: int | None,
    grammar: Grammar | None = None,
    prompt_logprobs: int | None = None,
) -> Sampling:
    """The engine's sampling parameters for a request, `n` and stop strings aside.

    What the request leaves open is taken from the model's own `generation_config.json`, as vLLM does.

    Raises:
        InvalidRequestError: a `logit_bias` key that is no token id.
    """
    bias: dict[int, float] = {}
    for key, value in (request.logit_bias or {}).items():
        if not _TOKEN_ID.fullmatch(key):
            raise InvalidRequestError(f"`logit_bias`: {key[:32]!r} is not a token id", param="logit_bias")
        bias[int(key)] = value
    return Sampling(
        max_tokens=max_tokens,
        temperature=tokenizer.defaults.temperature if request.temperature is None else request.temperature,
        top_k=tokenizer.defaults.top_k if request.top_k is None else request.top_k,
        top_p=tokenizer.defaults.top_p if request.top_p is None else request.top_p,
        min_p=request.min_p,
        typical_p=request.typical_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=bias,
        seed=request.seed,
        stop_ids=[] if request.ignore_eos else tokenizer.stop_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
    )


def output_limit(
    asked: int | None, prompt_length: int, limits: GenerationLimits, *, param: str, prompt_param: str
) -> int:
    """How many tokens may be generated: what was asked for, or what fits.

    Raises:
        InvalidRequestError: more than the service allows.
        ContextLengthError: prompt and output do not fit the model's context.
    """
    room = limits.context_length - prompt_length
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {prompt_length} tokens; the context of {limits.context_length} leaves no room to answer",
            param=prompt_param,
        )
    if asked is None:
        return min(room, limits.max_output_tokens)
    if asked > limits.max_output_tokens:
        raise InvalidRequestError(
            f"`{param}` is {asked}; this server allows at most {limits.max_output_tokens}", param=param
        )
    if asked > room:
        raise ContextLengthError(
            f"the prompt has {prompt_length} tokens and `{param}` is {asked}; the model's context is "
            f"{limits.context_length} tokens",
            param=param,
        )
    return asked


def stops_of(request: SamplingRequest) -> list[str]:
    """The request's stop strings as a list."""
    if request.stop is None:
        return []
    return [request.stop] if isinstance(request.stop, str) else list(request.stop)


class Generator:
    """Runs prompts on an engine and turns its tokens into text.

    Args:
        engine: that has the model.
        tokenizer: the model's.
        model: its name in metrics.
        metrics: told how long everything takes.
    """

    def __init__(self, engine: EngineClient, tokenizer: Tokenizer, model: str, metrics: GenerationMetrics) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.model = model
        self.metrics = metrics

    async def run(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        choices: int,
        stops: list[str],
        shown: tuple[str, ...] = (),
        terms: RequestTerms | None = None,
    ) -> AsyncGenerator[TextDelta]:
        """Pieces of all choices as they come. Closing the iterator cancels what still runs.

        With a seed, choice i uses seed + i, so that choices differ and each can be had again. `shown`: control tokens
        that are part of the text.
        """
        terms = terms or RequestTerms()
        if choices == 1:
            async with contextlib.aclosing(self._choice(0, prompt, sampling, stops, shown, terms)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        merged: asyncio.Queue[TextDelta | BaseException | None] = asyncio.Queue()
        base = sampling.seed if sampling.seed is not None else random.getrandbits(48)

        async def feed(choice: int) -> None:
            own = msgspec.structs.replace(sampling, seed=base + choice)
            try:
                async with contextlib.aclosing(self._choice(choice, prompt, own, stops, shown, terms)) as pieces:
                    async for piece in pieces:
                        merged.put_nowait(piece)
                merged.put_nowait(None)
            except Exception as error:  # noqa: BLE001 - raised again by the consumer
                merged.put_nowait(error)

        feeders = [asyncio.create_task(feed(choice)) for choice in range(choices)]
        try:
            running = choices
            while running:
                item = await merged.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield item
        finally:
            for feeder in feeders:
                feeder.cancel()
            await asyncio.gather(*feeders, return_exceptions=True)

    async def _choice(
        self,
        choice: int,
        prompt: Prompt,
        sampling: Sampling,
        stops: list[str],
        shown_tokens: tuple[str, ...],
        terms: RequestTerms,
    ) -> AsyncGenerator[TextDelta]:
        message = Generate(
            request_id=uuid.uuid4().hex,
            token_ids=prompt.token_ids,
            sampling=sampling,
            media=prompt.media,
            priority=terms.priority,
            tenant=tenant_var.get(),
            cache_salt=terms.cache_salt,
            deadline_s=terms.deadline_s,
        )
        detokenizer = Detokenizer(self.tokenizer, prompt.token_ids, shown_tokens)
        finder = StopFinder(stops)
        async with contextlib.aclosing(self.engine.request(message)) as answers:
            with GenerationTimer(self.metrics, self.model, len(prompt.token_ids)) as watch:
                async for answer in answers:
                    assert isinstance(answer, GeneratedTokens)
                    watch.took(len(answer.token_ids))
                    ended = answer.finish_reason
                    # The token that ends an answer is no part of it.
                    shown = answer.token_ids[:-1] if ended == "stop" else answer.token_ids
                    text = "".join(finder.push(detokenizer.push(token)) for token in shown if not finder.found)
                    if finder.found:
                        ended = "stop"
                    elif ended is not None:
                        text += finder.push(detokenizer.flush())
                        ended = "stop" if finder.found else ended
                        text += finder.flush()
                    watch.reason = ended
                    yield TextDelta(
                        choice,
                        text,
                        list(shown),
                        answer.scores[: len(shown)],
                        ended,
                        answer.cached_tokens,
                        answer.prompt_scores,
                    )
                    if ended is not None:
                        return
