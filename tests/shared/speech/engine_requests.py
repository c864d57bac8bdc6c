"""Requests to a transcriber and to the engine, and everything that they answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tessera.speech.engine import SpeechEngine
from tessera.speech.transcription.transcriber import Transcriber, WindowRequest, WindowTranscript

RATE = 16_000


def window_request(samples: np.ndarray[Any, Any], **options: Any) -> WindowRequest:
    return WindowRequest(samples=samples, rate=RATE, **options)


def transcribe_together(transcriber: Transcriber, *windows: WindowRequest) -> list[WindowTranscript]:
    """The transcripts of windows that begin together, in their order."""
    batch = transcriber.batch(len(windows))
    for number, window in enumerate(windows):
        batch.add(number, window)
    found: dict[int, WindowTranscript] = {}
    while len(found) < len(windows):
        found |= batch.step()
    assert batch.room == len(windows)
    return [found[number] for number in range(len(windows))]


def all_answers(engine: SpeechEngine) -> Iterator[Any]:
    """What an engine answers until it has no work."""
    while engine.has_work():
        yield from engine.step()
