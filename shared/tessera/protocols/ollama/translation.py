"""One request of Ollama's chat or generate: chat's chunks as lines of JSON, or as one answer.

Durations are measured here, from the request to its first and to its last chunk. Calls of tools are shown whole, with
their arguments as an object. Knows no engine and no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from tessera.errors import BadGatewayError, TesseraError
from tessera.protocols.ollama.errors import error_line
from tessera.protocols.ollama.request import chat_of_chat, chat_of_generate
from tessera.wire.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest, Delta, TokenLogprob, Usage
from tessera.wire.ollama import (
    OllamaCall,
    OllamaChatRequest,
    OllamaFunction,
    OllamaGenerateRequest,
    OllamaLine,
    OllamaLogprob,
    OllamaSaid,
    OllamaTopLogprob,
)
from tessera.wire.tools import ToolCallDelta

LINES = "application/x-ndjson"
"""Content type of a stream."""
MOST_ARGUMENTS = 4 * 1024 * 1024
"""Most characters of the arguments of one answer's calls, which are held until they are whole."""


class OllamaTranslation:
    """The translation of one request; implements `tessera.protocols.translation.Translation`.

    Its chat request always streams; an answer that is not to be streamed comes as one line at the end.

    Args:
        request: as it was decoded.
        clock: nanoseconds that never go back.

    Raises:
        InvalidRequestError: the request asks for what cannot be done here.
    """

    def __init__(
        self,
        request: OllamaChatRequest | OllamaGenerateRequest,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._is_chat = isinstance(request, OllamaChatRequest)
        self._chat = chat_of_chat(request) if isinstance(request, OllamaChatRequest) else chat_of_generate(request)
        self.streams = request.stream is not False
        self._model = request.model
        self._clock = clock
        self._began = clock()
        self._first: int | None = None
        self._text: list[str] = []
        self._thought: list[str] = []
        self._calls: list[OllamaCall] = []
        self._scores: list[OllamaLogprob] = []
        self._open: tuple[int, str, str, list[str]] | None = None
        self._held = 0
        self._reason: str | None = None
        self._usage: Usage | None = None

    @property
    def chat(self) -> ChatCompletionRequest:
        """The request in chat completions' terms; always a stream with usage."""
        return self._chat

    def answer(self, _: ChatCompletion) -> OllamaLine:
        """Never asked for: every answer is made of chunks."""
        raise NotImplementedError

    def begin(self) -> list[bytes]:
        """Add nothing: the first line has the first chunk's text."""
        return []

    def chunk(self, chunk: ChatCompletionChunk) -> list[bytes]:
        """The lines of a chunk; none of an answer that is not streamed.

        Raises:
            BadGatewayError: the arguments of its calls are too large.
        """
        if isinstance(chunk.usage, Usage):
            self._usage = chunk.usage
        lines: list[bytes] = []
        for choice in chunk.choices:
            if choice.index != 0:
                continue
            self._first = self._first or self._clock()
            scores = [_score(each) for each in choice.logprobs.content] if choice.logprobs else []
            lines += self._delta(choice.delta, scores)
            self._reason = choice.finish_reason or self._reason
        return lines

    def end(self) -> list[bytes]:
        """The last line, which says why the answer ended and how long it took.

        Raises:
            BadGatewayError: the answer has no end.
        """
        if self._reason is None:
            raise BadGatewayError("the answer ended before it was complete; try again")
        lines = self._close()
        now = self._clock()
        first = self._first or now
        used = self._usage or Usage(prompt_tokens=0, total_tokens=0)
        reason: Literal["stop", "length"] = "length" if self._reason == "length" else "stop"
        last = msgspec.structs.replace(
            self._line("".join(self._text), "".join(self._thought), self._calls, self._scores, done=True),
            done_reason=reason,
            total_duration=now - self._began,
            load_duration=0,
            prompt_eval_count=used.prompt_tokens,
            prompt_eval_duration=first - self._began,
            eval_count=used.completion_tokens,
            eval_duration=now - first,
        )
        return [*lines, _encoded(last)]

    def failed(self, error: TesseraError) -> list[bytes]:
        """The line that ends a stream that failed."""
        return [error_line(error)]

    def loaded(self) -> bytes:
        """The answer to a request without a prompt, by which clients load a model: it is loaded."""
        return _encoded(msgspec.structs.replace(self._line("", "", [], [], done=True), done_reason="load"))

    def _delta(self, delta: Delta, scores: list[OllamaLogprob]) -> list[bytes]:
        lines: list[bytes] = []
        text, thought = delta.content or "", delta.reasoning_content or ""
        calls: list[OllamaCall] = []
        for call in delta.tool_calls or []:
            calls += self._take(call)
        if not (text or thought or calls or scores):
            return lines
        if self.streams:
            return [_encoded(self._line(text, thought, calls, scores, done=False))]
        self._text.append(text)
        self._thought.append(thought)
        self._calls += calls
        self._scores += scores
        return lines

    def _take(self, call: ToolCallDelta) -> list[OllamaCall]:
        """Add to the open call, or begin another; returns the call that is whole now."""
        whole: list[OllamaCall] = []
        if self._open is None or call.index != self._open[0]:
            whole = self._whole()
            self._open = (call.index, call.id or "", call.function.name or "", [])
        if call.function.arguments:
            self._held += len(call.function.arguments)
            if self._held > MOST_ARGUMENTS:
                raise BadGatewayError("the upstream wrote a tool call that is too large")
            self._open[3].append(call.function.arguments)
        return whole

    def _whole(self) -> list[OllamaCall]:
        if self._open is None:
            return []
        index, identity, name, pieces = self._open
        self._open = None
        text = "".join(pieces)
        try:
            arguments = msgspec.json.decode(text or "{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            if self._reason == "length":
                return []  # the call was cut and cannot be made
            arguments = {"invalid_arguments": text}
        function = OllamaFunction(name=name, arguments=arguments, index=index)
        return [OllamaCall(id=identity or UNSET, function=function)]

    def _close(self) -> list[bytes]:
        calls = self._whole()
        if not self.streams:
            self._calls += calls
            return []
        return [_encoded(self._line("", "", calls, [], done=False))] if calls else []

    def _line(
        self, text: str, thought: str, calls: list[OllamaCall], scores: list[OllamaLogprob], *, done: bool
    ) -> OllamaLine:
        shown: dict[str, Any] = {"logprobs": scores or UNSET}
        if self._is_chat:
            shown["message"] = OllamaSaid(content=text, thinking=thought or UNSET, tool_calls=calls or UNSET)
        else:
            shown |= {"response": text, "thinking": thought or UNSET}
        return OllamaLine(model=self._model, created_at=_now(), done=done, **shown)


def _score(found: TokenLogprob) -> OllamaLogprob:
    top = [OllamaTopLogprob(token=each.token, logprob=each.logprob, bytes=each.bytes) for each in found.top_logprobs]
    return OllamaLogprob(token=found.token, logprob=found.logprob, bytes=found.bytes, top_logprobs=top or UNSET)


def _encoded(line: OllamaLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
