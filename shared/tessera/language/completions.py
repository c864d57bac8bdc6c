"""Completions: continue text or token ids, one prompt or a batch of them, streamed or whole."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial

from msgspec import UNSET, UnsetType

from tessera.errors import InvalidRequestError
from tessera.language.chat import check_choices
from tessera.language.generation import (
    GenerationLimits,
    Generator,
    Prompt,
    RequestTerms,
    TextDelta,
    output_limit,
)
from tessera.language.prompts.fill_in import fill_in_format
from tessera.language.sampling_parameters import sampling_of, truncated
from tessera.language.scores import TokenNames, completion_logprobs, prompt_logprobs
from tessera.language.stops import TextTerms
from tessera.language.stream_extras import StreamExtras
from tessera.language.structured import grammar_of
from tessera.language.together import MAX_CONCURRENT, merged, run_bounded
from tessera.language.usage import TokenCount, usage
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.web.sse import event
from tessera.wire.chat import Completion, CompletionChoice, CompletionRequest
from tessera.wire.engine import Sampling
from tessera.wire.vllm.logprobs import PromptLogprobs

MAX_PROMPTS = 256
"""Most prompts or inputs of one request."""


async def token_lists(
    value: str | list[str | int | list[int]],
    tokenizer: Tokenizer,
    limits: GenerationLimits,
    *,
    param: str,
    add_special_tokens: bool = True,
) -> list[list[int]]:
    """Convert a request's inputs to lists of token ids.

    Args:
        value: a text, a list of texts, a list of ids, or a list of lists of ids.
        tokenizer: of the model.
        limits: of the service.
        param: name of the field in errors.
        add_special_tokens: whether texts get the tokenizer's special tokens.

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
        return await tokenizer.encode_within(
            texts, limits.context_length, add_special_tokens=add_special_tokens, param=param
        )
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
        results = await run_bounded(calls, at_once=_at_once(request))
        choices = []
        spent = [TokenCount(prompt) for prompt, _ in prompts]
        for row, pieces_by_choice in enumerate(results):
            for choice, pieces in enumerate(pieces_by_choice):
                prompt = prompts[row][0]
                choices.append(self._choice(request, row * request.n + choice, pieces, prompt))
                for piece in pieces:
                    spent[row].take(piece)
        return Completion(
            id=self._identity(request),
            created=int(time.time()),
            model=self.model,
            choices=choices,
            usage=usage(spent),
        )

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[bytes]:
        """Answer a request as server-sent events; the caller appends `[DONE]`."""
        prompts = await self._prompts(request)
        spent = [TokenCount(prompt) for prompt, _ in prompts]
        extras = StreamExtras(request.stream_options, *spent)
        identity, created = self._identity(request), int(time.time())

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

        offsets = [0] * request.n * len(prompts)
        begun: set[int] = set()
        runs = [partial(self._run, request, prompt, sampling) for prompt, sampling in prompts]
        async with contextlib.aclosing(merged(runs, at_once=_at_once(request))) as pieces:
            async for row, piece in pieces:
                spent[row].take(piece)
                index = row * request.n + piece.choice
                first = index not in begun
                begun.add(index)
                # A token whose text is held back still has a score, or an id, to send.
                held = piece.scores or (request.return_token_ids and piece.generated_ids)
                if piece.text or held or (first and request.echo) or piece.finish_reason is not None:
                    prompt = prompts[row][0] if first else None
                    next_choice = self._choice(request, index, [piece], prompt, offsets[index])
                    offsets[index] += len(next_choice.text)
                    yield chunk([next_choice])
        if extras.counted_at_the_end:
            yield chunk([])

    async def _prompts(self, request: CompletionRequest) -> list[tuple[Prompt, Sampling]]:
        check_choices(request, self.limits)
        if request.max_tokens == 0 and not request.echo:
            raise InvalidRequestError("`max_tokens` is 0, which is only of use with `echo`", param="max_tokens")
        tokenizer = self.generator.tokenizer
        grammar = grammar_of(request)
        prompts = []
        lists, ends = await self._token_lists(request)
        for ids in lists:
            # The prompt's scores come with the first token, also where the answer has none.
            limit = output_limit(
                request.max_tokens or 1, len(ids), self.limits, param="max_tokens", prompt_param="prompt"
            )
            sampling = sampling_of(
                request,
                tokenizer,
                max_tokens=limit,
                requested=request.max_tokens or 1,
                logprobs=request.scores,
                grammar=grammar,
                prompt_logprobs=_prompt_logprobs(request),
                ends=ends,
            )
            prompts.append((Prompt(ids, {}), sampling))
        return prompts

    async def _token_lists(self, request: CompletionRequest) -> tuple[list[list[int]], list[int]]:
        """The prompts of a request, and further tokens that end their answers."""
        tokenizer, limits = self.generator.tokenizer, self.limits
        suffix = request.suffix or ""
        lists = await token_lists(
            request.prompt,
            tokenizer,
            limits,
            param="prompt",
            add_special_tokens=request.add_special_tokens and not suffix,
        )
        if not suffix:
            return [truncated(ids, request, limits, requested=request.max_tokens) for ids in lists], []
        if request.echo:
            raise InvalidRequestError("`echo` shows a prompt, which `suffix` splits: leave one out", param="echo")
        form = fill_in_format(tokenizer, self.model)
        behind = await tokenizer.encode_pieces([(suffix, True)], limits.context_length, param="suffix")
        room = request.max_tokens + len(form.prompt([], behind))
        before = [truncated(ids, request, limits, requested=room) for ids in lists]
        return [form.prompt(ids, behind) for ids in before], form.ends

    async def _collect(self, request: CompletionRequest, prompt: Prompt, sampling: Sampling) -> list[list[TextDelta]]:
        deltas: list[list[TextDelta]] = [[] for _ in range(request.n)]
        async with contextlib.aclosing(self._run(request, prompt, sampling)) as pieces:
            async for piece in pieces:
                deltas[piece.choice].append(piece)
        return deltas

    async def _run(self, request: CompletionRequest, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[TextDelta]:
        pieces = self.generator.run(
            prompt, sampling, choices=request.n, text=TextTerms.of(request), terms=RequestTerms.of(request)
        )
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                yield piece if request.max_tokens else without_answer(piece)

    def _choice(
        self, request: CompletionRequest, index: int, pieces: list[TextDelta], prompt: Prompt | None, offset: int = 0
    ) -> CompletionChoice:
        """A whole choice, or its next deltas. `prompt` is given when they begin the choice."""
        names = TokenNames(self.generator.tokenizer, by_id=bool(request.return_tokens_as_token_ids))
        echoed = prompt if request.echo else None
        echo = names.tokenizer.decode(echoed.token_ids) if echoed is not None else ""
        stopped = pieces[-1].stop_reason
        ids = [token for piece in pieces for token in piece.generated_ids]
        shown: PromptLogprobs | UnsetType = UNSET
        if request.prompt_logprobs is not None and prompt is not None:
            shown = prompt_logprobs(prompt, pieces[0].prompt_scores, names.tokenizer)
        return CompletionChoice(
            index=index,
            text=echo + "".join(piece.text for piece in pieces),
            logprobs=completion_logprobs(names, echoed, pieces, offset) if request.scores is not None else None,
            finish_reason=pieces[-1].finish_reason,
            prompt_logprobs=shown,
            stop_reason=UNSET if stopped is None else stopped,
            token_ids=ids if request.return_token_ids else UNSET,
            prompt_token_ids=prompt.token_ids if request.return_token_ids and prompt is not None else UNSET,
        )

    def _identity(self, request: CompletionRequest) -> str:
        return f"cmpl-{request.request_id or uuid.uuid4().hex}"


def without_answer(piece: TextDelta) -> TextDelta:
    """The delta of an answer of no token: what it says of the prompt."""
    return replace(piece, text="", token_ids=[], scores=[], generated_ids=[], finish_reason="length", stop_reason=None)


def _at_once(request: CompletionRequest) -> int:
    return max(1, MAX_CONCURRENT // request.n)


def _prompt_logprobs(request: CompletionRequest) -> int | None:
    """How many likeliest tokens to report for each token of the prompt; None for no scores of the prompt.

    A request asks for them by `prompt_logprobs`, or as OpenAI does by `echo` with `logprobs`.
    """
    counts = [request.prompt_logprobs, request.scores if request.echo else None]
    given = [count for count in counts if count is not None]
    return max(given) if given else None
