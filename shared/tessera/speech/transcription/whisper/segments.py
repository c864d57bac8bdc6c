"""What a Whisper window's tokens say: segments by their timestamps, words by their tokens' times, how far to move on.

The rules are those of Whisper's `transcribe.py` as Transformers has them (`_retrieve_segment`). Does not know caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tessera.speech.transcription.transcriber import WindowRequest, WindowTranscript
from tessera.speech.transcription.whisper.word_times import split_words
from tessera.wire.engine import TranscriptSegment, TranscriptWord

if TYPE_CHECKING:
    from tessera.speech.transcription.whisper.model import WhisperTranscriber

TIMESTAMP_S = 0.02
MIN_ADVANCE_S = 0.5
"""A window that would move on by less counts as a whole: an ill model must not crawl through a recording."""
SAFE_TEMPERATURE = 0.5
"""What was drawn hotter is not told to the next window: it may be invented, and inventions go on."""


@dataclass(frozen=True)
class DecodingAttempt:
    """One try at a window."""

    written: list[int]
    language: str
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


@dataclass(frozen=True)
class FallbackThresholds:
    """When a try is ill. Defaults are Whisper's own; None switches one off."""

    compression_ratio: float | None = 2.4
    avg_logprob: float | None = -1.0
    no_speech: float | None = 0.6

    def needs_fallback(self, reading: DecodingAttempt) -> bool:
        """Whether it repeats itself or is unlikely."""
        repeats = self.compression_ratio is not None and reading.compression_ratio > self.compression_ratio
        return repeats or self._is_unlikely(reading)

    def is_silence(self, reading: DecodingAttempt) -> bool:
        """Whether nobody spoke, and what was written is unlikely."""
        return self.no_speech is not None and reading.no_speech_prob > self.no_speech and self._is_unlikely(reading)

    def _is_unlikely(self, reading: DecodingAttempt) -> bool:
        return self.avg_logprob is not None and reading.avg_logprob < self.avg_logprob


def window_transcript(
    piece: WindowRequest, reading: DecodingAttempt, model: WhisperTranscriber, times: list[float] | None
) -> WindowTranscript:
    """The window.

    Args:
        piece: what was heard.
        reading: what was written.
        model: whose tokens they are.
        times: when each written token begins and the last ends; None without words.
    """
    seconds, written = piece.seconds, reading.written
    spans, advance = _spans(written, model.rules.no_timestamps, piece)
    segments = []
    for first, end, start_s, end_s in spans:
        tokens = model.text(written[first:end])
        words = [] if times is None else _words(written, first, end, times, model, reading.language, seconds)
        segments.append(
            TranscriptSegment(
                start=min(start_s, seconds),
                end=min(end_s, seconds),
                token_ids=tokens,
                words=words,
                temperature=reading.temperature,
                avg_logprob=reading.avg_logprob,
                compression_ratio=reading.compression_ratio,
                no_speech_prob=reading.no_speech_prob,
            )
        )
    context: list[int] = []
    if reading.temperature <= SAFE_TEMPERATURE and not model.thresholds.needs_fallback(reading):
        context = [*piece.context, *(token for segment in segments for token in segment.token_ids)]
    if not piece.open_end or not MIN_ADVANCE_S <= advance < seconds:
        advance = seconds
    return WindowTranscript(segments, advance, reading.language, context)


def _spans(
    written: list[int], no_timestamps: int | None, piece: WindowRequest
) -> tuple[list[tuple[int, int, float, float]], float]:
    """First token, the one behind the last, start and end in seconds of each segment; and where to go on."""
    seconds = piece.seconds
    if not piece.timestamps or no_timestamps is None:
        return [(0, len(written), 0.0, seconds)], seconds
    begin = no_timestamps + 1

    def at(place: int) -> float:
        return (written[place] - begin) * TIMESTAMP_S

    stamps = [token >= begin for token in written]
    pairs = [place + 1 for place in range(len(stamps) - 1) if stamps[place] and stamps[place + 1]]
    if not pairs:
        last = next((place for place in reversed(range(len(stamps))) if stamps[place]), None)
        end_s = at(last) if last is not None and written[last] != begin else seconds
        return [(0, len(written), 0.0, end_s)], seconds
    ends_with_one = stamps[-2:] == [False, True]
    ends = [*pairs, len(written)] if ends_with_one else [*pairs[:-1], pairs[-1] + 1]
    spans = []
    first = 0
    for number, end in enumerate(ends):
        closing = end - 1 if ends_with_one or number < len(ends) - 1 else end - 2
        spans.append((first, end, at(first), at(closing)))
        first = end
    if ends_with_one:
        return spans, seconds
    if not piece.open_end and not all(stamps[first:]):
        # There is no next window that would hear the unfinished rest again.
        spans.append((first, len(written), at(first - 1), seconds))
    return spans, at(ends[-1] - 2)


def _words(
    written: list[int],
    first: int,
    end: int,
    times: list[float],
    model: WhisperTranscriber,
    language: str,
    seconds: float,
) -> list[TranscriptWord]:
    places = [place for place in range(first, end) if written[place] < model.end]
    words = []
    at = 0
    for tokens in split_words([written[place] for place in places], model.decode, language):
        begin, last = places[at], places[at + len(tokens) - 1]
        at += len(tokens)
        start_s, end_s = min(times[begin], seconds), min(times[last + 1], seconds)
        words.append(TranscriptWord(start=start_s, end=max(start_s, end_s), token_ids=tokens))
    return words
