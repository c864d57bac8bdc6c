"""Generates text: `n` choices of one prompt through the engine, merged into one stream of text deltas.

Knows tokens, stop strings and the engine's messages. Does not know OpenAI's shapes.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import msgspec

from tessera.engine.client import EngineClient
from tessera.errors import ContextLengthError, InvalidRequestError
from tessera.language.metrics import GenerationMetrics, GenerationTimer
from tessera.language.stops import StopFinder, TextTerms
from tessera.language.together import merged
from tessera.tokenizer.detokenizer import Detokenizer
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.web.tenant import tenant_var
from tessera.wire.chat import SamplingRequest
from tessera.wire.engine import Array, Generate, GeneratedTokens, Sampling, TokenScore

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class GenerationLimits:
    """What the service allows, beside the engine's own limits.

    Attributes:
        context_length: most tokens of a prompt and its answer together.
        max_output_tokens: most tokens of an answer.
        max_choices: most choices of a request.
        clamps: whether a request that asks for more tokens than there can be gets as many as can be, or is refused.
    """

    context_length: int
    max_output_tokens: int
    max_choices: int
    clamps: bool = True


@dataclass(frozen=True)
class RequestTerms:
    """How a request is scheduled.

    Attributes:
        priority: higher values wait longer.
        cache_salt: only requests with equal salts share cached prefixes.
        deadline_s: seconds after which the request is ended; None for no deadline.
    """

    priority: int = 0
    cache_salt: str = ""
    deadline_s: float | None = None

    @classmethod
    def of(cls, request: SamplingRequest) -> RequestTerms:
        """The terms that a request asks for."""
        return cls(request.priority, request.cache_salt or "", request.deadline_s)


@dataclass(frozen=True)
class TextDelta:
    """What one choice gained.

    Attributes:
        choice: index of the choice.
        text: new text, which may be empty while a character or a possible stop string is incomplete.
        token_ids: new tokens, without the one that ends an answer.
        scores: log-probabilities of these tokens; empty when none were requested.
        finish_reason: why the choice ended; None while it goes on.
        cached_tokens: tokens of the prompt that were not computed. Set in a choice's first delta, else None.
        prompt_scores: log-probabilities of the prompt's tokens behind the first, if they were requested. Set in a
            choice's first delta, else empty.
        stop_reason: the stop string, or the token of the request's own, that ended the choice; None if something else
            ended it, or while it goes on.
        generated_ids: new tokens, with the one that ends an answer.
    """

    choice: int
    text: str
    token_ids: list[int]
    scores: list[TokenScore]
    finish_reason: Finish | None
    cached_tokens: int | None = None
    prompt_scores: list[TokenScore] = field(default_factory=list)
    stop_reason: str | int | None = None
    generated_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Prompt:
    """A prompt as the engine takes it.

    Attributes:
        token_ids: its tokens.
        media: tensors of a vision-language model's processor, by name; empty without images.
        text: what the template wrote; empty for a prompt that no template wrote.
    """

    token_ids: list[int]
    media: dict[str, Array]
    text: str = ""


def output_limit(
    requested: int | None, prompt_length: int, limits: GenerationLimits, *, param: str, prompt_param: str
) -> int:
    """Most tokens to generate: as many as the request asks for and fit, as far as the service allows.

    Args:
        requested: the request's own limit; None when it has none.
        prompt_length: tokens of the prompt.
        limits: of the service.
        param: name of the limit's field in errors.
        prompt_param: name of the prompt's field in errors.

    Raises:
        InvalidRequestError: the request asks for more than a service allows that does not clamp.
        ContextLengthError: the prompt fills the model's context; or prompt and answer do not fit into it, and the
            service does not clamp.
    """
    room = limits.context_length - prompt_length
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {prompt_length} tokens; the context of {limits.context_length} leaves no room to answer",
            param=prompt_param,
        )
    most = min(room, limits.max_output_tokens)
    if requested is None or limits.clamps:
        return most if requested is None else min(requested, most)
    if requested > limits.max_output_tokens:
        raise InvalidRequestError(
            f"`{param}` is {requested}; this server allows at most {limits.max_output_tokens}", param=param
        )
    if requested > room:
        raise ContextLengthError(
            f"the prompt has {prompt_length} tokens and `{param}` is {requested}; the model's context is "
            f"{limits.context_length} tokens",
            param=param,
        )
    return requested


class Generator:
    """Runs prompts on an engine and converts its tokens to text.

    Args:
        engine: has the model.
        tokenizer: of the model.
        model: its name in metrics.
        metrics: records how long each sequence takes.
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
        text: TextTerms,
        shown: tuple[str, ...] = (),
        terms: RequestTerms | None = None,
    ) -> AsyncGenerator[TextDelta]:
        """Generate all choices and yield their deltas as they come. Closing the iterator cancels what still runs.

        Args:
            prompt: of all choices.
            sampling: of all choices. With a seed, choice i uses seed + i, so that choices differ and can be repeated.
            choices: number of choices.
            text: what ends the text, and what of it is shown.
            shown: control tokens that are part of the text.
            terms: how the choices are scheduled.
        """
        terms = terms or RequestTerms()
        if choices == 1:
            async with contextlib.aclosing(self._choice(0, prompt, sampling, text, shown, terms)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        base = sampling.seed if sampling.seed is not None else random.getrandbits(48)
        own = [msgspec.structs.replace(sampling, seed=base + choice) for choice in range(choices)]
        runs = [partial(self._choice, choice, prompt, own[choice], text, shown, terms) for choice in range(choices)]
        async with contextlib.aclosing(merged(runs, at_once=choices)) as pieces_of_all:
            async for _, piece in pieces_of_all:
                yield piece

    async def _choice(
        self,
        choice: int,
        prompt: Prompt,
        sampling: Sampling,
        shows: TextTerms,
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
        detokenizer = Detokenizer(self.tokenizer, prompt.token_ids, shown_tokens, shows_control=shows.control)
        finder = StopFinder(shows.stops, included=shows.includes_stop)
        count = 0
        async with contextlib.aclosing(self.engine.request(message)) as answers:
            with GenerationTimer(self.metrics, self.model, len(prompt.token_ids)) as timer:
                async for answer in answers:
                    assert isinstance(answer, GeneratedTokens)
                    timer.record(len(answer.token_ids))
                    ended = answer.finish_reason
                    # The token that ends an answer is not part of its text.
                    shown = answer.token_ids[:-1] if ended == "stop" else answer.token_ids
                    text = ""
                    for token in shown:
                        count += 1
                        if not finder.found:
                            text += finder.push(detokenizer.push(token), may_end=count > shows.least)
                    reason: str | int | None = None
                    if finder.found:
                        ended = "stop"
                    elif ended is not None:
                        if ended == "stop":
                            last = answer.token_ids[-1]
                            reason = last if last in shows.stop_ids else None
                            text += finder.push(detokenizer.push(last), may_end=False) if shows.includes_stop else ""
                        text += finder.push(detokenizer.flush(), may_end=count > shows.least)
                        ended = "stop" if finder.found else ended
                        text += finder.flush()
                    timer.reason = ended
                    yield TextDelta(
                        choice,
                        text,
                        list(shown),
                        answer.scores[: len(shown)],
                        ended,
                        answer.cached_tokens,
                        answer.prompt_scores,
                        finder.matched or reason,
                        answer.token_ids,
                    )
                    if ended is not None:
                        return
