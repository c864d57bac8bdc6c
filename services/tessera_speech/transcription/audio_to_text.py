"""From a recording to its transcript: decode, find speech, ask the engine, text in segments.

Knows what OpenAI's parameters mean; does not know HTTP responses.
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

from tessera.engine.client import EngineClient
from tessera.errors import InvalidRequestError, ModelNotFoundError, OverloadedError, PayloadTooLargeError
from tessera.settings.speech import SpeechSettings
from tessera.wire.audio import Segment, TranscriptionRequest, TranscriptTextSegment, Word
from tessera.wire.engine import Array, FromEngine, Transcribe, Transcript, TranscriptSegment, TranscriptWord
from tessera.wire.models import Card
from tessera_speech.recordings import decoding as recordings
from tessera_speech.recordings.detectors import SpeechDetector
from tessera_speech.recordings.diarization import SpeakerTurns, known_speakers
from tessera_speech.transcription.transcript_tokenizer import TranscriptTokenizer
from tessera_speech.transcription.window_planning import WindowPlanner

TIMED_FORMATS = ("srt", "vtt", "verbose_json", "diarized_json")
DECODERS = 2
"""Recordings that are decoded at once; each may hold `max_audio_seconds` of samples."""
HELD_RECORDINGS = 8
"""Decoded recordings of the longest kind that may wait in memory, or as many shorter ones as are as long together."""


class TranscriptSource(Protocol):
    """What a transcript comes from: an engine."""

    def request(self, message: Transcribe) -> AsyncGenerator[FromEngine]:
        """The answers to a message, to the last. Closing the iterator early cancels."""
        ...


class TranscriptionPipeline:
    """Recordings to text.

    Args:
        card: of the model.
        directory: of the model; its tokenizer is read from there.
        engine: that has the model.
        settings: limits.
    """

    def __init__(self, card: Card, directory: Path, engine: EngineClient, settings: SpeechSettings) -> None:
        assert card.sample_rate is not None, "the engine completes the cards it sends"
        self.card = card
        self.rate = card.sample_rate
        self._transcripts = TranscriptTokenizer(directory)
        self._engine = engine
        self._settings = settings
        self._decoding = asyncio.Semaphore(DECODERS)
        self._cutter = WindowPlanner(card, self._transcripts, settings)
        # Counts what is in memory for as long as it is, however its request ends.
        self._held: weakref.WeakSet[RunningTranscription] = weakref.WeakSet()

    async def transcribe(
        self, body: TranscriptionRequest, data: bytes, *, timestamps: bool, translate: bool = False
    ) -> RunningTranscription:
        """Decode a recording and say how to follow its transcript.

        Args:
            body: the request's fields.
            data: bytes of the uploaded file.
            timestamps: whether segments inside the model's windows are wanted.
            translate: into English.

        Raises:
            InvalidRequestError, PayloadTooLargeError, UnsupportedMediaError: what is wrong with the file or a field.
            OverloadedError: the recordings that are waiting fill the memory that they may have.
        """
        require_model(self.card, body.model, "transcribe")
        if translate and not self._transcripts.translates:
            raise InvalidRequestError(
                f"the model {self.card.id!r} does not translate; a multilingual Whisper does",
                param="model",
                code="unsupported_parameter",
            )
        language = self._transcripts.language(body.language)
        prompt_ids = self._transcripts.prompt_ids(body.prompt)
        limit = self._settings.max_audio_bytes
        if not data:
            raise InvalidRequestError("`file` is empty", param="file")
        if len(data) > limit:
            raise PayloadTooLargeError(
                f"`file` has {len(data)} bytes; `max_audio_bytes` is {limit}; compress it or send it in parts",
                param="file",
            )
        wanted = self._cutter.wanted(body)
        known = await asyncio.to_thread(known_speakers, body) if wanted.diarized else None
        async with self._decoding:
            samples = await asyncio.to_thread(
                recordings.decode, data, rate=self.rate, max_seconds=self._settings.max_audio_seconds
            )
            cut = await asyncio.to_thread(self._cutter.cut, samples, wanted, known)
        held_s = sum(listening.seconds for listening in self._held)
        if held_s + samples.size / self.rate > HELD_RECORDINGS * self._settings.max_audio_seconds:
            raise OverloadedError(f"{held_s:.0f} s of recordings are already waiting; try again later", retry_after=10)
        message = Transcribe(
            request_id=f"transcript-{uuid.uuid4().hex}",
            audio=Array(dtype="float32", shape=[samples.size], data=samples.tobytes()),
            language=language,
            prompt_ids=prompt_ids,
            temperature=body.temperature,
            timestamps=timestamps,
            seed=secrets.randbits(63),
            windows=cut.windows,
            words=wanted.diarized or "word" in body.timestamp_granularities,
            translate=translate,
        )
        listening = RunningTranscription(message, self._engine, self._transcripts, samples.size / self.rate, cut.turns)
        self._held.add(listening)
        return listening

    def detector(self) -> SpeechDetector:
        """Finds speech in one live stream of sound."""
        return self._cutter.detector()


class RunningTranscription:
    """A transcript in the making.

    Args:
        message: for the engine.
        engine: that has the model, or whoever knows what it has heard.
        transcripts: turns its tokens into text.
        seconds: length of the recording.
        turns: who speaks when, where that was asked for.
    """

    def __init__(
        self,
        message: Transcribe,
        engine: TranscriptSource,
        transcripts: TranscriptTokenizer,
        seconds: float,
        turns: SpeakerTurns | None = None,
    ) -> None:
        self.seconds = seconds
        only = transcripts.languages[0] if len(transcripts.languages) == 1 else ""
        self.language = message.language or only
        self.words: list[Word] = []
        """Of the segments that were heard, where they were asked for."""
        self._message = message
        self._engine = engine
        self._transcripts = transcripts
        self._turns = turns

    async def segments(self) -> AsyncGenerator[Segment, None]:
        """Segments as they are heard; `language` is known with the first. Closing the iterator cancels."""
        number = 0
        async with aclosing(self._heard()) as heard_segments:
            async for heard in heard_segments:
                self.words += [self._word(word) for word in heard.words]
                yield Segment(
                    id=number,
                    seek=round(100 * heard.seek),
                    start=round(heard.start, 3),
                    end=round(heard.end, 3),
                    text=self._transcripts.text(heard.token_ids),
                    tokens=heard.token_ids,
                    temperature=heard.temperature,
                    avg_logprob=round(heard.avg_logprob, 5),
                    compression_ratio=round(heard.compression_ratio, 5),
                    no_speech_prob=round(heard.no_speech_prob, 5),
                )
                number += 1

    async def diarized(self) -> AsyncGenerator[TranscriptTextSegment, None]:
        """What each speaker says without a break, as it is heard. Closing the iterator cancels."""
        assert self._turns is not None
        number = 0
        async with aclosing(self._heard()) as heard_segments:
            async for heard in heard_segments:
                times = [(word.start, word.end) for word in heard.words]
                for speaker, words in self._turns.split_by_speaker(heard.words, times):
                    text = self._transcripts.text([token for word in words for token in word.token_ids])
                    if text.strip():
                        yield TranscriptTextSegment(
                            id=f"seg_{number}",
                            start=round(words[0].start, 3),
                            end=round(words[-1].end, 3),
                            speaker=speaker,
                            text=text,
                        )
                        number += 1

    async def _heard(self) -> AsyncGenerator[TranscriptSegment, None]:
        if self._message.windows == []:
            return
        async with aclosing(self._engine.request(self._message)) as answers:
            async for answer in answers:
                assert isinstance(answer, Transcript)
                self.language = answer.language
                for heard in answer.segments:
                    yield heard

    def _word(self, word: TranscriptWord) -> Word:
        text = self._transcripts.text(word.token_ids).strip()
        return Word(word=text, start=round(word.start, 3), end=round(word.end, 3))


def require_model(card: Card, model: str, purpose: str) -> None:
    """Refuse a model that is not here.

    Raises:
        ModelNotFoundError: always names the one that is.
    """
    if model != card.id:
        raise ModelNotFoundError(f"there is no model {model!r} here that can {purpose}; {card.id!r} can", param="model")
