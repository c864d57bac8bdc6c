"""Whisper windows in flight together: encoded together, decoded one token a step, repeated at a higher temperature.

A window joins at the next step and leaves when its transcript ends. Its transcript does not depend on the other
windows: rows attend to themselves only, and draws come from the window's own generator. Knows nothing about requests,
and of the model only what `WindowModel` says.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from tessera.speech.transcription.measures import compression_ratio
from tessera.speech.transcription.transcriber import WindowRequest, WindowTranscript
from tessera.speech.transcription.whisper.decoder import BatchedDecoder
from tessera.speech.transcription.whisper.segments import (
    DecodingAttempt,
    FallbackThresholds,
    TextTokens,
    window_transcript,
)
from tessera.speech.transcription.whisper.token_rules import TokenRules

MAX_ENCODED_PER_STEP = 8
"""Windows that one step encodes at most, so that windows being decoded do not wait for all that have arrived."""
TEMPERATURE_STEP = 0.2
"""Added to the temperature of an attempt that needs fallback, up to 1: Whisper's own series."""


class WindowModel(TextTokens, Protocol):
    """The interface of a Whisper model that a batch needs."""

    model: Any
    """Transformers' `WhisperForConditionalGeneration`."""
    device: torch.device
    start_token: int
    """The token that starts a transcript."""
    rules: TokenRules
    thresholds: FallbackThresholds
    alignment_heads: list[tuple[int, int]]
    """(layer, head) pairs whose attention follows the audio."""

    @property
    def languages(self) -> frozenset[str]:
        """Codes of the languages that it detects; empty for a model of English alone."""
        ...

    def encode(self, samples: list[np.ndarray[Any, Any]]) -> torch.Tensor:
        """Encoder states [windows, frames, width] of float32 samples [n] each."""
        ...

    def likeliest_languages(self, logits_NV: torch.Tensor) -> list[str]:
        """Language codes, from the logits of the first token of a transcript."""
        ...

    def no_speech_probabilities(self, logits_NV: torch.Tensor) -> list[float]:
        """Probabilities that nobody speaks, from the logits of the first token of a transcript."""
        ...

    def prompt(self, window: WindowRequest, language: str | None) -> tuple[list[int], int]:
        """Tokens before a transcript, and the index of `start_token` among them."""
        ...

    def max_tokens(self, prompt: int) -> int:
        """Most tokens that a transcript and its prompt of `prompt` tokens may have together."""
        ...

    def token_times(self, attention_ATF: torch.Tensor, window: WindowRequest) -> list[float]:
        """Second at which each token begins, from the attention of `alignment_heads`."""
        ...


@dataclass(eq=False)
class _WindowRow:
    """One window in flight, a row of the decoder's caches."""

    key: int
    window: WindowRequest
    language: str
    prompt: list[int]
    start_index: int
    """Index of the start token in the prompt."""
    temperature: float
    pending: list[int]
    """Tokens that the decoder has not processed yet."""
    cached: int = 0
    """Tokens that the decoder has processed."""
    written: list[int] = field(default_factory=list)
    logprob: float = 0.0
    """Sum of the log-probabilities of the tokens written in this attempt."""
    no_speech: float | None = None
    generator: torch.Generator = field(default_factory=torch.Generator)


