"""Chat completions: from a request to a prompt, and from text deltas to OpenAI's answers, streamed or whole.

Does not know how messages become a prompt (templates, images): the service passes a `Prompter`.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace

from msgspec import UNSET, UnsetType

from tessera.errors import InvalidRequestError
from tessera.language.answers import ChatAnswer
from tessera.language.constraints import answer_grammar, opens_thought
from tessera.language.generation import (
    GenerationLimits,
    Generator,
    Prompt,
    RequestTerms,
    TextDelta,
    output_limit,
)
from tessera.language.parsers.dialects import Dialect
from tessera.language.sampling_parameters import sampling_of, truncated
from tessera.language.scores import TokenNames, prompt_logprobs, token_logprobs
from tessera.language.stops import TextTerms
from tessera.language.stream_extras import StreamExtras, text_of_delta
from tessera.language.usage import TokenCount, usage
from tessera.web.sse import event
from tessera.wire.chat import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChoiceLogprobs,
    Delta,
    SamplingRequest,
)
from tessera.wire.engine import Sampling, TokenScore

Prompter = Callable[[ChatCompletionRequest], Awaitable[Prompt]]
"""Makes the prompt of a chat request."""


def check_choices(request: SamplingRequest, limits: GenerationLimits) -> None:
    """Refuse what the types of a request allow but the server does not, such as too many choices.

    Raises:
        InvalidRequestError: names the field and the limit.
    """
    if request.n > limits.max_choices:
        raise InvalidRequestError(f"`n` is {request.n}; this server allows at most {limits.max_choices}", param="n")
    if request.best_of not in (None, 1, request.n):
        raise InvalidRequestError(
            f"`best_of` is {request.best_of}, but `n` answers are generated and all are returned: leave it out",
            param="best_of",
        )
    if request.prompt_logprobs is not None and request.stream:
        raise InvalidRequestError(
            "`prompt_logprobs` come with a whole answer: leave out `stream`", param="prompt_logprobs"
        )


def check_chat(request: ChatCompletionRequest) -> None:
    """Refuse fields of a chat request that contradict each other, and those of an API before tools.

    Raises:
        InvalidRequestError: names the field and what to send instead.
    """
    for old, new in (("functions", "tools"), ("function_call", "tool_choice")):
        if getattr(request, old) is not None:
            raise InvalidRequestError(f"`{old}` is the form before 2023: send `{new}` instead", param=old)
    if request.add_special_tokens:
        raise InvalidRequestError(
            "`add_special_tokens`: the chat template writes the special tokens; leave it out",
            param="add_special_tokens",
        )
    for name in ("separate_reasoning", "stream_reasoning"):
        if getattr(request, name) is False:
            raise InvalidRequestError(f"`{name}` is always true here; leave it out", param=name)
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequestError("`top_logprobs` needs `logprobs: true`", param="top_logprobs")
    if request.max_completion_tokens is not None and request.max_tokens not in (None, request.max_completion_tokens):
        raise InvalidRequestError(
            "`max_completion_tokens` and `max_tokens` are the same limit: give one, or both with one value",
            param="max_completion_tokens",
        )


class ChatCompletions:
    """Answers chat requests for one model.

    Args:
        model: its id in answers.
        generator: runs prompts.
        prompter: makes a request's prompt.
        limits: of the service.
        dialect: how the model writes reasoning and tool calls.
    """

    def __init__(
        self, model: str, generator: Generator, prompter: Prompter, limits: GenerationLimits, dialect: Dialect
    ) -> None:
        self.model = model
        self.generator = generator
        self.prompter = prompter
        self.limits = limits
        self.dialect = dialect

    async def answer(self, request: ChatCompletionRequest) -> ChatCompletion:
        """Answer a request as a whole."""
        prompt, sampling = await self._prepare(request)
        answers = self._answers(request, prompt, sampling)
        spent = TokenCount(prompt, answers)
        prompt_scores: list[TokenScore] = []
        names = TokenNames(self.generator.tokenizer, by_id=bool(request.return_tokens_as_token_ids))
        async with contextlib.aclosing(self._run(request, prompt, sampling)) as pieces:
            async for piece in pieces:
                spent.take(piece)
                prompt_scores = piece.prompt_scores or prompt_scores
                answers[piece.choice].take(piece)
                answers[piece.choice].scores += token_logprobs(piece, names)
        choices = [
            ChatChoice(
                index=index,
                message=answer.message(),
                logprobs=ChoiceLogprobs(answer.scores) if request.logprobs else None,
                finish_reason=answer.reason(),
                stop_reason=answer.stop_reason,
                token_ids=answer.token_ids if request.return_token_ids else UNSET,
            )
            for index, answer in enumerate(answers)
        ]
        return ChatCompletion(
            id=f"chatcmpl-{request.request_id or uuid.uuid4().hex}",
            created=int(time.time()),
            model=self.model,
            choices=choices,
            usage=usage([spent]),
            prompt_logprobs=prompt_logprobs(prompt, prompt_scores, self.generator.tokenizer)
            if request.prompt_logprobs is not None
            else UNSET,
            prompt_token_ids=prompt.token_ids if request.return_token_ids else UNSET,
        )

    async def stream(self, request: ChatCompletionRequest) -> AsyncGenerator[bytes]:
        """Answer a request as server-sent events; the caller appends `[DONE]`."""
        async with contextlib.aclosing(self.chunks(request)) as chunks:
            async for chunk in chunks:
                yield event(chunk)

    async def chunks(self, request: ChatCompletionRequest) -> AsyncGenerator[ChatCompletionChunk]:
        """Answer a request as chunks, in order."""
        prompt, sampling = await self._prepare(request)
        identity = f"chatcmpl-{request.request_id or uuid.uuid4().hex}"
        names = TokenNames(self.generator.tokenizer, by_id=bool(request.return_tokens_as_token_ids))
        created = int(time.time())
        answers = self._answers(request, prompt, sampling)
        extras = StreamExtras(request.stream_options, spent := TokenCount(prompt, answers))

        def chunk(choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
            return ChatCompletionChunk(
                id=identity,
                created=created,
                model=self.model,
                choices=choices,
                usage=extras.usage(last=not choices),
                obfuscation=extras.padding(text_of_delta(choices[0].delta)) if choices else UNSET,
                prompt_token_ids=prompt.token_ids if request.return_token_ids and not begun else UNSET,
            )

        begun: set[int] = set()
        async with contextlib.aclosing(self._run(request, prompt, sampling)) as pieces:
            async for piece in pieces:
                spent.take(piece)
                if piece.choice not in begun:
                    first = Delta(role="assistant", content=UNSET if request.offered else "")
                    opening = chunk([ChatChunkChoice(index=piece.choice, delta=first)])
                    begun.add(piece.choice)
                    yield opening
                scores = token_logprobs(piece, names) if request.logprobs else []
                ids: list[int] | UnsetType = list(piece.generated_ids) if request.return_token_ids else UNSET
                answer = answers[piece.choice]
                logprobs = ChoiceLogprobs(scores) if scores else None
                # Scores and ids of tokens whose text is still held back are sent with an empty delta.
                for delta in answer.take(piece) or ([Delta(content="")] if scores or ids else []):
                    yield chunk([ChatChunkChoice(index=piece.choice, delta=delta, logprobs=logprobs, token_ids=ids)])
                    logprobs, ids = None, UNSET
                if piece.finish_reason is not None:
                    last = ChatChunkChoice(
                        index=piece.choice,
                        delta=Delta(),
                        finish_reason=answer.reason(),
                        stop_reason=answer.stop_reason,
                    )
                    yield chunk([last])
        if extras.counted_at_the_end:
            yield chunk([])

    async def _prepare(self, request: ChatCompletionRequest) -> tuple[Prompt, Sampling]:
        check_choices(request, self.limits)
        check_chat(request)
        prompt = await self.prompter(request)
        param = "max_completion_tokens" if request.max_completion_tokens is not None else "max_tokens"
        max_tokens = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
        prompt = self._truncated(request, prompt, max_tokens)
        length = len(prompt.token_ids)
        limit = output_limit(max_tokens, length, self.limits, param=param, prompt_param="messages")
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        tokenizer = self.generator.tokenizer
        grammar = answer_grammar(request, self.dialect, tokenizer, prompt.text)
        return prompt, sampling_of(
            request,
            tokenizer,
            max_tokens=limit,
            requested=max_tokens,
            logprobs=logprobs,
            grammar=grammar,
            prompt_logprobs=request.prompt_logprobs,
        )

    def _truncated(self, request: ChatCompletionRequest, prompt: Prompt, max_tokens: int | None) -> Prompt:
        if request.truncate_prompt_tokens is None:
            return prompt
        if prompt.media:
            raise InvalidRequestError(
                "`truncate_prompt_tokens` would cut images in two; send fewer messages", param="truncate_prompt_tokens"
            )
        ids = truncated(prompt.token_ids, request, self.limits, requested=max_tokens)
        return replace(prompt, token_ids=ids)

    def _run(self, request: ChatCompletionRequest, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[TextDelta]:
        shown = self.dialect.markers(tools=bool(request.offered))
        return self.generator.run(
            prompt,
            sampling,
            choices=request.n,
            text=TextTerms.of(request),
            shown=shown,
            terms=RequestTerms.of(request),
        )

    def _answers(self, request: ChatCompletionRequest, prompt: Prompt, sampling: Sampling) -> list[ChatAnswer]:
        opened = opens_thought(self.dialect, prompt.text)
        kind = sampling.grammar and sampling.grammar.kind
        return [
            ChatAnswer(
                self.dialect.parser(request.offered, opened=opened),
                only_calls=kind == "calls",
                text_or_calls=kind == "calls_or_json",
            )
            for _ in range(request.n)
        ]
