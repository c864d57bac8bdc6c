"""A text that a codec language model synthesizes: its turns one after another, their frames, and windows to decode.

Every sentence is a turn of a conversation. A turn sees the turns before it as far as the context of the model goes,
which keeps the voice the same. Knows nothing about tensors of the model or other requests; see
`tessera.speech.codec.queue`.
"""

from __future__ import annotations

import math

import torch

from tessera.errors import ContextLengthError, InvalidRequestError
from tessera.sequence.request import SequenceRequest
from tessera.speech.codec.csm import CodecLanguageModel, extend_sequence, make_sequence
from tessera.speech.codec.mimi import CodecStream
from tessera.speech.codec.voices import SequenceEntry
from tessera.speech.synthesis.request import MAX_PAUSE_S
from tessera.wire.engine import Array, Audio, Synthesize

FIRST_FRAMES, MAX_FRAMES = 2, 8
"""Frames of the first window of a text, and of the longest; each window has twice as many as the one before."""
LEAST_S, TOKEN_S = 2.0, 1.0
"""Most seconds that a sentence lasts: `LEAST_S`, and `TOKEN_S` more for each of its tokens."""
SPOKEN_TOKEN_S = 1 / 3
"""Seconds that people take to say a token. A sentence is refused if the context has less room for its audio."""


