"""A server whose model says what its prompt tells it to: what clients with tools need, which no small model can do.

It speaks chat completions and responses with the suite's own translation, on a free port, in a thread of the process
that starts it; or alone: `python -m tests.scripted_model PORT`. The last text of the user decides:

    call NAME {json}   a call of the tool NAME (an `apply_patch …` of a custom tool: the text itself), once
    think …            a thought, then the text
    json {…}           exactly this text
    slow               a piece, then it waits for `go_on`
    cut                a piece, then the connection is cut
    refuse STATUS      an error with this status
    anything else      `<number of messages>: <the text>`
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp import web

from tessera.protocols.responses.translation import ResponseTranslation
from tessera.protocols.translation import translated
from tessera.wire.chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Delta,
    Message,
    TextPart,
    Usage,
)
from tessera.wire.responses.request import ResponseRequest
from tessera.wire.tools import CalledFunction, FunctionDelta, ToolCall, ToolCallDelta

MODEL = "scripted"


def text_of(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content or [] if isinstance(part, TextPart))


class CutError(Exception):
    """The script asks for a broken connection."""


class ScriptedModel:
    """The server."""

    def __init__(self, port: int = 0, *, responses: bool = True) -> None:
        self.port = port
        self.has_responses = responses
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.go_on = threading.Event()
        self.began = threading.Event()
        self.left = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> ScriptedModel:
        if not self._thread.is_alive():
            self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)
        return self

    def close(self) -> None:
        self.go_on.set()
        if self._runner is not None:
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        if self.has_responses:
            app.router.add_post("/v1/responses", self._responses)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1}]})

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        body = await self._remember(request)
        translation = ResponseTranslation(msgspec.convert(body, ResponseRequest))
        if refused := self._refusal(translation.chat):
            return refused
        try:
            if not translation.chat.stream:
                answer = translation.answer(await self._completion(translation.chat))
                return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
            return await self._stream(request, translated(translation, self._chunks(translation.chat)))
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        chat = msgspec.convert(await self._remember(request), ChatCompletionRequest)
        if refused := self._refusal(chat):
            return refused
        try:
            if not chat.stream:
                return web.Response(
                    body=msgspec.json.encode(await self._completion(chat)), content_type="application/json"
                )

            async def events() -> AsyncIterator[bytes]:
                async for chunk in self._chunks(chat):
                    yield b"data: " + msgspec.json.encode(chunk) + b"\n\n"
                yield b"data: [DONE]\n\n"

            return await self._stream(request, events())
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def _remember(self, request: web.Request) -> dict[str, Any]:
        body = json.loads(await request.read())
        self.requests.append((request.path, {k.lower(): v for k, v in request.headers.items()}, body))
        self.began.set()
        return body

    def _refusal(self, chat: ChatCompletionRequest) -> web.Response | None:
        word, _, rest = self._asked(chat).partition(" ")
        if word != "refuse":
            return None
        error = {"message": "refused as asked", "type": "server_error", "param": None, "code": "scripted"}
        return web.json_response({"error": error}, status=int(rest))

    async def _stream(self, request: web.Request, events: AsyncIterator[bytes]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        with contextlib.suppress(CutError):
            async for piece in events:
                await response.write(piece)
                await asyncio.sleep(0)
            return response
        await asyncio.sleep(0.05)  # so that the pieces before have left this process's buffers
        if request.transport is not None:
            request.transport.abort()
        return response

    def _asked(self, chat: ChatCompletionRequest) -> str:
        users = [text_of(message) for message in chat.messages if message.role == "user"]
        return users[-1].strip() if users else ""

    async def _deltas(self, chat: ChatCompletionRequest) -> AsyncIterator[Delta]:
        asked = self._asked(chat)
        word, _, rest = asked.partition(" ")
        last = chat.messages[-1]
        if word == "call" and last.role != "tool":
            name, _, arguments = rest.partition(" ")
            began = FunctionDelta(name=name, arguments="")
            yield Delta(tool_calls=[ToolCallDelta(index=0, id="call00001", type="function", function=began)])
            for piece in (arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :]):
                yield Delta(tool_calls=[ToolCallDelta(index=0, function=FunctionDelta(arguments=piece))])
            return
        if word == "think":
            yield Delta(reasoning_content="I think ")
            yield Delta(reasoning_content="so.")
        if word in {"slow", "cut"}:
            yield Delta(content="piece ")
            if word == "cut":
                raise CutError
            while not self.go_on.is_set():  # noqa: ASYNC110  set by a thread
                await asyncio.sleep(0.01)
        if word == "json":
            yield Delta(content=rest)
        elif last.role == "tool":
            yield Delta(content=f"the tool said {text_of(last)}")
        else:
            for piece in (f"{len(chat.messages)}: ", asked):
                yield Delta(content=piece)

    async def _chunks(self, chat: ChatCompletionRequest) -> AsyncIterator[ChatCompletionChunk]:
        calls = False

        def chunk(delta: Delta, finish: Any = None) -> ChatCompletionChunk:
            choice = ChatChunkChoice(index=0, delta=delta, finish_reason=finish)
            return ChatCompletionChunk(id="chatcmpl-1", created=1, model=MODEL, choices=[choice])

        yield chunk(Delta(role="assistant"))
        async for delta in self._deltas(chat):
            calls = calls or bool(delta.tool_calls)
            yield chunk(delta)
        yield chunk(Delta(), "tool_calls" if calls else "stop")
        if chat.stream_options is not None and chat.stream_options.include_usage:
            yield ChatCompletionChunk(id="chatcmpl-1", created=1, model=MODEL, choices=[], usage=self._usage(chat))

    def _usage(self, chat: ChatCompletionRequest) -> Usage:
        return Usage(prompt_tokens=len(chat.messages), completion_tokens=2, total_tokens=len(chat.messages) + 2)

    async def _completion(self, chat: ChatCompletionRequest) -> ChatCompletion:
        text, thought, arguments, call = "", "", "", None
        async for delta in self._deltas(chat):
            text += delta.content or ""
            thought += delta.reasoning_content or ""
            for each in delta.tool_calls or []:
                call = each if call is None else call
                arguments += each.function.arguments or ""
        message: dict[str, Any] = {"content": text or None}
        if thought:
            message["reasoning_content"] = thought
        if call is not None:
            function = CalledFunction(name=str(call.function.name), arguments=arguments)
            message["tool_calls"] = [ToolCall(id=str(call.id), type="function", function=function)]
        choice = ChatChoice(
            index=0, message=AnswerMessage(**message), finish_reason="tool_calls" if call is not None else "stop"
        )
        return ChatCompletion(id="chatcmpl-1", created=1, model=MODEL, choices=[choice], usage=self._usage(chat))


if __name__ == "__main__":
    server = ScriptedModel(int(sys.argv[1])).start()
    print(server.url, flush=True)
    threading.Event().wait()
