"""The transcript of a Whisper window from its tokens: segments, word times, and where the next window begins.

The rules are those of Whisper's `transcribe.py` in Transformers' form (`_retrieve_segment`). Knows nothing about
caches, batches or the model: what it needs of the vocabulary is handed in as `TextTokens`.

A *timestamp* is a token that stands for a time. Timestamps come in pairs: one ends a segment, the next begins another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tessera.speech.transcription.transcriber import WindowRequest, WindowTranscript
from tessera.speech.transcription.whisper.word_times import split_words
from tessera.wire.engine import TranscriptSegment, TranscriptWord

TIMESTAMP_S = 0.02
"""Seconds between two neighbouring timestamp tokens."""
MIN_ADVANCE_S = 0.5
"""Least seconds that a window moves on. A window that would move on by less counts as transcribed to its end, so that a
model that fails cannot crawl through a recording."""
MAX_CONTEXT_TEMPERATURE = 0.5
"""Highest temperature whose tokens become context of the next window. What was drawn at a higher temperature may be
invented, and as context it would cause more of the same."""


class TextTokens(Protocol):
    """The meaning of the tokens of a vocabulary."""

    @property
    def end_token(self) -> int:
        """The token that ends a transcript; tokens below it are text."""
        ...

    @property
    def no_timestamps_token(self) -> int | None:
        """The token that asks for a transcript without timestamps, which are the tokens after it. None without any."""
        ...

    def text_tokens(self, tokens: list[int]) -> list[int]:
        """`tokens` without special tokens and timestamps."""
        ...

    def decode(self, tokens: list[int]) -> str:
        """Text of text tokens, with their leading blanks."""
        ...


@dataclass(frozen=True)
class DecodingAttempt:
    """One attempt to transcribe a window, at one temperature.

    Attributes:
        tokens: everything written after the prompt, timestamps among it, without the end token.
        language: code of the language.
        temperature: that the tokens were drawn at; 0 is greedy.
        avg_logprob: mean log-probability (natural) of the tokens.
        compression_ratio: of the text; see `measures.compression_ratio`.
        no_speech_prob: probability of the model that nobody speaks in the window.
    """

    tokens: list[int]
    language: str
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


@dataclass(frozen=True)
class FallbackThresholds:
    """Thresholds of an attempt that is repeated at a higher temperature, and of a window that counts as silence.

    The defaults are Whisper's own (Radford et al. 2022, section 4.5). None switches a threshold off.

    Attributes:
        compression_ratio: attempts above it repeat themselves.
        avg_logprob: attempts below it are unlikely.
        no_speech: probability above which a window whose attempt is unlikely counts as silence.
    """

    compression_ratio: float | None = 2.4
    avg_logprob: float | None = -1.0
    no_speech: float | None = 0.6

    def needs_fallback(self, attempt: DecodingAttempt) -> bool:
        """Whether the attempt repeats itself or is unlikely, so that a higher temperature is worth a try."""
        repeats = self.compression_ratio is not None and attempt.compression_ratio > self.compression_ratio
        return repeats or self._is_unlikely(attempt)

    def is_silence(self, attempt: DecodingAttempt) -> bool:
        """Whether the model finds no speech and what it wrote is unlikely."""
        return self.no_speech is not None and attempt.no_speech_prob > self.no_speech and self._is_unlikely(attempt)

    def _is_unlikely(self, attempt: DecodingAttempt) -> bool:
        return self.avg_logprob is not None and attempt.avg_logprob < self.avg_logprob


def window_transcript(
    window: WindowRequest,
    attempt: DecodingAttempt,
    vocabulary: TextTokens,
    thresholds: FallbackThresholds,
    times: list[float] | None,
) -> WindowTranscript:
    """The transcript of a window.

    Args:
        window: what was transcribed.
        attempt: the accepted attempt.
        vocabulary: what its tokens mean.
        thresholds: decide whether the attempt may be context of the next window.
        times: second at which each token begins, and at which the last ends; None where words are not asked for.
    """
    seconds, tokens = window.seconds, attempt.tokens
    spans, advance = _spans(tokens, vocabulary.no_timestamps_token, window)
    segments = []
    for first, end, start_s, end_s in spans:
        words = [] if times is None else _words(tokens, first, end, times, vocabulary, attempt.language, seconds)
        segments.append(
            TranscriptSegment(
                start=min(start_s, seconds),
                end=min(end_s, seconds),
                token_ids=vocabulary.text_tokens(tokens[first:end]),
                words=words,
                temperature=attempt.temperature,
                avg_logprob=attempt.avg_logprob,
                compression_ratio=attempt.compression_ratio,
                no_speech_prob=attempt.no_speech_prob,
            )
        )
    context: list[int] = []
    if attempt.temperature <= MAX_CONTEXT_TEMPERATURE and not thresholds.needs_fallback(attempt):
        context = [*window.context, *(token for segment in segments for token in segment.token_ids)]
    if not window.open_end or not MIN_ADVANCE_S <= advance < seconds:
        advance = seconds
    return WindowTranscript(segments, advance, attempt.language, context)


def _spans(
    tokens: list[int], no_timestamps: int | None, window: WindowRequest
) -> tuple[list[tuple[int, int, float, float]], float]:
    """Segments as (first token, the one after the last, start, end in seconds); and the second to go on at."""
    seconds = window.seconds
    if not window.timestamps or no_timestamps is None:
        return [(0, len(tokens), 0.0, seconds)], seconds
    first_timestamp = no_timestamps + 1

    def time_at(place: int) -> float:
        return (tokens[place] - first_timestamp) * TIMESTAMP_S

    is_time = [token >= first_timestamp for token in tokens]
    pairs = [place + 1 for place in range(len(is_time) - 1) if is_time[place] and is_time[place + 1]]
    if not pairs:
        last = next((place for place in reversed(range(len(is_time))) if is_time[place]), None)
        end_s = time_at(last) if last is not None and tokens[last] != first_timestamp else seconds
        return [(0, len(tokens), 0.0, end_s)], seconds
    ends_with_one = is_time[-2:] == [False, True]
    ends = [*pairs, len(tokens)] if ends_with_one else [*pairs[:-1], pairs[-1] + 1]
    spans = []
    first = 0
    for number, end in enumerate(ends):
        closing = end - 1 if ends_with_one or number < len(ends) - 1 else end - 2
        spans.append((first, end, time_at(first), time_at(closing)))
        first = end
    if ends_with_one:
        return spans, seconds
    if not window.open_end and not all(is_time[first:]):
        # No next window transcribes the unfinished rest again, so it becomes a segment of its own.
        spans.append((first, len(tokens), time_at(first - 1), seconds))
    return spans, time_at(ends[-1] - 2)


def _words(
    tokens: list[int],
    first: int,
    end: int,
    times: list[float],
    vocabulary: TextTokens,
    language: str,
    seconds: float,
) -> list[TranscriptWord]:
    """Words of `tokens[first:end]` with their times, which do not leave the window of `seconds`."""
    places = [place for place in range(first, end) if tokens[place] < vocabulary.end_token]
    words = []
    done = 0
    for word_tokens in split_words([tokens[place] for place in places], vocabulary.decode, language):
        begin, last = places[done], places[done + len(word_tokens) - 1]
        done += len(word_tokens)
        start_s, end_s = min(times[begin], seconds), min(times[last + 1], seconds)
        words.append(TranscriptWord(start=start_s, end=max(start_s, end_s), token_ids=word_tokens))
    return words
