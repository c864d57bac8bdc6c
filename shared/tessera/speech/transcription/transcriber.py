"""What a transcriber is: windows of samples in, text tokens with times out, many at a time, whatever its architecture.

A long recording goes window by window. Where its cuts are known (speech was found before) its windows are independent
of each other; where they are not, a window says how far it moves on, so that the next begins where no word is cut.
Does not know requests, queues or text.
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
    """A window that is to be heard, and how.

    Attributes:
        samples: float32 of shape [samples], at most a window.
        rate: of the samples.
        language: one of the model's, or English; None has it detected.
        prompt_ids: what was said before, from the token on that begins a prompt; may be empty.
        context: what the window before it said; as much of both as there is room for is told to the model.
        temperature: 0 takes the likeliest token, and hotter ones where that fails.
        timestamps: whether times inside the window are wanted.
        words: whether those of words are.
        translate: into English.
        seed: of what is drawn.
        open_end: whether the model says where the next window begins, because it may end inside a word.
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
        """Length."""
        return len(self.samples) / self.rate


@dataclass(frozen=True)
class WindowTranscript:
    """What was heard in one window. Times are seconds from the window's beginning; text tokens only."""

    segments: list[TranscriptSegment]
    advance_s: float
    language: str = ENGLISH
    context: list[int] = field(default_factory=list)
    """Tokens that the next window may be told as what was said before; empty where that is not safe."""


class WindowBatch(Protocol):
    """Windows in work together. A key is the caller's name for one."""

    @property
    def room(self) -> int:
        """How many more it takes now."""
        ...

    def add(self, key: int, piece: WindowRequest) -> None:
        """Begin a window; there must be room."""
        ...

    def drop(self, key: int) -> None:
        """Forget a window at once; an unknown key is no error."""
        ...

    def step(self) -> dict[int, WindowTranscript]:
        """Do the next bit of work for all; what has ended leaves. An exception leaves the batch to be emptied."""
        ...

    def languages(self) -> dict[int, str]:
        """Of the windows in work, as far as they are known."""
        ...


class Transcriber(Protocol):
    """A loaded model."""

    model: Any
    card: Card
    """Completed with what the configuration says."""
    device: torch.device

    @property
    def sample_rate(self) -> int:
        """Samples a second of what it listens to."""
        ...

    @property
    def window_s(self) -> float:
        """Length of a window, in seconds."""
        ...

    @property
    def languages(self) -> frozenset[str]:
        """Codes that `language` may be; empty when the model knows English alone."""
        ...

    def check(self, piece: WindowRequest) -> None:
        """Refuse what the model cannot do, before it is queued.

        Raises:
            InvalidRequestError: another language, a prompt, temperature or task that it does not take.
        """
        ...

    def batch(self, most: int) -> WindowBatch:
        """An empty batch of at most so many windows."""
        ...


class SinglePassBatch:
    """A `WindowBatch` for models that read a window in one pass: those of like length go together.

    Args:
        transcribe: what the windows of one pass have in them, in order.
        most: windows that it takes.
    """

    ALIKE = 1.5
    """The longest window of a pass is at most so many times as long as the shortest: the rest is padding."""

    def __init__(self, transcribe: Callable[[list[WindowRequest]], list[WindowTranscript]], most: int) -> None:
        self._transcribe = transcribe
        self._most = most
        self._waiting: dict[int, WindowRequest] = {}

    @property
    def room(self) -> int:
        """How many more it takes now."""
        return self._most - len(self._waiting)

    def add(self, key: int, piece: WindowRequest) -> None:
        """Begin a window; there must be room."""
        assert self.room > 0
        self._waiting[key] = piece

    def drop(self, key: int) -> None:
        """Forget a window."""
        self._waiting.pop(key, None)

    def step(self) -> dict[int, WindowTranscript]:
        """Hear the window that has waited longest, and those about as long with it."""
        if not self._waiting:
            return {}
        first = len(next(iter(self._waiting.values())).samples)
        keys, shortest, longest = [], first, first
        for key, piece in self._waiting.items():
            length = len(piece.samples)
            if max(longest, length) <= self.ALIKE * min(shortest, length):
                keys.append(key)
                shortest, longest = min(shortest, length), max(longest, length)
        heard = self._transcribe([self._waiting[key] for key in keys])
        for key in keys:
            del self._waiting[key]
        return dict(zip(keys, heard, strict=True))

    def languages(self) -> dict[int, str]:
        """Known with the result alone."""
        return {}
