"""A text being spoken: one request of the speech engine, unit by unit.

Does not know turns or other requests, nor models' insides: see `tessera.engine.speech` and
`tessera.models.speech_synthesis`.
"""

from __future__ import annotations

from tessera.errors import InvalidRequestError
from tessera.models.speech_random import RandomStream
from tessera.models.speech_synthesis import Synthesizer
from tessera.wire.engine import Array, Audio, Synthesize


class SynthesisRequest:
    """A text being spoken, sentence by sentence."""

    def __init__(self, message: Synthesize, synthesizer: Synthesizer) -> None:
        if not message.sentences:
            raise InvalidRequestError("there is nothing to speak", param="input")
        self.message = message
        self.synthesizer = synthesizer
        self.random = RandomStream(message.seed, synthesizer.device)
        self.spoken = 0

    @property
    def started(self) -> bool:
        """Whether a unit has been done."""
        return self.spoken > 0

    def advance(self) -> tuple[Audio, float]:
        """Speak the next sentence. The second value is its length in seconds."""
        message = self.message
        samples = self.synthesizer.speak(
            message.sentences[self.spoken], voice=message.voice, speed=message.speed, random=self.random
        )
        self.spoken += 1
        array = Array(dtype="float32", shape=[samples.numel()], data=samples.numpy().astype("<f4").tobytes())
        answer = Audio(request_id=message.request_id, samples=array, last=self.spoken == len(message.sentences))
        return answer, samples.numel() / self.synthesizer.sample_rate