class CodecSpeechRequest:
    """One text that is being synthesized.

    Args:
        message: the text; the token ids of a sentence are a whole turn, see `tessera.tokenizer.spoken_turns`.
        model: the loaded model.
        max_seconds: most seconds of audio in all; the rest of the text is left out.

    Raises:
        InvalidRequestError: no text, tokens or a voice that the model does not have, or what it cannot do.
        ContextLengthError: a sentence that leaves no room for its audio.
    """

    def __init__(self, message: Synthesize, model: CodecLanguageModel, *, max_seconds: float) -> None:
        self.message = message
        self._model = model
        _check(message, model)
        self._voice = model.voice(next(iter(message.voices))).entries
        self._frames_left = max(1, math.floor(max_seconds / model.frame_s))
        assert model.card.context_length is not None, "the model completes its card"
        self._context = model.card.context_length
        longest = max(len(sentence.token_ids) for sentence in message.sentences)
        if longest * SPOKEN_TOKEN_S / model.frame_s > self._room(longest):
            raise ContextLengthError(
                f"a sentence has {longest} tokens, which with its sound and the voice are more than the model's "
                f"context of {self._context} positions; make it shorter",
                param="input",
            )
        self.sequence: SequenceRequest | None = None
        self.drawn = 0
        """Frames drawn so far."""
        self.pending: list[tuple[int, ...]] = []
        """Frames that are drawn and not decoded yet."""
        self._sentence = 0
        self._stream: CodecStream | None = None
        self._in_turn = False
        self._turn: list[SequenceEntry] = []
        self._turn_frames_left = 0
        self._turn_ended = True
        self._window = FIRST_FRAMES

    @property
    def started(self) -> bool:
        """Whether a frame was drawn."""
        return self.drawn > 0

    @property
    def wants_sentence(self) -> bool:
        """Whether the next sentence must begin, or be answered where it is silence."""
        return not self._in_turn and not self.finished

    @property
    def has_unreported_end(self) -> bool:
        """Whether a sentence has ended exactly with a window, so that its end is not answered yet."""
        return self._in_turn and self._turn_ended and not self.pending

    @property
    def finished(self) -> bool:
        """Whether all sentences are answered."""
        return self._sentence == len(self.message.sentences)

    def begin_sentence(self) -> SequenceRequest | None:
        """Begin the next sentence.

        Returns:
            The sequence to queue, if a new one begins; None if the running sequence goes on or the sentence is silence.
        """
        ids: list[SequenceEntry] = list(self.message.sentences[self._sentence].token_ids)
        if not ids:
            return None
        before = self._turn
        self._turn, self._in_turn, self._turn_ended = list(ids), True, False
        wanted = math.floor((LEAST_S + TOKEN_S * len(ids)) / self._model.frame_s)
        self._turn_frames_left = max(1, min(self._frames_left, wanted, self._room(len(ids))))
        spare = self._room(len(ids)) - self._turn_frames_left
        if self.sequence is not None and len(self.sequence.token_ids) - len(self._voice) <= spare:
            extend_sequence(self.sequence, ids)
            return None
        kept = before if len(before) <= spare else []
        self.sequence = make_sequence(
            self.message.request_id,
            [*self._voice, *kept, *ids],
            context=self._context,
            tenant=self.message.tenant,
        )
        return self.sequence

    def add_frame(self, codes: tuple[int, ...]) -> None:
        """Take the next frame."""
        model = self._model
        assert self.sequence is not None
        self.drawn += 1
        self._frames_left -= 1
        self._turn_frames_left -= 1
        is_end_frame = codes == model.end_frame
        # Like Transformers, a turn ends when all codes but the last say so; a frame is left out only when all do.
        self._turn_ended = codes[:-1] == model.end_frame[:-1] or self._turn_frames_left == 0 or self._frames_left == 0
        added: list[SequenceEntry] = [codes]
        if not is_end_frame:
            self.pending.append(codes)
            if self._turn_ended:
                added.append(model.end_frame)
        self._turn += added
        extend_sequence(self.sequence, added)

    @property
    def frames_due(self) -> int:
        """Frames to decode now; 0 while there are too few."""
        if self._turn_ended:
            return len(self.pending)
        return self._window if len(self.pending) >= self._window else 0

    def window(self) -> list[tuple[int, ...]]:
        """The frames to decode now."""
        return self.pending[: self.frames_due]

    @property
    def stream(self) -> CodecStream:
        """The codec's state for this sentence; made when it is first needed, because it is large."""
        if self._stream is None:
            self._stream = self._model.codec.begin()
        return self._stream

    def collect(self, samples: torch.Tensor, frames: int) -> Audio:
        """The answer with the samples of `frames` frames, and with the pause after a sentence that has ended."""
        number, sentence = self._sentence, self.message.sentences[self._sentence]
        del self.pending[:frames]
        if frames:
            self._window = min(2 * self._window, MAX_FRAMES)
        if self._turn_ended and not self.pending:
            self._sentence = number + 1 if self._frames_left else len(self.message.sentences)
            self._stream, self._in_turn = None, False
            samples = torch.cat([samples, torch.zeros(round(sentence.pause_s * self._model.codec.sample_rate))])
        return Audio(
            request_id=self.message.request_id,
            samples=Array(dtype="float32", shape=[samples.numel()], data=samples.numpy().astype("<f4").tobytes()),
            last=self.finished,
            sentence=number,
            frames=frames,
        )

    def _room(self, tokens: int) -> int:
        """Frames that fit after the voice and a sentence of `tokens` tokens, beside the frame that ends it."""
        return self._context - len(self._voice) - tokens - 1


def _check(message: Synthesize, model: CodecLanguageModel) -> None:
    if not message.sentences:
        raise InvalidRequestError("there is nothing to speak", param="input")
    if any(not 0 <= sentence.pause_s <= MAX_PAUSE_S for sentence in message.sentences):
        raise InvalidRequestError(f"a pause may last 0 to {MAX_PAUSE_S:.0f} s", param="input")
    if any(not 0 <= token < model.text_vocabulary for one in message.sentences for token in one.token_ids):
        raise InvalidRequestError(f"token ids must be 0 to {model.text_vocabulary - 1}", param="input")
    if len(message.voices) != 1 or not 0 <= next(iter(message.voices)) < len(model.card.voices):
        raise InvalidRequestError("this model speaks in one of its voices, not in mixtures of them", param="voice")
    if message.speed != 1.0 or any(sentence.rates for sentence in message.sentences):
        raise InvalidRequestError("this model has its own pace: `speed` must be 1", param="speed")
