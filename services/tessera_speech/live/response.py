"""One answer of a conversation: text from the language model, spoken sentence by sentence while it is written.

Does not know what is heard meanwhile; whoever interrupts it calls `cancel`.
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
Reason = Literal["client_cancelled", "turn_detected"]


class LiveResponse:
    """An answer in the making.

    Args:
        session: the settings as they are now.
        asked: what is otherwise for this answer.
        conversation: that it belongs to.
        heard: waits until what was said before is written down.
        emit: sends an event: its type and its fields.
        chat_client: the language model's server.
        synthesis: speaks.
        tenant: whose session it is.
    """

    def __init__(
        self,
        session: ConversationSession,
        asked: ResponseParameters,
        conversation: Conversation,
        heard: Callable[[], Awaitable[None]],
        emit: Emit,
        chat_client: ChatClient,
        synthesis: SynthesisPipeline,
        tenant: str,
    ) -> None:
        self.id = new_id("resp")
        self._model = session.model
        self._instructions = session.instructions if asked.instructions is None else asked.instructions
        self._speaks = (asked.output_modalities or session.output_modalities) == ["audio"]
        self._limit = session.max_output_tokens if asked.max_output_tokens is None else asked.max_output_tokens
        self._output = session.audio.output if asked.audio is None else asked.audio.output
        self._asked = asked
        self._conversation = conversation
        self._heard = heard
        self._emit = emit
        self._chat_client = chat_client
        self._synthesis = synthesis
        self._tenant = tenant
        self._item = ConversationItem(
            new_id("item"), "assistant", "output_audio" if self._speaks else "output_text", ""
        )
        self._shown = False
        self._tokens = TokenUsage()
        self._audio_bytes = 0
        self._reason: Reason | None = None
        self._task: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None

    def start(self, done: Callable[[], None]) -> None:
        """Begin. `done` is called when the last event has been sent."""
        self._task = asyncio.create_task(self._run(), name=self.id)
        self._task.add_done_callback(lambda _: done())

    async def cancel(self, reason: Reason) -> None:
        """Stop, and say so. Returns when the last event has been sent."""
        assert self._task is not None
        self._reason = self._reason or reason
        if self._work is not None:
            self._work.cancel()
        await asyncio.wait({self._task})

    async def abandon(self) -> None:
        """Stop without a word: nobody listens any more."""
        self._emit = _nobody
        await self.cancel("client_cancelled")

    async def _run(self) -> None:
        await self._emit("response.created", response=self._wire("in_progress", None))
        if self._reason is None:
            self._work = asyncio.create_task(self._answer())
            await asyncio.wait({self._work})
        await self._finish(*self._outcome())

    def _outcome(self) -> tuple[str, dict[str, Any] | None]:
        if self._work is None or self._work.cancelled():
            return "cancelled", {"type": "cancelled", "reason": self._reason or "client_cancelled"}
        error = self._work.exception()
        if error is None:
            return "completed", None
        body = _first(error).body()
        told = {"type": body.type, "code": body.code, "message": body.message}
        return "failed", {"type": "failed", "error": told}

    async def _answer(self) -> None:
        await self._heard()
        sentences: asyncio.Queue[str | None] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._think(sentences))
            if self._speaks:
                group.create_task(self._speak(sentences))

    async def _think(self, sentences: asyncio.Queue[str | None]) -> None:
        model = self._model or await self._chat_client.first_chat_model()
        waiting = ""
        answer = self._chat_client.stream(
            model,
            self._conversation.messages(self._instructions),
            max_tokens=None if self._limit == "inf" else self._limit,
            tenant=self._tenant,
        )
        kind = "response.output_audio_transcript.delta" if self._speaks else "response.output_text.delta"
        async with aclosing(answer):
            async for piece in answer:
                if isinstance(piece, TokenUsage):
                    self._tokens = piece
                    continue
                await self._show()
                self._item.text = (self._item.text or "") + piece
                await self._emit(kind, **self._place(), delta=piece)
                waiting += piece
                *whole, rest = split(waiting) or [""]
                if whole:
                    waiting = rest + waiting[len(waiting.rstrip()) :]
                for sentence in whole:
                    sentences.put_nowait(sentence)
        for sentence in split(waiting):
            sentences.put_nowait(sentence)
        sentences.put_nowait(None)

    async def _speak(self, sentences: asyncio.Queue[str | None]) -> None:
        while (sentence := await sentences.get()) is not None:
            if self._synthesis.can_speak(sentence):
                body = SpeechRequest(
                    model=self._synthesis.card.id,
                    input=sentence,
                    voice=self._output.voice,
                    speed=self._output.speed,
                    response_format="pcm",
                )
                pieces = self._synthesis.synthesize(body, markup=False)
                async with aclosing(pieces):
                    async for piece in pieces:
                        if piece.data:
                            self._audio_bytes += len(piece.data)
                            delta = base64.b64encode(piece.data).decode("ascii")
                            await self._emit("response.output_audio.delta", **self._place(), delta=delta)
            self._item.sentence_ends.append((sentence, self._audio_bytes / 2 / PCM_RATE * 1000))

    async def _show(self) -> None:
        """The answer has begun: its item is in the conversation."""
        if self._shown:
            return
        self._shown = True
        self._item.status = "in_progress"
        item = self._item.wire()
        await self._emit("response.output_item.added", response_id=self.id, output_index=0, item=item)
        if self._asked.conversation == "auto":
            previous = self._conversation.add(self._item)
            await self._emit("conversation.item.added", previous_item_id=previous, item=item)
        await self._emit("response.content_part.added", **self._place(), part=self._part(""))

    async def _finish(self, status: str, details: dict[str, Any] | None) -> None:
        if self._shown:
            self._item.status = "completed" if status == "completed" else "incomplete"
            text = self._item.text or ""
            if self._speaks:
                await self._emit("response.output_audio.done", **self._place())
                await self._emit("response.output_audio_transcript.done", **self._place(), transcript=text)
            else:
                await self._emit("response.output_text.done", **self._place(), text=text)
            await self._emit("response.content_part.done", **self._place(), part=self._part(text))
            item = self._item.wire()
            await self._emit("response.output_item.done", response_id=self.id, output_index=0, item=item)
            if self._asked.conversation == "auto":
                await self._emit("conversation.item.done", item=item)
        await self._emit("response.done", response=self._wire(status, details))

    def _place(self) -> dict[str, Any]:
        return {"response_id": self.id, "item_id": self._item.id, "output_index": 0, "content_index": 0}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "audio", "transcript": text} if self._speaks else {"type": "text", "text": text}

    def _wire(self, status: str, details: dict[str, Any] | None) -> dict[str, Any]:
        taken, made = self._tokens.prompt_tokens, self._tokens.completion_tokens
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": [self._item.wire()] if self._shown else [],
            "output_modalities": ["audio"] if self._speaks else ["text"],
            "max_output_tokens": self._limit,
            "metadata": self._asked.metadata,
            "usage": None
            if status == "in_progress"
            else {"input_tokens": taken, "output_tokens": made, "total_tokens": taken + made},
        }


async def _nobody(*_: Any, **__: Any) -> None:
    """Takes events when the client has left."""


def _first(error: BaseException) -> TesseraError:
    """The first fault of ours within a group; anything else is logged and told without details."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TesseraError):
        return error
    logger.error("an answer failed", exc_info=error)
    return InternalError("an internal error; the server's log has it")
