"""Turns a request into an audio file: plan the text, have the engine synthesize it, encode samples chunk by chunk.

Implements OpenAI's parameters. Knows nothing about HTTP responses.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from prometheus_client import Histogram

from tessera.engine.client import EngineClient
from tessera.errors import InvalidRequestError, ModelNotFoundError
from tessera.settings.speech import SpeechSettings
from tessera.web.tenant import tenant_var
from tessera.wire.audio import SpeechRequest, SpeechUsage, SpokenWord
from tessera.wire.engine import Audio, Synthesize
from tessera.wire.models import Card
from tessera_speech.synthesis import voices
from tessera_speech.synthesis.audio_files import make_encoder, to_int16
from tessera_speech.text.planners import load_planner
from tessera_speech.text.speech_plan import SpeechPlan, word_times


@dataclass(frozen=True)
class AudioChunk:
    """A part of an audio file.

    Attributes:
        data: bytes of the file; may be empty.
        words: words that begin in this part or after it, with their times.
        usage: of the whole request, with the last chunk only.
    """

    data: bytes
    words: list[SpokenWord]
    usage: SpeechUsage | None


class SynthesisPipeline:
    """Synthesizes texts into audio files.

    Args:
        card: card of the model; its first voice is the default.
        directory: directory of the model; its tokenizer is read from there.
        engine: the engine that has the model.
        settings: limits.
        first_audio: observes the seconds from a request to the first bytes of its audio.
    """

    def __init__(
        self, card: Card, directory: Path, engine: EngineClient, settings: SpeechSettings, first_audio: Histogram
    ) -> None:
        assert card.sample_rate is not None, "the engine completes the cards it sends"
        self.card = card
        self.rate = card.sample_rate
        self._planner = load_planner(directory)
        self._engine = engine
        self._settings = settings
        self._first_audio = first_audio

    def can_speak(self, text: str) -> bool:
        """Whether a plain text has anything that the model can synthesize."""
        try:
            return bool(self._planner.plan(text, markup=False, voice=self.card.voices[0]).tokens)
        except InvalidRequestError:
            return False

    async def synthesize(self, body: SpeechRequest, *, markup: bool = True) -> AsyncGenerator[AudioChunk, None]:
        """The audio file in chunks, as they are synthesized. Closing the iterator cancels. SSML is parsed with
        `markup`.

        Raises:
            InvalidRequestError: the text is too long, malformed or has nothing to speak, or the voice is unknown.
            TesseraError: the error of the engine.
        """
        started = time.perf_counter()
        self._check(body)
        weights = voices.mixture_of(_voice_of(body), self.card.voices)
        voice = self.card.voices[max(weights, key=lambda index: weights[index])]
        plan = self._planner.plan(body.input, markup=markup, voice=voice)
        encoder = make_encoder(body.response_format, self.rate)
        waiting = True
        position = frames = 0
        async with aclosing(self._engine.request(self._message(body, plan, weights))) as answers:
            async for answer in answers:
                assert isinstance(answer, Audio)
                samples = to_int16(np.frombuffer(answer.samples.data, dtype="<f4"))
                sentence_words = plan.words[answer.sentence] if answer.token_samples else []
                words = word_times(sentence_words, answer.token_samples, begin=position, rate=self.rate)
                position += samples.size
                frames += answer.frames
                data = await asyncio.to_thread(encoder.add, samples, last=answer.last)
                if waiting and data:
                    waiting = False
                    self._first_audio.observe(time.perf_counter() - started)
                usage = None
                if answer.last:
                    usage = SpeechUsage(
                        input_tokens=plan.tokens, output_tokens=frames, total_tokens=plan.tokens + frames
                    )
                if data or words or usage:
                    yield AudioChunk(data, words, usage)

    def _check(self, body: SpeechRequest) -> None:
        if body.model != self.card.id:
            raise ModelNotFoundError(
                f"there is no model {body.model!r} here that can speak; {self.card.id!r} can", param="model"
            )
        if body.timestamp_granularities and body.stream_format != "sse":
            raise InvalidRequestError(
                "`timestamp_granularities` needs `stream_format=sse`: an audio file has no place for words",
                param="timestamp_granularities",
            )
        self._planner.check(body)
        limit = self._settings.max_input_characters
        if len(body.input) > limit:
            raise InvalidRequestError(
                f"`input` has {len(body.input)} characters; `max_input_characters` is {limit}; send it in parts",
                param="input",
                code="string_above_max_length",
            )

    def _message(self, body: SpeechRequest, plan: SpeechPlan, weights: dict[int, float]) -> Synthesize:
        return Synthesize(
            request_id=f"speech-{uuid.uuid4().hex}",
            sentences=plan.sentences,
            voices=weights,
            speed=body.speed,
            seed=secrets.randbits(63) if body.seed is None else body.seed,
            tenant=tenant_var.get(),
        )


def _voice_of(body: SpeechRequest) -> str | None:
    return body.voice if isinstance(body.voice, str) or body.voice is None else body.voice.id
