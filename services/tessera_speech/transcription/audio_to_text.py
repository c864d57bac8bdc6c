"""Transcribes a recording: decode it, plan its windows, have the engine transcribe them, turn tokens into text.

Implements OpenAI's parameters. Knows nothing about HTTP responses.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
import weakref
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

import msgspec

from tessera.engine.client import EngineClient
from tessera.engine.fair_gate import FairGate
from tessera.engine.waits import WaitMeter
from tessera.errors import InvalidRequestError, ModelNotFoundError, OverloadedError, PayloadTooLargeError
from tessera.settings.speech import SpeechSettings
from tessera.web.tenant import tenant_var
from tessera.wire.audio import Segment, TranscriptionRequest, TranscriptTextSegment, Word
from tessera.wire.engine import Array, FromEngine, Transcribe, Transcript, TranscriptSegment, TranscriptWord
from tessera.wire.models import Card
from tessera_speech.recordings import decoding as recordings
from tessera_speech.recordings.detectors import SpeechDetector
from tessera_speech.recordings.diarization import SpeakerTurns, known_speakers
from tessera_speech.transcription.transcript_tokenizer import TranscriptTokenizer
from tessera_speech.transcription.window_planning import WindowPlanner

TIMED_FORMATS = ("srt", "vtt", "verbose_json", "diarized_json")
"""Formats of a response that need segments with times."""
MAX_DECODERS = 2
"""Recordings that are decoded at once at most; each may take `max_audio_seconds` of samples."""
MAX_HELD_RECORDINGS = 8
"""Decoded recordings of `max_audio_seconds` that may wait in memory, or more that are as long together."""


class TranscriptSource(Protocol):
    """Answers a message with its transcript: an engine, or the checkpoint of a job."""

    def request(self, message: Transcribe) -> AsyncGenerator[FromEngine]:
        """All answers to a message. Closing the iterator early cancels."""
        ...


class TranscriptionPipeline:
    """Transcribes recordings.

    Args:
        card: card of the model.
        directory: directory of the model; its tokenizer is read from there.
        engine: the engine that has the model.
        settings: limits.
    """

    def __init__(self, card: Card, directory: Path, engine: EngineClient, settings: SpeechSettings) -> None:
        assert card.sample_rate is not None, "the engine completes the cards it sends"
        self.card = card
        self.rate = card.sample_rate
        self._tokenizer = TranscriptTokenizer(directory)
        self._engine = engine
        self._settings = settings
        self._decoding = FairGate(MAX_DECODERS, None)  # the memory of uploads is bounded before
        self._planner = WindowPlanner(card, self._tokenizer, settings)
        # Weak: what nobody transcribes counts for as long as it is in memory, however its request ends.
        self._held: weakref.WeakSet[RunningTranscription] = weakref.WeakSet()
        self._meter = WaitMeter()

    async def transcribe(
        self, body: TranscriptionRequest, data: bytes, *, timestamps: bool, translate: bool = False
    ) -> RunningTranscription:
        """Decode a recording and plan its windows. The engine begins when the result is iterated.

        Args:
            body: fields of the request.
            data: bytes of the uploaded file.
            timestamps: whether segments inside the windows of the model are wanted.
            translate: whether the transcript is to be English.

        Raises:
            InvalidRequestError, PayloadTooLargeError, UnsupportedMediaError: the file or a field is wrong.
            OverloadedError: recordings that wait fill the memory that they may take.
        """
        require_model(self.card, body.model, "transcribe")
        if translate and not self._tokenizer.translates:
            raise InvalidRequestError(
                f"the model {self.card.id!r} does not translate; a multilingual Whisper does",
                param="model",
                code="unsupported_parameter",
            )
        language = self._tokenizer.language(body.language)
        prompt_ids = self._tokenizer.prompt_ids(body.prompt)
        limit = self._settings.max_audio_bytes
        if not data:
            raise InvalidRequestError("`file` is empty", param="file")
        if len(data) > limit:
            raise PayloadTooLargeError(
                f"`file` has {len(data)} bytes; `max_audio_bytes` is {limit}; compress it or send it in parts",
                param="file",
            )
        options = self._planner.options(body)
        known = await asyncio.to_thread(known_speakers, body) if options.diarized else None
        tenant = tenant_var.get()
        async with self._decoding.turn(tenant):
            samples = await asyncio.to_thread(
                recordings.decode, data, rate=self.rate, max_seconds=self._settings.max_audio_seconds
            )
            plan = await asyncio.to_thread(self._planner.plan, samples, options, known)
        held = [running for running in self._held if running.has_audio]
        held_s = sum(running.seconds for running in held)
        held_most = MAX_HELD_RECORDINGS
        if not any(running.tenant == tenant for running in held):
            held_most += 1  # nobody's recordings keep the first one of another key out
        if held_s + samples.size / self.rate > held_most * self._settings.max_audio_seconds:
            wait_s = self._meter.wait(held_s)
            raise OverloadedError(
                f"{held_s:.0f} s of recordings are already waiting; try again in about {wait_s:.0f} s",
                retry_after=wait_s,
            )
        message = Transcribe(
            request_id=f"transcript-{uuid.uuid4().hex}",
            audio=Array(dtype="float32", shape=[samples.size], data=samples.tobytes()),
            language=language,
            prompt_ids=prompt_ids,
            temperature=body.temperature,
            timestamps=timestamps,
            seed=secrets.randbits(63),
            windows=plan.windows,
            words=options.diarized or "word" in body.timestamp_granularities,
            translate=translate,
            tenant=tenant,
        )
        running = RunningTranscription(message, self._engine, self._tokenizer, samples.size / self.rate, plan.turns)
        self._held.add(running)
        self._meter.came(running.seconds, held_s + running.seconds)
        return running

    def detector(self) -> SpeechDetector:
        """A detector of speech for one live stream of audio."""
        return self._planner.detector()


class RunningTranscription:
    """A transcript in progress.

    Args:
        message: the message to the engine.
        engine: answers the message.
        tokenizer: turns tokens into text.
        seconds: length of the recording.
        turns: who speaks when, where that was asked for.
    """

    def __init__(
        self,
        message: Transcribe,
        engine: TranscriptSource,
        tokenizer: TranscriptTokenizer,
        seconds: float,
        turns: SpeakerTurns | None = None,
    ) -> None:
        self.seconds = seconds
        self.tenant = message.tenant
        only = tokenizer.languages[0] if len(tokenizer.languages) == 1 else ""
        self.language = message.language or only
        self.words: list[Word] = []
        """Words of the segments so far, where they were asked for."""
        self.has_audio = True
        """Whether it holds the recording: until it has been transcribed, or its request has ended meanwhile."""
        self._message = message
        self._engine = engine
        self._tokenizer = tokenizer
        self._turns = turns

    async def segments(self) -> AsyncGenerator[Segment, None]:
        """Segments as they are transcribed; `language` is known with the first. Closing the iterator cancels."""
        number = 0
        async with aclosing(self._engine_segments()) as found_segments:
            async for found in found_segments:
                self.words += [self._word(word) for word in found.words]
                yield Segment(
                    id=number,
                    seek=round(100 * found.seek),
                    start=round(found.start, 3),
                    end=round(found.end, 3),
                    text=self._tokenizer.text(found.token_ids),
                    tokens=found.token_ids,
                    temperature=found.temperature,
                    avg_logprob=round(found.avg_logprob, 5),
                    compression_ratio=round(found.compression_ratio, 5),
                    no_speech_prob=round(found.no_speech_prob, 5),
                )
                number += 1

    async def diarized(self) -> AsyncGenerator[TranscriptTextSegment, None]:
        """The uninterrupted speech of each speaker, as it is transcribed. Closing the iterator cancels."""
        assert self._turns is not None
        number = 0
        async with aclosing(self._engine_segments()) as found_segments:
            async for found in found_segments:
                times = [(word.start, word.end) for word in found.words]
                for speaker, words in self._turns.split_by_speaker(found.words, times):
                    text = self._tokenizer.text([token for word in words for token in word.token_ids])
                    if text.strip():
                        yield TranscriptTextSegment(
                            id=f"seg_{number}",
                            start=round(words[0].start, 3),
                            end=round(words[-1].end, 3),
                            speaker=speaker,
                            text=text,
                        )
                        number += 1

    async def _engine_segments(self) -> AsyncGenerator[TranscriptSegment, None]:
        try:
            if self._message.windows == []:
                return
            async with aclosing(self._engine.request(self._message)) as answers:
                async for answer in answers:
                    assert isinstance(answer, Transcript)
                    self.language = answer.language
                    for found in answer.segments:
                        yield found
        finally:
            # This object may be part of a cycle, which is not collected soon.
            self._message = msgspec.structs.replace(self._message, audio=Array(dtype="float32", shape=[0], data=b""))
            self.has_audio = False

    def _word(self, word: TranscriptWord) -> Word:
        text = self._tokenizer.text(word.token_ids).strip()
        return Word(word=text, start=round(word.start, 3), end=round(word.end, 3))


def require_model(card: Card, model: str, purpose: str) -> None:
    """Refuse a model that is not served here.

    Raises:
        ModelNotFoundError: names the model that is.
    """
    if model != card.id:
        raise ModelNotFoundError(f"there is no model {model!r} here that can {purpose}; {card.id!r} can", param="model")
