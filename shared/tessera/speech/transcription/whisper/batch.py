"""Whisper windows in work together: encoded together, decoded a token a step together, tried again hotter when ill.

A window joins at the next step and leaves when it ends. What it says does not depend on the others: rows see only
themselves, and what is drawn comes from the window's own generator. Does not know requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from tessera.speech.transcription.measures import compression_ratio
from tessera.speech.transcription.transcriber import WindowRequest, WindowTranscript
from tessera.speech.transcription.whisper.decoder import BatchedDecoder
from tessera.speech.transcription.whisper.segments import DecodingAttempt, window_transcript

if TYPE_CHECKING:
    from tessera.speech.transcription.whisper.model import WhisperTranscriber

ENCODED_AT_ONCE = 8
"""Windows that one step encodes, so that those being decoded do not wait for all that have come."""
HOTTER = 0.2
"""What is added to the temperature when a transcript is ill, up to 1."""


@dataclass(eq=False)
class _Row:
    """One window. `unread` are tokens that the decoder has not seen yet, `read` is how many it has."""

    key: int
    piece: WindowRequest
    language: str
    prompt: list[int]
    start: int
    """Place in the prompt of the token that starts a transcript."""
    temperature: float
    unread: list[int]
    read: int = 0
    written: list[int] = field(default_factory=list)
    logprob: float = 0.0
    no_speech: float | None = None
    generator: torch.Generator = field(default_factory=torch.Generator)


class WhisperBatch:
    """Implements `tessera.speech.transcription.transcriber.WindowBatch`.

    Args:
        transcriber: the model.
        most: windows at once.
    """

    def __init__(self, transcriber: WhisperTranscriber, most: int) -> None:
        self._transcriber = transcriber
        self._most = most
        self._waiting: deque[tuple[int, WindowRequest]] = deque()
        self._rows: list[_Row] = []
        self._caches = BatchedDecoder(transcriber.model, most)

    @property
    def room(self) -> int:
        """How many more it takes now."""
        return self._most - len(self._rows) - len(self._waiting)

    def add(self, key: int, piece: WindowRequest) -> None:
        """Begin a window; there must be room."""
        assert self.room > 0
        self._waiting.append((key, piece))

    @torch.inference_mode()
    def drop(self, key: int) -> None:
        """Forget a window."""
        self._waiting = deque(one for one in self._waiting if one[0] != key)
        for number, row in enumerate(self._rows):
            if row.key == key:
                self._leave(number)
                return

    def languages(self) -> dict[int, str]:
        """Of the windows in work."""
        return {row.key: row.language for row in self._rows}

    @torch.inference_mode()
    def step(self) -> dict[int, WindowTranscript]:
        """Encode what has come, then write one token of every window."""
        if self._waiting:
            self._admit([self._waiting.popleft() for _ in range(min(ENCODED_AT_ONCE, len(self._waiting)))])
        if not self._rows:
            return {}
        self._read_prompts()
        tokens = torch.tensor([row.unread for row in self._rows], device=self._transcriber.device)
        starts = torch.tensor([row.read for row in self._rows], device=self._transcriber.device)
        hidden, _ = self._caches.read(tokens, starts, first=0)
        picked, logprobs = self._pick(self._caches.scores(hidden[:, -1]))
        heard: dict[int, WindowTranscript] = {}
        for row, token, logprob in zip(list(self._rows), picked, logprobs, strict=True):
            row.read += 1
            row.logprob += logprob
            ended = token == self._transcriber.end
            if not ended:
                row.written.append(token)
                row.unread = [token]
            if ended or len(row.prompt) + len(row.written) >= self._transcriber.longest(len(row.prompt)):
                window = self._judge(row, ended=ended)
                if window is not None:
                    heard[row.key] = window
        for key in heard:
            self.drop(key)
        return heard

    def _admit(self, come: list[tuple[int, WindowRequest]]) -> None:
        transcriber = self._transcriber
        encoded = transcriber.encode([piece.samples for _, piece in come])
        first = self._caches.rows
        self._caches.add(encoded)
        languages = [piece.language for _, piece in come]
        if transcriber.languages and None in languages:
            begin = torch.full((len(come), 1), transcriber.start, device=transcriber.device)
            hidden, _ = self._caches.read(
                begin, torch.zeros(len(come), dtype=torch.long, device=begin.device), first=first
            )
            detected = transcriber.likeliest_languages(self._caches.scores(hidden[:, -1]))
            languages = [asked or found for asked, found in zip(languages, detected, strict=True)]
        for (key, piece), language in zip(come, languages, strict=True):
            prompt, start = transcriber.prompt(piece, language)
            row = _Row(key, piece, language or "en", prompt, start, piece.temperature, unread=list(prompt))
            row.generator.manual_seed(piece.seed)
            self._rows.append(row)

    def _read_prompts(self) -> None:
        """All but the last token of prompts, so that every row has one to read; runs of rows together."""
        run: list[int] = []
        for number in range(len(self._rows) + 1):
            if number < len(self._rows) and len(self._rows[number].unread) > 1:
                run.append(number)
            elif run:
                self._read_run(self._rows[run[0] : run[-1] + 1], run[0])
                run = []

    def _read_run(self, rows: list[_Row], first: int) -> None:
        device = self._transcriber.device
        longest = max(len(row.unread) for row in rows) - 1
        padded = [[*row.unread[:-1], *[0] * (longest + 1 - len(row.unread))] for row in rows]
        starts = torch.tensor([row.read for row in rows], device=device)
        hidden, _ = self._caches.read(torch.tensor(padded, device=device), starts, first=first)
        places = torch.tensor([min(row.start, longest - 1) for row in rows], device=device)
        at_start = hidden[torch.arange(len(rows), device=device), places]
        silence = self._transcriber.no_speech(self._caches.scores(at_start))
        for row, probability in zip(rows, silence, strict=True):
            if row.no_speech is None and row.start < len(row.unread) - 1:
                row.no_speech = probability
            row.read += len(row.unread) - 1
            row.unread = row.unread[-1:]

    def _pick(self, scores: torch.Tensor) -> tuple[list[int], list[float]]:
        """The next token of each row and its log-probability among those that may follow."""
        rows = self._rows
        if any(row.no_speech is None for row in rows):
            for row, probability in zip(rows, self._transcriber.no_speech(scores), strict=True):
                row.no_speech = probability if row.no_speech is None else row.no_speech
        self._transcriber.rules.apply(scores, [row.written for row in rows], [row.piece.timestamps for row in rows])
        picked = scores.argmax(-1)
        for number, row in enumerate(rows):
            if row.temperature > 0:
                picked[number] = _drawn(scores[number], row.temperature, row.generator)
        logprobs = scores.gather(-1, picked[:, None])[:, 0] - scores.logsumexp(-1)
        return picked.tolist(), logprobs.tolist()

    def _judge(self, row: _Row, *, ended: bool) -> WindowTranscript | None:
        """What was heard; None when it is tried again."""
        transcriber, limits = self._transcriber, self._transcriber.thresholds
        text = transcriber.decode(transcriber.text(row.written))
        reading = DecodingAttempt(
            written=row.written,
            language=row.language,
            temperature=row.temperature,
            avg_logprob=row.logprob / (len(row.written) + ended),
            compression_ratio=compression_ratio(text),
            no_speech_prob=row.no_speech or 0.0,
        )
        silent = limits.is_silence(reading)
        if (
            limits.needs_fallback(reading)
            and not silent
            and row.piece.temperature == 0
            and row.temperature + HOTTER < 1.01
        ):
            row.temperature = round(row.temperature + HOTTER, 1)
            row.unread, row.read, row.written, row.logprob = list(row.prompt), 0, [], 0.0
            return None
        if silent:
            return WindowTranscript([], row.piece.seconds, row.language)
        times = self._token_times(row, ended=ended) if row.piece.words else None
        return window_transcript(row.piece, reading, transcriber, times)

    def _token_times(self, row: _Row, *, ended: bool) -> list[float]:
        """When each written token begins, and when the last ends."""
        tokens = row.written if ended else row.written[:-1]
        if not tokens:
            return [0.0] * (len(row.written) + 1)
        sequence = torch.tensor([row.prompt + tokens], device=self._transcriber.device)
        place = self._rows.index(row)
        start = torch.zeros(1, dtype=torch.long, device=sequence.device)
        _, attended = self._caches.read(sequence, start, first=place, heads=self._transcriber.alignment_heads)
        times = self._transcriber.token_times(attended[0, :, len(row.prompt) :], row.piece)
        return times + [times[-1]] * (len(row.written) + 1 - len(times))

    def _leave(self, number: int) -> None:
        last = self._caches.remove(number)
        moved = self._rows.pop(last)
        if last != number:
            self._rows[number] = moved


def _drawn(scores_V: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    """A token by its probability, with Gumbel noise: the same noise wherever the row stands and the model runs."""
    uniform = torch.rand(scores_V.shape, generator=generator).clamp_(1e-20).to(scores_V.device)
    return (scores_V / temperature - (-uniform.log()).log()).argmax()
