"""Completions: continue text or token ids, one prompt or a batch of them, streamed or whole."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncGenerator
from functools import partial

from msgspec import UNSET, UnsetType

from tessera.errors import InvalidRequestError
from tessera.language.chat import check_choices, prompt_logprobs
from tessera.language.generation import (
    Finish,
    GenerationLimits,
    Generator,
    Prompt,
    RequestTerms,
    TextDelta,
    output_limit,
    sampling_of,
    stops_of,
)
from tessera.language.stream_extras import StreamExtras
from tessera.language.structured import grammar_of
from tessera.language.together import MAX_CONCURRENT, run_bounded
from tessera.language.usage import TokenCount, usage
from tessera.tokenizer.detokenizer import Detokenizer
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.web.sse import event
from tessera.wire.chat import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest, PromptLogprobs, Usage
from tessera.wire.engine import Sampling, TokenScore

MAX_PROMPTS = 256
"""Most prompts or inputs of one request."""


async def token_lists(
    value: str | list[str | int | list[int]], tokenizer: Tokenizer, limits: GenerationLimits, *, param: str
) -> list[list[int]]:
    """Convert a request's inputs to lists of token ids.

    Args:
        value: a text, a list of texts, a list of ids, or a list of lists of ids.
        tokenizer: of the model.
        limits: of the service.
        param: name of the field in errors.

    Raises:
        InvalidRequestError: the list is empty or mixed, or has more than `MAX_PROMPTS` inputs.
        ContextLengthError: a text is far too long for the model.
    """
    if isinstance(value, str):
        value = [value]
    kinds = {type(item) for item in value}
    if len(kinds) != 1:
        raise InvalidRequestError(
            f"`{param}` must be a string, or a list of only strings, only token ids, or only lists of token ids",
            param=param,
        )
    if kinds == {int}:
        return [[item for item in value if isinstance(item, int)]]
    if len(value) > MAX_PROMPTS:
        raise InvalidRequestError(f"`{param}` has {len(value)} inputs; at most {MAX_PROMPTS} are allowed", param=param)
    if kinds == {str}:
        texts = [item for item in value if isinstance(item, str)]
        return await tokenizer.encode_within(texts, limits.context_length, add_special_tokens=True, param=param)
    return [item for item in value if isinstance(item, list)]


class Completions:
    """Answers completion requests for one model.

    Args:
        model: its id in answers.
        generator: runs prompts.
        limits: of the service.
    """

    def __init__(self, model: str, generator: Generator, limits: GenerationLimits) -> None:
        self.model = model
        self.generator = generator
        self.limits = limits

    async def answer(self, request: CompletionRequest) -> Completion:
        """Answer a request as a whole: `n` choices for each prompt, in the order of the prompts."""
        prompts = await self._prompts(request)
        calls = [partial(self._collect, request, prompt, sampling) for prompt, sampling in prompts]
        results = await run_bounded(calls, at_once=max(1, MAX_CONCURRENT // request.n))
        choices = []
        spent = [TokenCount(prompt) for prompt, _ in prompts]
        for row, pieces_by_choice in enumerate(results):
            for choice, pieces in enumerate(pieces_by_choice):
                prompt = prompts[row][0]
                choices.append(self._choice(request, row * request.n + choice, pieces, prompt))
                for piece in pieces:
                    spent[row].take(piece)
        return self._completion(choices, usage(spent))

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[bytes]:
        """Answer a request as server-sent events; the caller appends `[DONE]`."""
        prompts = await self._prompts(request)
        if len(prompts) > 1:
            raise InvalidRequestError("a streamed completion takes one `prompt`", param="prompt")
        prompt, sampling = prompts[0]
        extras = StreamExtras(request.stream_options, spent := TokenCount(prompt))
        identity, created = f"cmpl-{uuid.uuid4().hex}", int(time.time())

        def chunk(choices: list[CompletionChoice]) -> bytes:
            made = Completion(
                id=identity,
                created=created,
                model=self.model,
                choices=choices,
                usage=extras.usage(last=not choices),
                obfuscation=extras.padding("".join(choice.text for choice in choices)) if choices else UNSET,
            )
            return event(made)

        offsets = [0] * request.n
        begun: set[int] = set()
        async with contextlib.aclosing(self._run(request, prompt, sampling)) as pieces:
            async for piece in pieces:
                spent.take(piece)
                echoed = request.echo and piece.choice not in begun
                begun.add(piece.choice)
                # A token whose text is held back still has a score to send.
                if piece.text or piece.scores or echoed or piece.finish_reason is not None:
                    next_choice = self._choice(
                        request, piece.choice, [piece], prompt if echoed else None, offsets[piece.choice]
                    )
                    offsets[piece.choice] += len(next_choice.text)
                    yield chunk([next_choice])
        if extras.counted_at_the_end:
            yield chunk([])

    async def _prompts(self, request: CompletionRequest) -> list[tuple[Prompt, Sampling]]:
        check_choices(request, self.limits)
        if request.logprobs is True:
            raise InvalidRequestError(
                "`logprobs` is a number here: how many likeliest tokens to report beside each token", param="logprobs"
            )
        tokenizer = self.generator.tokenizer
        grammar = grammar_of(request)
        prompts = []
        for ids in await token_lists(request.prompt, tokenizer, self.limits, param="prompt"):
            limit = output_limit(request.max_tokens, len(ids), self.limits, param="max_tokens", prompt_param="prompt")
            sampling = sampling_of(
                request,
                tokenizer,
                max_tokens=limit,
                logprobs=request.scores,
                grammar=grammar,
                prompt_logprobs=_prompt_logprobs(request),
            )
            prompts.append((Prompt(ids, {}), sampling))
        return prompts

    async def _collect(self, request: CompletionRequest, prompt: Prompt, sampling: Sampling) -> list[list[TextDelta]]:
        deltas: list[list[TextDelta]] = [[] for _ in range(request.n)]
        async with contextlib.aclosing(self._run(request, prompt, sampling)) as pieces:
            async for piece in pieces:
                deltas[piece.choice].append(piece)
        return deltas

    def _run(self, request: CompletionRequest, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[TextDelta]:
        return self.generator.run(
            prompt, sampling, choices=request.n, stops=stops_of(request), terms=RequestTerms.of(request)
        )

    def _choice(
        self, request: CompletionRequest, index: int, pieces: list[TextDelta], prompt: Prompt | None, offset: int = 0
    ) -> CompletionChoice:
        """A whole choice, or its next deltas. `prompt` is given when they begin the choice."""
        finish: Finish | None = pieces[-1].finish_reason
        tokenizer = self.generator.tokenizer
        echo = tokenizer.decode(prompt.token_ids) if request.echo and prompt is not None else ""
        scores = pieces[0].prompt_scores
        logprobs = None
        if request.scores is not None:
            logprobs = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
            if echo and prompt is not None:
                self._score_prompt(logprobs, prompt, scores)
            self._score(logprobs, pieces, offset + len(echo))
        shown: PromptLogprobs | UnsetType = UNSET
        if request.prompt_logprobs is not None and prompt is not None:
            shown = prompt_logprobs(prompt, scores, tokenizer)
        text = echo + "".join(piece.text for piece in pieces)
        return CompletionChoice(index=index, text=text, logprobs=logprobs, finish_reason=finish, prompt_logprobs=shown)

    def _score_prompt(self, logprobs: CompletionLogprobs, prompt: Prompt, scores: list[TokenScore]) -> None:
        detokenizer, offset = Detokenizer(self.generator.tokenizer, []), 0
        for token, score in zip(prompt.token_ids, [None, *scores], strict=True):
            self._add(logprobs, token, score, offset)
            offset += len(detokenizer.push(token))

    def _score(self, logprobs: CompletionLogprobs, pieces: list[TextDelta], offset: int) -> None:
        for piece in pieces:
            for token, score in zip(piece.token_ids, piece.scores, strict=False):
                self._add(logprobs, token, score, offset)
            offset += len(piece.text)

    def _add(self, logprobs: CompletionLogprobs, token: int, score: TokenScore | None, offset: int) -> None:
        tokenizer = self.generator.tokenizer
        logprobs.tokens.append(tokenizer.token_text(token))
        logprobs.token_logprobs.append(None if score is None else score.logprob)
        assert logprobs.top_logprobs is not None
        top = None if score is None else {tokenizer.token_text(other): value for other, value in score.top}
        logprobs.top_logprobs.append(top)
        logprobs.text_offset.append(offset)

    def _completion(self, choices: list[CompletionChoice], used: Usage) -> Completion:
        return Completion(
            id=f"cmpl-{uuid.uuid4().hex}", created=int(time.time()), model=self.model, choices=choices, usage=used
        )


def _prompt_logprobs(request: CompletionRequest) -> int | None:
    """How many likeliest tokens to report for each token of the prompt; None for no scores of the prompt.

    A request asks for them by `prompt_logprobs`, or as OpenAI does by `echo` with `logprobs`.
    """
    counts = [request.prompt_logprobs, request.scores if request.echo else None]
    given = [count for count in counts if count is not None]
    return max(given) if given else None
