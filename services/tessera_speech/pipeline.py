"""From request to engine and back: text to an audio file in pieces, a recording to a transcript in segments.

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

from prometheus_client import Histogram

from tessera.engine.client import EngineClient
from tessera.errors import InvalidRequestError, ModelNotFoundError, OverloadedError, PayloadTooLargeError
from tessera.settings import SpeechSettings
from tessera.wire.audio import Segment, TranscriptionRequest, Word
from tessera.wire.engine import Array, Ready, Transcribe, Transcript, TranscriptWord
from tessera.wire.models import Card
from tessera_speech import recordings
from tessera_speech.synthesis import Synthesis
from tessera_speech.transcripts import Transcripts

DECODERS = 2
"""Recordings that are decoded at once; each may hold `max_audio_seconds` of samples."""
HELD_RECORDINGS = 8
"""Decoded recordings of the longest kind that may wait in memory, or as many shorter ones as are as long together."""


class Transcription:
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
        self._transcripts = Transcripts(directory)
        self._engine = engine
        self._settings = settings
        self._decoding = asyncio.Semaphore(DECODERS)
        # Counts what is in memory for as long as it is, however its request ends.
        self._held: weakref.WeakSet[Listening] = weakref.WeakSet()

    async def listen(self, body: TranscriptionRequest, data: bytes, *, timestamps: bool) -> Listening:
        """Decode a recording and say how to follow its transcript.

        Args:
            body: the request's fields.
            data: bytes of the uploaded file.
            timestamps: whether segments inside the model's windows are wanted.

        Raises:
            InvalidRequestError, PayloadTooLargeError, UnsupportedMediaError: what is wrong with the file or a field.
            OverloadedError: the recordings that are waiting fill the memory that they may have.
        """
        _require(self.card, body.model, "transcribe")
        if "word" in body.timestamp_granularities and not self._transcripts.has_words:
            raise InvalidRequestError(
                "`timestamp_granularities` has `word`: times of words are not made by this model; "
                "`response_format=verbose_json` has those of segments",
                param="timestamp_granularities",
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
        async with self._decoding:
            samples = await asyncio.to_thread(
                recordings.decode, data, rate=self.rate, max_seconds=self._settings.max_audio_seconds
            )
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
        )
        listening = Listening(message, self._engine, self._transcripts, samples.size / self.rate)
        self._held.add(listening)
        return listening


class Listening:
    """A transcript in the making.

    Args:
        message: for the engine.
        engine: that has the model.
        transcripts: turns its tokens into text.
        seconds: length of the recording.
    """

    def __init__(self, message: Transcribe, engine: EngineClient, transcripts: Transcripts, seconds: float) -> None:
        self.seconds = seconds
        self.language = message.language or ""
        self.words: list[Word] = []
        """Of the segments that were heard, where timestamps were asked for and the model knows them."""
        self._message = message
        self._engine = engine
        self._transcripts = transcripts

    async def segments(self) -> AsyncGenerator[Segment, None]:
        """Segments as they are heard; `language` is known with the first. Closing the iterator cancels."""
        number = 0
        async with aclosing(self._engine.request(self._message)) as answers:
            async for answer in answers:
                assert isinstance(answer, Transcript)
                self.language = answer.language
                for heard in answer.segments:
                    text = self._transcripts.text(heard.token_ids)
                    self.words += [self._word(word) for word in heard.words]
                    yield Segment(id=number, start=round(heard.start, 3), end=round(heard.end, 3), text=text)
                    number += 1

    def _word(self, word: TranscriptWord) -> Word:
        text = self._transcripts.text(word.token_ids).strip()
        return Word(word=text, start=round(word.start, 3), end=round(word.end, 3))


class SpeechTools:
    """Both directions, made once the engine has loaded."""

    def __init__(self, ready: Ready, engine: EngineClient, settings: SpeechSettings, first_audio: Histogram) -> None:
        spoken, heard = ready.cards
        speech_directory, transcription_directory = map(Path, ready.directories)
        self.synthesis = Synthesis(spoken, speech_directory, engine, settings, first_audio)
        self.transcription = Transcription(heard, transcription_directory, engine, settings)


def _require(card: Card, model: str, purpose: str) -> None:
    if model != card.id:
        raise ModelNotFoundError(f"there is no model {model!r} here that can {purpose}; {card.id!r} can", param="model")
