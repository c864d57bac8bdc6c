"""Text to audio files: from a request to what the engine takes, and its samples back into a file in pieces.

Knows what OpenAI's parameters mean; does not know HTTP responses.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import numpy as np
from prometheus_client import Histogram

from tessera.engine.client import EngineClient
from tessera.errors import InvalidRequestError, ModelNotFoundError
from tessera.settings import SpeechSettings
from tessera.wire.audio import SpeechRequest
from tessera.wire.engine import Audio, Synthesize
from tessera.wire.models import Card
from tessera_speech import voices
from tessera_speech.characters import Characters
from tessera_speech.codecs import encoder, to_int16
from tessera_speech.sentences import split


class Synthesis:
    """Text to audio files.

    Args:
        card: of the model; its first voice is the default.
        directory: of the model; its alphabet is read from there.
        engine: that has the model.
        settings: limits.
        first_audio: observed with the seconds from request to the first bytes.
    """

    def __init__(
        self, card: Card, directory: Path, engine: EngineClient, settings: SpeechSettings, first_audio: Histogram
    ) -> None:
        assert card.sample_rate is not None, "the engine completes the cards it sends"
        self.card = card
        self.rate = card.sample_rate
        self._characters = Characters(directory)
        self._engine = engine
        self._settings = settings
        self._first_audio = first_audio

    async def speak(self, body: SpeechRequest) -> AsyncGenerator[bytes, None]:
        """The bytes of the asked-for file, sentence by sentence. Closing the iterator cancels.

        Raises:
            InvalidRequestError: a text that is too long or has nothing to speak, an unknown voice.
            TesseraError: what the engine says.
        """
        started = time.perf_counter()
        message = self._message(body)
        made = encoder(body.response_format, self.rate)
        waiting = True
        async with aclosing(self._engine.request(message)) as answers:
            async for answer in answers:
                assert isinstance(answer, Audio)
                samples = to_int16(np.frombuffer(answer.samples.data, dtype="<f4"))
                data = await asyncio.to_thread(made.add, samples, last=answer.last)
                if waiting and data:
                    waiting = False
                    self._first_audio.observe(time.perf_counter() - started)
                if data:
                    yield data

    def _message(self, body: SpeechRequest) -> Synthesize:
        if body.model != self.card.id:
            raise ModelNotFoundError(
                f"there is no model {body.model!r} here that can speak; {self.card.id!r} can", param="model"
            )
        limit = self._settings.max_input_characters
        if len(body.input) > limit:
            raise InvalidRequestError(
                f"`input` has {len(body.input)} characters; `max_input_characters` is {limit}; send it in parts",
                param="input",
                code="string_above_max_length",
            )
        text = self._characters.readable(body.input)
        sentences = [tokens for sentence in split(text) if (tokens := self._characters.encode(sentence))]
        if not sentences:
            raise InvalidRequestError("`input` has no character that the model can speak", param="input")
        voice = body.voice if isinstance(body.voice, str) or body.voice is None else body.voice.id
        return Synthesize(
            request_id=f"speech-{uuid.uuid4().hex}",
            sentences=sentences,
            voice=voices.index_of(voice, self.card.voices),
            speed=body.speed,
            seed=secrets.randbits(63) if body.seed is None else body.seed,
        )