class WhisperBatch:
    """Implements `tessera.speech.transcription.transcriber.WindowBatch`.

    Args:
        transcriber: the model.
        max_windows: windows at once.
    """

    def __init__(self, transcriber: WindowModel, max_windows: int) -> None:
        self._transcriber = transcriber
        self._max_windows = max_windows
        self._waiting: deque[tuple[int, WindowRequest]] = deque()
        self._rows: list[_WindowRow] = []
        self._decoder = BatchedDecoder(transcriber.model, max_windows)

    @property
    def room(self) -> int:
        """Number of windows that it takes now."""
        return self._max_windows - len(self._rows) - len(self._waiting)

    def add(self, key: int, window: WindowRequest) -> None:
        """Begin a window; there must be room."""
        assert self.room > 0
        self._waiting.append((key, window))

    @torch.inference_mode()
    def drop(self, key: int) -> None:
        """Forget a window; an unknown key is no error."""
        self._waiting = deque(one for one in self._waiting if one[0] != key)
        for number, row in enumerate(self._rows):
            if row.key == key:
                self._remove_row(number)
                return

    def languages(self) -> dict[int, str]:
        """Language of each window that is being decoded, by its key."""
        return {row.key: row.language for row in self._rows}

    @torch.inference_mode()
    def step(self) -> dict[int, WindowTranscript]:
        """Encode windows that have arrived, then write one token of every window. Returns what has ended."""
        if self._waiting:
            self._admit([self._waiting.popleft() for _ in range(min(MAX_ENCODED_PER_STEP, len(self._waiting)))])
        if not self._rows:
            return {}
        self._prefill_prompts()
        tokens = torch.tensor([row.pending for row in self._rows], device=self._transcriber.device)
        starts = torch.tensor([row.cached for row in self._rows], device=self._transcriber.device)
        hidden, _ = self._decoder.forward(tokens, starts, first=0)
        picked, logprobs = self._pick(self._decoder.logits(hidden[:, -1]))
        finished: dict[int, WindowTranscript] = {}
        for row, token, logprob in zip(list(self._rows), picked, logprobs, strict=True):
            row.cached += 1
            row.logprob += logprob
            ended = token == self._transcriber.end_token
            if not ended:
                row.written.append(token)
                row.pending = [token]
            if ended or len(row.prompt) + len(row.written) >= self._transcriber.max_tokens(len(row.prompt)):
                transcript = self._end_attempt(row, ended=ended)
                if transcript is not None:
                    finished[row.key] = transcript
        for key in finished:
            self.drop(key)
        return finished

    def _admit(self, arrived: list[tuple[int, WindowRequest]]) -> None:
        """Encode windows, detect languages that are not given, and make their rows."""
        transcriber = self._transcriber
        encoded = transcriber.encode([window.samples for _, window in arrived])
        first = self._decoder.rows
        self._decoder.add(encoded)
        languages = [window.language for _, window in arrived]
        if transcriber.languages and None in languages:
            begin = torch.full((len(arrived), 1), transcriber.start_token, device=transcriber.device)
            starts = torch.zeros(len(arrived), dtype=torch.long, device=begin.device)
            hidden, _ = self._decoder.forward(begin, starts, first=first)
            detected = transcriber.likeliest_languages(self._decoder.logits(hidden[:, -1]))
            languages = [given or found for given, found in zip(languages, detected, strict=True)]
        for (key, window), language in zip(arrived, languages, strict=True):
            prompt, start = transcriber.prompt(window, language)
            row = _WindowRow(key, window, language or "en", prompt, start, window.temperature, pending=list(prompt))
            row.generator.manual_seed(window.seed)
            self._rows.append(row)

    def _prefill_prompts(self) -> None:
        """Process all but the last token of new prompts, neighbouring rows together: one token is left for each row."""
        run: list[int] = []
        for number in range(len(self._rows) + 1):
            if number < len(self._rows) and len(self._rows[number].pending) > 1:
                run.append(number)
            elif run:
                self._prefill_rows(self._rows[run[0] : run[-1] + 1], run[0])
                run = []

    def _prefill_rows(self, rows: list[_WindowRow], first: int) -> None:
        device = self._transcriber.device
        longest = max(len(row.pending) for row in rows) - 1
        padded = [[*row.pending[:-1], *[0] * (longest + 1 - len(row.pending))] for row in rows]
        starts = torch.tensor([row.cached for row in rows], device=device)
        hidden, _ = self._decoder.forward(torch.tensor(padded, device=device), starts, first=first)
        places = torch.tensor([min(row.start_index, longest - 1) for row in rows], device=device)
        at_start = hidden[torch.arange(len(rows), device=device), places]
        no_speech = self._transcriber.no_speech_probabilities(self._decoder.logits(at_start))
        for row, probability in zip(rows, no_speech, strict=True):
            if row.no_speech is None and row.start_index < len(row.pending) - 1:
                row.no_speech = probability
            row.cached += len(row.pending) - 1
            row.pending = row.pending[-1:]

    def _pick(self, logits_BV: torch.Tensor) -> tuple[list[int], list[float]]:
        """The next token of each row, and its log-probability among the tokens that may follow."""
        rows = self._rows
        if any(row.no_speech is None for row in rows):
            for row, probability in zip(rows, self._transcriber.no_speech_probabilities(logits_BV), strict=True):
                row.no_speech = probability if row.no_speech is None else row.no_speech
        self._transcriber.rules.apply(logits_BV, [row.written for row in rows], [row.window.timestamps for row in rows])
        picked = logits_BV.argmax(-1)
        for number, row in enumerate(rows):
            if row.temperature > 0:
                picked[number] = _draw(logits_BV[number], row.temperature, row.generator)
        logprobs = logits_BV.gather(-1, picked[:, None])[:, 0] - logits_BV.logsumexp(-1)
        return picked.tolist(), logprobs.tolist()

    def _end_attempt(self, row: _WindowRow, *, ended: bool) -> WindowTranscript | None:
        """The transcript of a row; None when it is tried again at a higher temperature."""
        transcriber, thresholds = self._transcriber, self._transcriber.thresholds
        text = transcriber.decode(transcriber.text_tokens(row.written))
        attempt = DecodingAttempt(
            tokens=row.written,
            language=row.language,
            temperature=row.temperature,
            avg_logprob=row.logprob / (len(row.written) + ended),
            compression_ratio=compression_ratio(text),
            no_speech_prob=row.no_speech or 0.0,
        )
        silent = thresholds.is_silence(attempt)
        may_repeat = row.window.temperature == 0 and row.temperature + TEMPERATURE_STEP < 1.01
        if may_repeat and not silent and thresholds.needs_fallback(attempt):
            row.temperature = round(row.temperature + TEMPERATURE_STEP, 1)
            row.pending, row.cached, row.written, row.logprob = list(row.prompt), 0, [], 0.0
            return None
        if silent:
            return WindowTranscript([], row.window.seconds, row.language)
        times = self._token_times(row, ended=ended) if row.window.words else None
        return window_transcript(row.window, attempt, transcriber, thresholds, times)

    def _token_times(self, row: _WindowRow, *, ended: bool) -> list[float]:
        """Second at which each written token begins, and at which the last ends."""
        tokens = row.written if ended else row.written[:-1]
        if not tokens:
            return [0.0] * (len(row.written) + 1)
        sequence = torch.tensor([row.prompt + tokens], device=self._transcriber.device)
        place = self._rows.index(row)
        start = torch.zeros(1, dtype=torch.long, device=sequence.device)
        _, attention = self._decoder.forward(sequence, start, first=place, heads=self._transcriber.alignment_heads)
        times = self._transcriber.token_times(attention[0, :, len(row.prompt) :], row.window)
        return times + [times[-1]] * (len(row.written) + 1 - len(times))

    def _remove_row(self, number: int) -> None:
        last = self._decoder.remove(number)
        moved = self._rows.pop(last)
        if last != number:
            self._rows[number] = moved


def _draw(logits_V: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    """A token drawn by its probability, with Gumbel noise: the same noise in any row and on any device."""
    uniform = torch.rand(logits_V.shape, generator=generator).clamp_(1e-20).to(logits_V.device)
    return (logits_V / temperature - (-uniform.log()).log()).argmax()
