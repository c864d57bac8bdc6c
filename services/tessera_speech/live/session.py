"""A live session: client events in, server events out, whatever carries them.

Every fault of a client's event becomes an `error` event that names the event and the field; the session goes on as it
was. Does not know WebSockets, models or HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from tessera.errors import ConflictError, InvalidRequestError, NotFoundError, OverloadedError, TesseraError
from tessera.web.errors import translate
from tessera.wire import realtime as wire
from tessera.wire.audio import TranscriptionRequest
from tessera.wire.decoding import decode_json
from tessera_speech.live.chat_client import ChatClient
from tessera_speech.live.conversation import Conversation, ConversationItem, new_id
from tessera_speech.live.input_audio import LONGEST_TURN_S, InputAudioBuffer
from tessera_speech.live.response import LiveResponse
from tessera_speech.live.settings import default_session, updated
from tessera_speech.live.turn_detection import TurnEvent
from tessera_speech.pipeline import SpeechTools
from tessera_speech.recordings.detectors import RATE, Samples, SpeechDetector
from tessera_speech.synthesis import voices
from tessera_speech.synthesis.audio_files import WAVEncoder, to_int16
from tessera_speech.transcription.transcript_tokenizer import IncrementalText

logger = logging.getLogger(__name__)

MOST_FRAME_BYTES = 15 * 1024 * 1024
"""Of one event, as OpenAI has it."""
MOST_PENDING = 8
"""Messages that wait for their transcripts."""
KEPT_ITEMS = 64
"""Of a session that only transcribes; older ones are forgotten."""


class _Head(msgspec.Struct, frozen=True):
    type: str
    event_id: Any = None


class LiveSession:
    """One client.

    Args:
        tools: speech both ways.
        chat_client: the language model's server.
        send: takes each event's JSON; returns when there is room for more; raises OSError when the client has left.
        detector: makes an ear for turns.
        session: the settings to begin with; see `default_session`.
        tenant: whose session it is.
    """

    def __init__(
        self,
        tools: SpeechTools,
        chat_client: ChatClient,
        send: Callable[[bytes], Awaitable[None]],
        detector: Callable[[], SpeechDetector],
        session: wire.Session | None = None,
        tenant: str = "",
    ) -> None:
        self.id = new_id("sess")
        self.session: wire.Session = session or default_session("realtime", None)
        self._tools = tools
        self._chat_client = chat_client
        self._send = send
        self._sending = asyncio.Lock()
        self._tenant = tenant
        self._conversation = Conversation()
        self._input_audio = InputAudioBuffer(detector)
        self._input_audio.set_turn_detection(self.session.audio.input.turn_detection)
        self._next_item = new_id("item")
        self._pending: dict[str, asyncio.Task[None]] = {}
        self._response: LiveResponse | None = None
        self._closed = False

    async def begin(self) -> None:
        """Say hello."""
        await self._emit("session.created", session=self._settings())

    async def receive(self, frame: bytes | str) -> None:
        """Take one event of the client's."""
        data = frame.encode("utf-8", "surrogatepass") if isinstance(frame, str) else frame
        event_id: str | None = None
        try:
            if len(data) > MOST_FRAME_BYTES:
                raise InvalidRequestError(
                    f"an event may have {MOST_FRAME_BYTES} bytes, this one has {len(data)}; send smaller pieces",
                    code="event_too_large",
                )
            head = decode_json(data, _Head)
            event_id = head.event_id if isinstance(head.event_id, str) else None
            kind = wire.EVENT_KINDS.get(head.type)
            if kind is None:
                raise InvalidRequestError(
                    f"`type` is {head.type[:80]!r}, which is no event; there are {', '.join(wire.EVENT_NAMES)}",
                    param="type",
                    code="invalid_event_type",
                )
            await self._handle(decode_json(data, kind))
        except TesseraError as error:
            await self._refuse(error, event_id)
        except Exception as error:
            logger.exception("an event of a live session failed")
            await self._refuse(error, event_id)

    async def close(self) -> None:
        """The client has left: stop all that is done for it."""
        self._closed = True
        if self._response is not None:
            await self._response.abandon()
        tasks = list(self._pending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _handle(self, event: Any) -> None:
        match event:
            case wire.SessionUpdate():
                await self._update(event.session)
            case wire.BufferAppend():
                turns = self._input_audio.append(event.audio)
                # In a thread: a large piece, or a detector that is a model, must not hold up other sessions.
                while (turn := await asyncio.to_thread(next, turns, None)) is not None:
                    await self._turn(turn)
                if self._input_audio.speaking and self._input_audio.seconds >= LONGEST_TURN_S:
                    await self._turn(self._input_audio.end_turn())
            case wire.BufferCommit():
                await self._commit(None)
            case wire.BufferClear():
                self._input_audio.clear()
                await self._emit("input_audio_buffer.cleared")
            case wire.ResponseCreate():
                await self._respond(event.response)
            case wire.ResponseCancel():
                await self._cancel(event.response_id)
            case _:
                await self._change_conversation(event)

    async def _update(self, fields: dict[str, Any]) -> None:
        session = updated(self.session, fields)
        model = None if session.audio.input.transcription is None else session.audio.input.transcription.model
        known = self._tools.transcription.card.id
        if model not in {None, known}:
            param = "session.audio.input.transcription.model"
            raise NotFoundError(
                f"`{param}`: there is no model {model!r} here that can transcribe; {known!r} can",
                param=param,
                code="model_not_found",
            )
        if isinstance(session, wire.ConversationSession):
            self._check_voice(session.audio.output, "session.audio.output.voice")
        self.session = session
        self._input_audio.set_turn_detection(session.audio.input.turn_detection)
        await self._emit("session.updated", session=self._settings())

    def _check_voice(self, output: wire.AudioOutput, param: str) -> None:
        name = output.voice if isinstance(output.voice, str) or output.voice is None else output.voice.id
        try:
            voices.mixture_of(name, self._tools.synthesis.card.voices)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"`{param}`: {error.message}", param=param) from error

    def _settings(self) -> dict[str, Any]:
        return {"id": self.id, "object": "realtime.session", **msgspec.to_builtins(self.session)}

    async def _turn(self, turn: TurnEvent) -> None:
        vad = self.session.audio.input.turn_detection
        assert vad is not None, "turns are only told when they are listened for"
        if turn.kind == "started":
            begin = self._input_audio.trim_to_turn(turn.at)
            at = {"item_id": self._next_item, "audio_start_ms": round(1000 * begin / RATE)}
            await self._emit("input_audio_buffer.speech_started", **at)
            if vad.interrupt_response and self._response is not None:
                await self._response.cancel("turn_detected")
            return
        at = {"item_id": self._next_item, "audio_end_ms": round(1000 * turn.at / RATE)}
        await self._emit("input_audio_buffer.speech_stopped", **at)
        await self._commit(turn.at)
        if isinstance(self.session, wire.ConversationSession) and vad.create_response and self._response is None:
            await self._respond(wire.ResponseParameters())

    async def _commit(self, until: int | None) -> None:
        if len(self._pending) >= MOST_PENDING:
            raise OverloadedError(f"{MOST_PENDING} messages are still being transcribed; commit again in a moment")
        samples = self._input_audio.take(until)
        item = ConversationItem(self._next_item, "user", "input_audio")
        self._next_item = new_id("item")
        if isinstance(self.session, wire.TranscriptionSession) and len(self._conversation.items) >= KEPT_ITEMS:
            del self._conversation.items[0]
        previous = self._conversation.add(item)
        await self._emit("input_audio_buffer.committed", previous_item_id=previous, item_id=item.id)
        await self._emit("conversation.item.added", previous_item_id=previous, item=item.wire())
        await self._emit("conversation.item.done", previous_item_id=previous, item=item.wire())
        task = asyncio.create_task(self._transcribe(item, samples, self.session.audio.input.transcription))
        self._pending[item.id] = task
        task.add_done_callback(lambda _: self._pending.pop(item.id, None))

    async def _transcribe(
        self, item: ConversationItem, samples: Samples, asked: wire.InputTranscription | None
    ) -> None:
        """Write a message down; with `asked`, tell the client, too. Without it the answer still needs the words."""
        place = {"item_id": item.id, "content_index": 0}
        name = "conversation.item.input_audio_transcription"
        transcription = self._tools.transcription
        body = TranscriptionRequest(
            model=transcription.card.id,
            language=asked.language if asked else None,
            prompt=asked.prompt if asked else None,
        )
        text = IncrementalText()
        try:
            data = WAVEncoder(RATE).add(to_int16(samples), last=True)
            listening = await transcription.transcribe(body, data, timestamps=False)
            segments = listening.segments()
            async with aclosing(segments):
                async for segment in segments:
                    delta = text.add(segment.text)
                    item.text = text.text
                    if delta and asked:
                        await self._emit(f"{name}.delta", **place, delta=delta)
        except Exception as error:
            known = translate(error)
            if not isinstance(error, TesseraError):
                logger.exception("a transcription failed")
            if asked:
                told = known.body()
                fields = {"type": told.type, "code": told.code, "message": told.message, "param": told.param}
                await self._emit(f"{name}.failed", **place, error=fields)
            return
        item.text = text.text
        if asked:
            usage = {"type": "duration", "seconds": round(samples.size / RATE, 3)}
            await self._emit(f"{name}.completed", **place, transcript=text.text, usage=usage)

    async def _heard(self) -> None:
        """Wait until all that was said is written down."""
        if self._pending:
            await asyncio.wait(set(self._pending.values()))

    async def _respond(self, asked: wire.ResponseParameters) -> None:
        if not isinstance(self.session, wire.ConversationSession):
            raise InvalidRequestError("a transcription session does not answer", param="type")
        if self._response is not None:
            raise ConflictError(
                f"{self._response.id} is in progress; wait for its response.done or cancel it",
                code="conversation_already_has_active_response",
            )
        if asked.audio is not None:
            self._check_voice(asked.audio.output, "response.audio.output.voice")
        self._response = LiveResponse(
            self.session,
            asked,
            self._conversation,
            self._heard,
            self._emit,
            self._chat_client,
            self._tools.synthesis,
            self._tenant,
        )
        self._response.start(self._answered)

    def _answered(self) -> None:
        self._response = None

    async def _cancel(self, response_id: str | None) -> None:
        if self._response is None or response_id not in {None, self._response.id}:
            raise InvalidRequestError(
                "`response_id`: there is no such response in progress",
                param="response_id",
                code="response_cancel_not_active",
            )
        await self._response.cancel("client_cancelled")

    async def _change_conversation(self, event: Any) -> None:
        conversation = self._conversation
        match event:
            case wire.ItemCreate(item=message):
                text = "".join(part.text for part in message.content)
                kind = "output_text" if message.role == "assistant" else "input_text"
                if any(part.type != kind for part in message.content):
                    raise InvalidRequestError(
                        f"`item.content`: what {message.role!r} says is `{kind}` here; sound is appended to the buffer",
                        param="item.content",
                    )
                item = ConversationItem(message.id or new_id("item"), message.role, kind, text)
                previous = conversation.add(item, event.previous_item_id)
                await self._emit("conversation.item.added", previous_item_id=previous, item=item.wire())
                await self._emit("conversation.item.done", previous_item_id=previous, item=item.wire())
            case wire.ItemDelete():
                conversation.remove(event.item_id)
                await self._emit("conversation.item.deleted", item_id=event.item_id)
            case wire.ItemRetrieve():
                await self._emit("conversation.item.retrieved", item=conversation.find(event.item_id).wire())
            case wire.ItemTruncate():
                conversation.truncate(event.item_id, event.audio_end_ms)
                place = {"item_id": event.item_id, "content_index": 0, "audio_end_ms": event.audio_end_ms}
                await self._emit("conversation.item.truncated", **place)

    async def _refuse(self, error: Exception, event_id: str | None) -> None:
        body = translate(error).body()
        fields = {"type": body.type, "code": body.code, "message": body.message, "param": body.param}
        await self._emit("error", error={**fields, "event_id": event_id})

    async def _emit(self, kind: str, **fields: Any) -> None:
        if self._closed:
            return
        event = msgspec.json.encode({"type": kind, "event_id": new_id("event"), **fields})
        async with self._sending:
            try:
                await self._send(event)
            except OSError:
                self._closed = True  # the client has left; whoever reads from it learns so, too
