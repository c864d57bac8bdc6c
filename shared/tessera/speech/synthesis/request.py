"""A text being synthesized: one request of the speech engine, window by window.

Sentences are synthesized one after another. A unit of work is a window of a sentence's frames, so that the first audio
comes early, a cancel takes effect soon, and windows of several requests can be decoded together. Every request has
random numbers of its own. Knows nothing about the order of requests (see `tessera.speech.engine`) or the insides of
models (see `tessera.speech.synthesis.vits`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tessera.errors import InvalidRequestError
from tessera.speech.synthesis.random_stream import RandomStream
from tessera.speech.synthesis.vits import Latents, Synthesizer
from tessera.speech.synthesis.vocoder_windows import VocoderProgress
from tessera.wire.engine import Array, Audio, Synthesize

MAX_PAUSE_S = 60.0
"""Most seconds of silence after one sentence."""


class SynthesisRequest:
    """A text being synthesized.

    Args:
        message: the text.
        synthesizer: the loaded model.

    Raises:
        InvalidRequestError: there is no sentence, or a pause is too long.
    """

    def __init__(self, message: Synthesize, synthesizer: Synthesizer) -> None:
        if not message.sentences:
            raise InvalidRequestError("there is nothing to speak", param="input")
        if any(not 0 <= sentence.pause_s <= MAX_PAUSE_S for sentence in message.sentences):
            raise InvalidRequestError(f"a pause may last 0 to {MAX_PAUSE_S:.0f} s", param="input")
        self.message = message
        self.synthesizer = synthesizer
        self.random = RandomStream(message.seed, synthesizer.device)
        self.started = False
        """Whether a window has been synthesized."""
        self._synthesized_s = 0.0
        self._sentence = 0
        self._latents: Latents | None = None
        self._progress: VocoderProgress | None = None

    def prepare(self) -> int:
        """Compute the text side of the next sentence if a new one begins. Returns the frames of the next window.

        Raises:
            InvalidRequestError: a token or voice that the model does not have.
        """
        sentence = self.message.sentences[self._sentence]
        if self._progress is None and sentence.token_ids:
            self._latents = self.synthesizer.latents(
                sentence.token_ids,
                voices=self.message.voices,
                speed=self.message.speed,
                random=self.random,
                rates=sentence.rates,
            )
            self._progress = self.synthesizer.vocoder_progress(self._latents, ahead_s=self._synthesized_s)
        if self._progress is None:
            return 0
        window = self._progress.window
        return int(window.stop - window.start)

    def window(self) -> tuple[Latents, slice] | None:
        """The window to decode next, after `prepare`; None when only silence is left of a sentence."""
        if self._latents is None or self._progress is None:
            return None
        return self._latents, self._progress.window

    def collect(self, decoded: torch.Tensor) -> tuple[Audio, float]:
        """The answer with the samples of the window, and its length in seconds."""
        synthesizer, sentence = self.synthesizer, self.message.sentences[self._sentence]
        number, token_samples, frames = self._sentence, [], 0
        samples = decoded
        if self._latents is not None and self._progress is not None:
            if self._progress.done == 0:
                token_samples = [frames * synthesizer.hop for frames in self._latents.token_frames]
            fresh = self._progress.advance()
            frames = fresh.stop - fresh.start
            samples = decoded[fresh.start * synthesizer.hop : fresh.stop * synthesizer.hop]
        self.started = True
        if self._progress is None or self._progress.finished:
            samples = torch.cat([samples, torch.zeros(round(sentence.pause_s * synthesizer.sample_rate))])
            self._sentence, self._latents, self._progress = number + 1, None, None
        answer = Audio(
            request_id=self.message.request_id,
            samples=Array(dtype="float32", shape=[samples.numel()], data=samples.numpy().astype("<f4").tobytes()),
            last=self._sentence == len(self.message.sentences),
            sentence=number,
            token_samples=token_samples,
            frames=frames,
        )
        seconds = samples.numel() / synthesizer.sample_rate
        self._synthesized_s += seconds
        return answer, seconds


def advance_together(requests: Sequence[SynthesisRequest]) -> list[tuple[Audio, float]]:
    """Synthesize the next window of each request, in their order; they are prepared and the windows have one length."""
    windows = [window for request in requests if (window := request.window()) is not None]
    decoded = iter(requests[0].synthesizer.decode(windows) if windows else ())
    return [request.collect(next(decoded) if request.window() else torch.zeros(0)) for request in requests]
