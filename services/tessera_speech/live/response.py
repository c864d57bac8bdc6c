"""One response of a conversation: text from the language model, synthesized sentence by sentence as it is generated.

Knows nothing about audio that arrives meanwhile; whoever interrupts the response calls `cancel`.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Literal

from tessera.errors import InternalError, TesseraError
from tessera.wire.audio import SpeechRequest
from tessera.wire.realtime import ConversationSession, ResponseParameters
from tessera_speech.live.chat_client import ChatClient, TokenUsage
from tessera_speech.live.conversation import Conversation, ConversationItem, new_id
from tessera_speech.synthesis.audio_files import PCM_RATE
from tessera_speech.synthesis.text_to_audio import SynthesisPipeline
from tessera_speech.text.sentences import split

logger = logging.getLogger(__name__)

Emit = Callable[..., Awaitable[None]]
"""Sends an event: (type, **fields)."""
Reason = Literal["client_cancelled", "turn_detected"]
"""Why a response is cancelled, in OpenAI's words."""


class LiveResponse:
    """A response in progress.

    Args:
        session: settings of the session at the beginning of the response.
        parameters: settings of this response alone.
        conversation: the conversation that it belongs to.
        wait_for_transcripts: waits until everything said before is transcribed.
        emit: sends an event: its type and its fields.
        chat_client: client of the language model.
        synthesis: synthesizes the text.
        tenant: tenant of the session.
    """

    def __init__(
        self,
        session: ConversationSession,
        parameters: ResponseParameters,
        conversation: Conversation,
        wait_for_transcripts: Callable[[], Awaitable[None]],
        emit: Emit,
        chat_client: ChatClient,
        synthesis: SynthesisPipeline,
        tenant: str,
    ) -> None:
        self.id = new_id("resp")
        self._model = session.model
        self._instructions = session.instructions if parameters.instructions is None else parameters.instructions
        self._is_audio = (parameters.output_modalities or session.output_modalities) == ["audio"]
        self._limit = (
            session.max_output_tokens if parameters.max_output_tokens is None else parameters.max_output_tokens
        )
        self._output = session.audio.output if parameters.audio is None else parameters.audio.output
        self._parameters = parameters
        self._conversation = conversation
        self._wait_for_transcripts = wait_for_transcripts
        self._emit = emit
        self._chat_client = chat_client
        self._synthesis = synthesis
        self._tenant = tenant
        self._item = ConversationItem(
            new_id("item"), "assistant", "output_audio" if self._is_audio else "output_text", ""
        )
        self._has_item = False
        self._tokens = TokenUsage()
        self._audio_bytes = 0
        self._reason: Reason | None = None
        self._task: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None

    def start(self, done: Callable[[], None]) -> None:
        """Begin the response. `done` is called when its last event has been sent."""
        self._task = asyncio.create_task(self._run(), name=self.id)
        self._task.add_done_callback(lambda _: done())

    async def cancel(self, reason: Reason) -> None:
        """Stop, with the events that say so. Returns when the last event has been sent."""
        assert self._task is not None
        self._reason = self._reason or reason
        if self._work is not None:
            self._work.cancel()
        await asyncio.wait({self._task})

    async def abandon(self) -> None:
        """Stop without events: the client has left."""
        self._emit = _discard
        await self.cancel("client_cancelled")

    async def _run(self) -> None:
        await self._emit("response.created", response=self._wire("in_progress", None))
        if self._reason is None:
            self._work = asyncio.create_task(self._generate())
            await asyncio.wait({self._work})
        await self._finish(*self._outcome())

    def _outcome(self) -> tuple[str, dict[str, Any] | None]:
        if self._work is None or self._work.cancelled():
            return "cancelled", {"type": "cancelled", "reason": self._reason or "client_cancelled"}
        error = self._work.exception()
        if error is None:
            return "completed", None
        body = _first(error).body()
        fields = {"type": body.type, "code": body.code, "message": body.message}
        return "failed", {"type": "failed", "error": fields}

    async def _generate(self) -> None:
        await self._wait_for_transcripts()
        sentences: asyncio.Queue[str | None] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stream_text(sentences))
            if self._is_audio:
                group.create_task(self._synthesize(sentences))

    async def _stream_text(self, sentences: asyncio.Queue[str | None]) -> None:
        model = self._model or await self._chat_client.first_chat_model()
        waiting = ""
        stream = self._chat_client.stream(
            model,
            self._conversation.messages(self._instructions),
            max_tokens=None if self._limit == "inf" else self._limit,
            tenant=self._tenant,
        )
        kind = "response.output_audio_transcript.delta" if self._is_audio else "response.output_text.delta"
        async with aclosing(stream):
            async for part in stream:
                if isinstance(part, TokenUsage):
                    self._tokens = part
                    continue
                await self._begin_item()
                self._item.text = (self._item.text or "") + part
                await self._emit(kind, **self._place(), delta=part)
                waiting += part
                *complete, rest = split(waiting) or [""]
                if complete:
                    waiting = rest + waiting[len(waiting.rstrip()) :]
                for sentence in complete:
                    sentences.put_nowait(sentence)
        for sentence in split(waiting):
            sentences.put_nowait(sentence)
        sentences.put_nowait(None)

    async def _synthesize(self, sentences: asyncio.Queue[str | None]) -> None:
        while (sentence := await sentences.get()) is not None:
            if self._synthesis.can_speak(sentence):
                body = SpeechRequest(
                    model=self._synthesis.card.id,
                    input=sentence,
                    voice=self._output.voice,
                    speed=self._output.speed,
                    response_format="pcm",
                )
                chunks = self._synthesis.synthesize(body, markup=False)
                async with aclosing(chunks):
                    async for chunk in chunks:
                        if chunk.data:
                            self._audio_bytes += len(chunk.data)
                            delta = base64.b64encode(chunk.data).decode("ascii")
                            await self._emit("response.output_audio.delta", **self._place(), delta=delta)
            self._item.sentence_ends.append((sentence, self._audio_bytes / 2 / PCM_RATE * 1000))

    async def _begin_item(self) -> None:
        """Add the item to the conversation with the first text of the response."""
        if self._has_item:
            return
        self._has_item = True
        self._item.status = "in_progress"
        item = self._item.wire()
        await self._emit("response.output_item.added", response_id=self.id, output_index=0, item=item)
        if self._parameters.conversation == "auto":
            previous = self._conversation.add(self._item)
            await self._emit("conversation.item.added", previous_item_id=previous, item=item)
        await self._emit("response.content_part.added", **self._place(), part=self._part(""))

    async def _finish(self, status: str, details: dict[str, Any] | None) -> None:
        if self._has_item:
            self._item.status = "completed" if status == "completed" else "incomplete"
            text = self._item.text or ""
            if self._is_audio:
                await self._emit("response.output_audio.done", **self._place())
                await self._emit("response.output_audio_transcript.done", **self._place(), transcript=text)
            else:
                await self._emit("response.output_text.done", **self._place(), text=text)
            await self._emit("response.content_part.done", **self._place(), part=self._part(text))
            item = self._item.wire()
            await self._emit("response.output_item.done", response_id=self.id, output_index=0, item=item)
            if self._parameters.conversation == "auto":
                await self._emit("conversation.item.done", item=item)
        await self._emit("response.done", response=self._wire(status, details))

    def _place(self) -> dict[str, Any]:
        return {"response_id": self.id, "item_id": self._item.id, "output_index": 0, "content_index": 0}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "audio", "transcript": text} if self._is_audio else {"type": "text", "text": text}

    def _wire(self, status: str, details: dict[str, Any] | None) -> dict[str, Any]:
        prompt, generated = self._tokens.prompt_tokens, self._tokens.completion_tokens
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": [self._item.wire()] if self._has_item else [],
            "output_modalities": ["audio"] if self._is_audio else ["text"],
            "max_output_tokens": self._limit,
            "metadata": self._parameters.metadata,
            "usage": None
            if status == "in_progress"
            else {"input_tokens": prompt, "output_tokens": generated, "total_tokens": prompt + generated},
        }


async def _discard(*_: Any, **__: Any) -> None:
    """Discards an event of a client that has left."""


def _first(error: BaseException) -> TesseraError:
    """The first error within a group; one that is not ours is logged and answered without details."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TesseraError):
        return error
    logger.error("a response failed", exc_info=error)
    return InternalError("an internal error; the server's log has it")
