"""A live session: client events in, server events out, over any transport.

An error in an event of the client becomes an `error` event that names the event and the field; the session goes on as
it was. Knows nothing about WebSockets, models or HTTP.
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
from tessera_speech.live.input_audio import MAX_TURN_S, InputAudioBuffer
from tessera_speech.live.response import LiveResponse
from tessera_speech.live.settings import default_session, update_session
from tessera_speech.live.turn_detection import TurnEvent
from tessera_speech.pipeline import SpeechTools
from tessera_speech.recordings.detectors import RATE, Samples, SpeechDetector
from tessera_speech.synthesis import voices
from tessera_speech.synthesis.audio_files import WAVEncoder, to_int16
from tessera_speech.transcription.transcript_tokenizer import IncrementalText

logger = logging.getLogger(__name__)

MAX_EVENT_BYTES = 15 * 1024 * 1024
"""Most bytes of one event, OpenAI's limit."""
MAX_PENDING = 8
"""Most messages that wait for their transcripts."""
MAX_TRANSCRIPTION_ITEMS = 64
"""Most items of a session that only transcribes; older ones are dropped."""


class _Head(msgspec.Struct, frozen=True):
    type: str
    event_id: Any = None


class LiveSession:
    """The session of one client.

    Args:
        tools: synthesis and transcription.
        chat_client: client of the language model.
        send: sends the JSON of an event; returns when there is room for more; raises OSError if the client has left.
        detector: makes a detector of speech for one stream.
        session: settings to begin with; see `default_session`.
        tenant: tenant of the session.
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
        """Send the first event."""
        await self._emit("session.created", session=self._settings())

    async def receive(self, frame: bytes | str) -> None:
        """Handle one event of the client."""
        data = frame.encode("utf-8", "surrogatepass") if isinstance(frame, str) else frame
        event_id: str | None = None
        try:
            if len(data) > MAX_EVENT_BYTES:
                raise InvalidRequestError(
                    f"an event may have {MAX_EVENT_BYTES} bytes, this one has {len(data)}; send smaller pieces",
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
        """Stop all work for a client that has left."""
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
                # In a thread: a large append, or a detector with a model, must not delay other sessions.
                while (turn := await asyncio.to_thread(next, turns, None)) is not None:
                    await self._turn(turn)
                if self._input_audio.speaking and self._input_audio.seconds >= MAX_TURN_S:
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
        session = update_session(self.session, fields)
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
        assert vad is not None, "turns are detected only if the session asks for them"
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
        if len(self._pending) >= MAX_PENDING:
            raise OverloadedError(f"{MAX_PENDING} messages are still being transcribed; commit again in a moment")
        samples = self._input_audio.take(until)
        item = ConversationItem(self._next_item, "user", "input_audio")
        self._next_item = new_id("item")
        if (
            isinstance(self.session, wire.TranscriptionSession)
            and len(self._conversation.items) >= MAX_TRANSCRIPTION_ITEMS
        ):
            del self._conversation.items[0]
        previous = self._conversation.add(item)
        await self._emit("input_audio_buffer.committed", previous_item_id=previous, item_id=item.id)
        await self._emit("conversation.item.added", previous_item_id=previous, item=item.wire())
        await self._emit("conversation.item.done", previous_item_id=previous, item=item.wire())
        task = asyncio.create_task(self._transcribe(item, samples, self.session.audio.input.transcription))
        self._pending[item.id] = task
        task.add_done_callback(lambda _: self._pending.pop(item.id, None))

    async def _transcribe(
        self, item: ConversationItem, samples: Samples, parameters: wire.InputTranscription | None
    ) -> None:
        """Transcribe a message. With `parameters` the client gets events; a response needs the text in any case."""
        place = {"item_id": item.id, "content_index": 0}
        name = "conversation.item.input_audio_transcription"
        transcription = self._tools.transcription
        body = TranscriptionRequest(
            model=transcription.card.id,
            language=parameters.language if parameters else None,
            prompt=parameters.prompt if parameters else None,
        )
        text = IncrementalText()
        try:
            data = WAVEncoder(RATE).add(to_int16(samples), last=True)
            running = await transcription.transcribe(body, data, timestamps=False)
            segments = running.segments()
            async with aclosing(segments):
                async for segment in segments:
                    delta = text.add(segment.text)
                    item.text = text.text
                    if delta and parameters:
                        await self._emit(f"{name}.delta", **place, delta=delta)
        except Exception as error:
            known = translate(error)
            if not isinstance(error, TesseraError):
                logger.exception("a transcription failed")
            if parameters:
                details = known.body()
                fields = {
                    "type": details.type,
                    "code": details.code,
                    "message": details.message,
                    "param": details.param,
                }
                await self._emit(f"{name}.failed", **place, error=fields)
            return
        item.text = text.text
        if parameters:
            usage = {"type": "duration", "seconds": round(samples.size / RATE, 3)}
            await self._emit(f"{name}.completed", **place, transcript=text.text, usage=usage)

    async def _wait_for_transcripts(self) -> None:
        """Wait until all messages are transcribed."""
        if self._pending:
            await asyncio.wait(set(self._pending.values()))

    async def _respond(self, parameters: wire.ResponseParameters) -> None:
        if not isinstance(self.session, wire.ConversationSession):
            raise InvalidRequestError("a transcription session does not answer", param="type")
        if self._response is not None:
            raise ConflictError(
                f"{self._response.id} is in progress; wait for its response.done or cancel it",
                code="conversation_already_has_active_response",
            )
        if parameters.audio is not None:
            self._check_voice(parameters.audio.output, "response.audio.output.voice")
        self._response = LiveResponse(
            self.session,
            parameters,
            self._conversation,
            self._wait_for_transcripts,
            self._emit,
            self._chat_client,
            self._tools.synthesis,
            self._tenant,
        )
        self._response.start(self._response_ended)

    def _response_ended(self) -> None:
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
