"""The interface of a transcriber: windows of samples in, text tokens with times out, many at a time.

A long recording is transcribed window by window. Where its windows are planned beforehand (speech was found in it) they
are independent of each other; where they are not, the transcript of a window says how far to move on, so that the next
one begins where no word is cut. Knows nothing about requests, queues or text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from tessera.wire.engine import TranscriptSegment
from tessera.wire.models import Card

ENGLISH = "en"


@dataclass(frozen=True)
class WindowRequest:
    """A window to transcribe, and how.

    Attributes:
        samples: float32 [samples], at most a window of the model.
        rate: samples per second.
        language: a code that the model knows, or English; None has it detected.
        prompt_ids: tokens of the client's prompt, beginning with the token that starts a prompt; may be empty.
        context: tokens of the transcript before this window. The model gets as much of prompt and context as fits.
        temperature: 0 picks the likeliest token, and tries higher temperatures where the result is poor.
        timestamps: whether segments inside the window are wanted.
        words: whether times of words are wanted.
        translate: whether the transcript is to be English whatever the language is.
        seed: seed of what is drawn.
        open_end: whether the window may end inside a word, so that its transcript says where the next one begins.
    """

    samples: np.ndarray[Any, Any]
    rate: int
    language: str | None = None
    prompt_ids: tuple[int, ...] = ()
    context: tuple[int, ...] = ()
    temperature: float = 0.0
    timestamps: bool = False
    words: bool = False
    translate: bool = False
    seed: int = 0
    open_end: bool = False

    @property
    def seconds(self) -> float:
        """Length of the samples in seconds."""
        return len(self.samples) / self.rate


@dataclass(frozen=True)
class WindowTranscript:
    """The transcript of one window.

    Attributes:
        segments: with text tokens only; times are seconds from the beginning of the window.
        advance_s: seconds from the beginning of the window at which the next one begins.
        language: code of the language.
        context: tokens for `WindowRequest.context` of the next window; empty where they may be invented.
    """

    segments: list[TranscriptSegment]
    advance_s: float
    language: str = ENGLISH
    context: list[int] = field(default_factory=list)


class WindowBatch(Protocol):
    """Windows in flight together. A key identifies a window to the caller."""

    @property
    def room(self) -> int:
        """Number of windows that it takes now."""
        ...

    def add(self, key: int, window: WindowRequest) -> None:
        """Begin a window; there must be room."""
        ...

    def drop(self, key: int) -> None:
        """Forget a window at once; an unknown key is no error."""
        ...

    def step(self) -> dict[int, WindowTranscript]:
        """Do the next unit of work for all windows. Returns what has ended. It is unusable after an exception."""
        ...

    def languages(self) -> dict[int, str]:
        """Languages of the windows in flight, as far as they are known."""
        ...


class Transcriber(Protocol):
    """A loaded transcription model."""

    model: Any
    card: Card
    """The model's card, completed with what the configuration says."""
    device: torch.device

    @property
    def sample_rate(self) -> int:
        """Samples per second of the audio that it takes."""
        ...

    @property
    def window_s(self) -> float:
        """Length of a window, in seconds."""
        ...

    @property
    def languages(self) -> frozenset[str]:
        """Codes that `language` may be; empty when the model knows English alone."""
        ...

    def check(self, window: WindowRequest) -> None:
        """Refuse what the model cannot do, before the window is queued.

        Raises:
            InvalidRequestError: another language, a prompt, temperature or task that it does not take.
        """
        ...

    def batch(self, max_windows: int) -> WindowBatch:
        """An empty batch of at most `max_windows` windows."""
        ...


class SinglePassBatch:
    """A `WindowBatch` for models that transcribe a window in one pass: windows of similar length go together.

    Args:
        transcribe: transcribes the windows of one pass; its results are in their order.
        max_windows: windows that it takes at once.
    """

    MAX_LENGTH_RATIO = 1.5
    """Most times that the longest window of a pass may be as long as the shortest; the difference is padding."""

    def __init__(self, transcribe: Callable[[list[WindowRequest]], list[WindowTranscript]], max_windows: int) -> None:
        self._transcribe = transcribe
        self._max_windows = max_windows
        self._waiting: dict[int, WindowRequest] = {}

    @property
    def room(self) -> int:
        """Number of windows that it takes now."""
        return self._max_windows - len(self._waiting)

    def add(self, key: int, window: WindowRequest) -> None:
        """Begin a window; there must be room."""
        assert self.room > 0
        self._waiting[key] = window

    def drop(self, key: int) -> None:
        """Forget a window; an unknown key is no error."""
        self._waiting.pop(key, None)

    def step(self) -> dict[int, WindowTranscript]:
        """Transcribe the window that has waited longest, and those of similar length with it."""
        if not self._waiting:
            return {}
        first = len(next(iter(self._waiting.values())).samples)
        keys, shortest, longest = [], first, first
        for key, window in self._waiting.items():
            length = len(window.samples)
            if max(longest, length) <= self.MAX_LENGTH_RATIO * min(shortest, length):
                keys.append(key)
                shortest, longest = min(shortest, length), max(longest, length)
        transcripts = self._transcribe([self._waiting[key] for key in keys])
        for key in keys:
            del self._waiting[key]
        return dict(zip(keys, transcripts, strict=True))

    def languages(self) -> dict[int, str]:
        """Always empty: the language is known with the transcript alone."""
        return {}
