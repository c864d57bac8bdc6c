"""A text that a codec language model speaks: its turns one after another, their frames, and windows of them to decode.

Every sentence is a turn, and later ones see earlier ones, as in a conversation, as far as the model's context goes: so
a voice stays the same. Does not know tensors of the model, nor other requests; see `tessera.speech.codec.queue`.
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

FIRST_FRAMES, MOST_FRAMES = 2, 8
"""Of the first window of a text, and of the longest: each next one has twice as many."""
LEAST_S, TOKEN_S = 2.0, 1.0
"""Seconds that a sentence may last at most: some, and more for each of its tokens."""
SPOKEN_TOKEN_S = 1 / 3
"""What people take for a token; a sentence for whose sound there is not so much room is refused."""


class CodecSpeechRequest:
    """One request.

    Args:
        message: what is to be spoken; token ids are whole turns, see `tessera.tokenizer.spoken_turns`.
        model: what it is spoken with.
        max_seconds: of audio in all; what would be said later is not.

    Raises:
        InvalidRequestError: nothing to speak, tokens or a voice that the model does not have, what it cannot do.
        ContextLengthError: a sentence that leaves no room for its sound.
    """

    def __init__(self, message: Synthesize, model: CodecLanguageModel, *, max_seconds: float) -> None:
        self.message = message
        self._model = model
        _check(message, model)
        self._voice = model.voice(next(iter(message.voices))).entries
        self._left = max(1, math.floor(max_seconds / model.frame_s))
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
        """Frames that were drawn for it."""
        self.pending: list[tuple[int, ...]] = []
        """Frames that are not decoded yet."""
        self._sentence = 0
        self._stream: CodecStream | None = None
        self._in_turn = False
        self._turn: list[SequenceEntry] = []
        self._turn_left = 0
        self._turn_ended = True
        self._window = FIRST_FRAMES

    @property
    def started(self) -> bool:
        """Whether a frame was made."""
        return self.drawn > 0

    @property
    def wants_turn(self) -> bool:
        """Whether the next sentence is to be begun, or told where it is silence."""
        return not self._in_turn and not self.finished

    @property
    def untold(self) -> bool:
        """Whether a sentence has ended where a window did, and nobody knows."""
        return self._in_turn and self._turn_ended and not self.pending

    @property
    def finished(self) -> bool:
        """Whether all was told."""
        return self._sentence == len(self.message.sentences)

    def begin(self) -> SequenceRequest | None:
        """Begin a sentence.

        Returns:
            The sequence to queue, where a new one begins; None where the one that runs goes on, or the sentence is
            silence.
        """
        ids: list[SequenceEntry] = list(self.message.sentences[self._sentence].token_ids)
        if not ids:
            return None
        before = self._turn
        self._turn, self._in_turn, self._turn_ended = list(ids), True, False
        wanted = math.floor((LEAST_S + TOKEN_S * len(ids)) / self._model.frame_s)
        self._turn_left = max(1, min(self._left, wanted, self._room(len(ids))))
        spare = self._room(len(ids)) - self._turn_left
        if self.sequence is not None and len(self.sequence.token_ids) - len(self._voice) <= spare:
            extend_sequence(self.sequence, ids)
            return None
        kept = before if len(before) <= spare else []
        self.sequence = make_sequence(self.message.request_id, [*self._voice, *kept, *ids], context=self._context)
        return self.sequence

    def take(self, codes: tuple[int, ...]) -> None:
        """A frame was made."""
        model = self._model
        assert self.sequence is not None
        self.drawn += 1
        self._left -= 1
        self._turn_left -= 1
        whole = codes == model.end_frame
        # As Transformers ends: by all but the last code; what is heard is cut only where all are.
        self._turn_ended = codes[:-1] == model.end_frame[:-1] or self._turn_left == 0 or self._left == 0
        added: list[SequenceEntry] = [codes]
        if not whole:
            self.pending.append(codes)
            if self._turn_ended:
                added.append(model.end_frame)
        self._turn += added
        extend_sequence(self.sequence, added)

    @property
    def due(self) -> int:
        """Frames to decode now; 0: wait for more, or there are none."""
        if self._turn_ended:
            return len(self.pending)
        return self._window if len(self.pending) >= self._window else 0

    def window(self) -> list[tuple[int, ...]]:
        """The frames to decode now."""
        return self.pending[: self.due]

    @property
    def stream(self) -> CodecStream:
        """The codec's state of this sentence; made when it is first needed, because it is large."""
        if self._stream is None:
            self._stream = self._model.codec.begin()
        return self._stream

    def tell(self, samples: torch.Tensor, frames: int) -> Audio:
        """What was decoded of `frames` frames, and the silence behind a sentence that has ended."""
        number, sentence = self._sentence, self.message.sentences[self._sentence]
        del self.pending[:frames]
        if frames:
            self._window = min(2 * self._window, MOST_FRAMES)
        if self._turn_ended and not self.pending:
            self._sentence = number + 1 if self._left else len(self.message.sentences)
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
        """Frames for which there is room behind the voice and a sentence of so many tokens; one more ends it."""
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
