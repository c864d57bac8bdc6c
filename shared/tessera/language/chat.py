"""Chat completions: from a request to a prompt, and from text deltas to OpenAI's answers, streamed or whole.

Does not know how messages become a prompt (templates, images): the service passes a `Prompter`.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable

from msgspec import UNSET

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
    sampling_of,
    stops_of,
)
from tessera.language.parsers.dialects import Dialect
from tessera.language.stream_extras import StreamExtras, text_of_delta
from tessera.language.usage import TokenCount, usage
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.web.sse import event
from tessera.wire.chat import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChoiceLogprobs,
    Delta,
    PromptLogprob,
    PromptLogprobs,
    SamplingRequest,
    TokenLogprob,
    TopLogprob,
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
        spent = TokenCount(prompt)
        prompt_scores: list[TokenScore] = []
        async with contextlib.aclosing(self._run(request, prompt, sampling)) as pieces:
            async for piece in pieces:
                spent.take(piece)
                prompt_scores = piece.prompt_scores or prompt_scores
                answers[piece.choice].take(piece)
                answers[piece.choice].scores += token_logprobs(piece, self.generator.tokenizer)
        choices = [
            ChatChoice(
                index=index,
                message=answer.message(),
                logprobs=ChoiceLogprobs(answer.scores) if request.logprobs else None,
                finish_reason=answer.reason(),
                stop_reason=answer.stop_reason,
            )
            for index, answer in enumerate(answers)
        ]
        return ChatCompletion(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=self.model,
            choices=choices,
            usage=usage([spent]),
            prompt_logprobs=prompt_logprobs(prompt, prompt_scores, self.generator.tokenizer)
            if request.prompt_logprobs is not None
            else UNSET,
        )

    async def stream(self, request: ChatCompletionRequest) -> AsyncGenerator[bytes]:
        """Answer a request as server-sent events; the caller appends `[DONE]`."""
        async with contextlib.aclosing(self.chunks(request)) as chunks:
            async for chunk in chunks:
                yield event(chunk)

    async def chunks(self, request: ChatCompletionRequest) -> AsyncGenerator[ChatCompletionChunk]:
        """Answer a request as chunks, in order."""
        prompt, sampling = await self._prepare(request)
        identity = f"chatcmpl-{uuid.uuid4().hex}"
        created = int(time.time())
        extras = StreamExtras(request.stream_options, spent := TokenCount(prompt))
        answers = self._answers(request, prompt, sampling)

        def chunk(choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
            return ChatCompletionChunk(
                id=identity,
                created=created,
                model=self.model,
                choices=choices,
                usage=extras.usage(last=not choices),
                obfuscation=extras.padding(text_of_delta(choices[0].delta)) if choices else UNSET,
            )

        begun: set[int] = set()
        async with contextlib.aclosing(self._run(request, prompt, sampling)) as pieces:
            async for piece in pieces:
                spent.take(piece)
                if piece.choice not in begun:
                    begun.add(piece.choice)
                    first = Delta(role="assistant", content=UNSET if request.offered else "")
                    yield chunk([ChatChunkChoice(index=piece.choice, delta=first)])
                scores = token_logprobs(piece, self.generator.tokenizer) if request.logprobs else []
                answer = answers[piece.choice]
                logprobs = ChoiceLogprobs(scores) if scores else None
                # Scores of tokens whose text is still held back are sent with an empty delta.
                for delta in answer.take(piece) or ([Delta(content="")] if scores else []):
                    yield chunk([ChatChunkChoice(index=piece.choice, delta=delta, logprobs=logprobs)])
                    logprobs = None
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
        length = len(prompt.token_ids)
        limit = output_limit(max_tokens, length, self.limits, param=param, prompt_param="messages")
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        tokenizer = self.generator.tokenizer
        grammar = answer_grammar(request, self.dialect, tokenizer, prompt.text)
        return prompt, sampling_of(
            request,
            tokenizer,
            max_tokens=limit,
            logprobs=logprobs,
            grammar=grammar,
            prompt_logprobs=request.prompt_logprobs,
        )

    def _run(self, request: ChatCompletionRequest, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[TextDelta]:
        shown = self.dialect.markers(tools=bool(request.offered))
        return self.generator.run(
            prompt, sampling, choices=request.n, stops=stops_of(request), shown=shown, terms=RequestTerms.of(request)
        )

    def _answers(self, request: ChatCompletionRequest, prompt: Prompt, sampling: Sampling) -> list[ChatAnswer]:
        opened = opens_thought(self.dialect, prompt.text)
        forced = sampling.grammar is not None and sampling.grammar.kind == "calls"
        return [
            ChatAnswer(self.dialect.parser(request.offered, opened=opened), only_calls=forced) for _ in range(request.n)
        ]


def prompt_logprobs(prompt: Prompt, scores: list[TokenScore], tokenizer: Tokenizer) -> PromptLogprobs:
    """Log-probabilities of a prompt's tokens in vLLM's shape; the first token has none."""
    shown: PromptLogprobs = [None]
    for token, score in zip(prompt.token_ids[1:], scores, strict=True):
        likeliest = {
            str(other): PromptLogprob(value, rank, tokenizer.token_text(other))
            for rank, (other, value) in enumerate(score.top, start=1)
        }
        own = PromptLogprob(score.logprob, score.rank, tokenizer.token_text(token))
        shown.append(likeliest | {str(token): own})
    return shown


def token_logprobs(piece: TextDelta, tokenizer: Tokenizer) -> list[TokenLogprob]:
    """The tokens of a delta with their log-probabilities in OpenAI's shape; empty when none were requested."""
    shown = []
    for token, score in zip(piece.token_ids, piece.scores, strict=False):
        top = [
            TopLogprob(tokenizer.token_text(other), value, list(tokenizer.token_bytes(other)))
            for other, value in score.top
        ]
        text, own = tokenizer.token_text(token), list(tokenizer.token_bytes(token))
        shown.append(TokenLogprob(text, score.logprob, own, top))
    return shown
