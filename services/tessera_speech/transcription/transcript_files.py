"""A finished transcript in OpenAI's formats. Knows nothing about models or HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET

from tessera.wire.audio import (
    DiarizedFormat,
    DiarizedTranscription,
    Segment,
    Transcription,
    TranscriptTextSegment,
    TranscriptUsage,
    VerboseTranscription,
    Word,
)
from tessera_speech.transcription import subtitles
from tessera_speech.transcription.audio_to_text import RunningTranscription
from tessera_speech.transcription.transcript_tokenizer import IncrementalText

SUFFIXES: dict[DiarizedFormat, str] = {
    "json": "json",
    "text": "txt",
    "srt": "srt",
    "vtt": "vtt",
    "verbose_json": "verbose.json",
    "diarized_json": "diarized.json",
}
"""Ending of the file name of each format."""


@dataclass(frozen=True)
class FinishedTranscript:
    """A whole transcript.

    Attributes:
        seconds: length of the recording.
        language: code or English name of the language.
        segments: with times of the recording.
        words: words with times, where they were asked for.
        speakers: segments with speakers, where they were asked for.
        task: as the response names it.
    """

    seconds: float
    language: str
    segments: list[Segment]
    words: list[Word] | None = None
    speakers: list[TranscriptTextSegment] | None = None
    task: Literal["transcribe", "translate"] = "transcribe"


async def finish_transcript(
    running: RunningTranscription, *, words: bool, task: Literal["transcribe", "translate"] = "transcribe"
) -> FinishedTranscript:
    """Wait for the whole transcript, with times of words where `words` asks for them."""
    segments = [segment async for segment in running.segments()]
    return FinishedTranscript(
        seconds=round(running.seconds, 3),
        language="english" if task == "translate" else running.language,
        segments=segments,
        words=running.words if words else None,
        task=task,
    )


async def finish_with_speakers(running: RunningTranscription) -> FinishedTranscript:
    """Wait for the whole transcript by speakers, without segments of the model."""
    speakers = [segment async for segment in running.diarized()]
    return FinishedTranscript(
        seconds=round(running.seconds, 3), language=running.language, segments=[], speakers=speakers
    )


def encode_transcript(transcript: FinishedTranscript, response_format: DiarizedFormat) -> tuple[bytes, str]:
    """Bytes and content type of a transcript in a format. `diarized_json` needs `speakers`."""
    usage = TranscriptUsage(seconds=transcript.seconds)
    match response_format:
        case "diarized_json":
            assert transcript.speakers is not None, "they were not asked for"
            text = _text([segment.text for segment in transcript.speakers])
            return _json(
                DiarizedTranscription(duration=transcript.seconds, text=text, segments=transcript.speakers, usage=usage)
            )
        case "srt":
            return subtitles.srt(transcript.segments).encode(), "application/x-subrip; charset=utf-8"
        case "vtt":
            return subtitles.vtt(transcript.segments).encode(), "text/vtt; charset=utf-8"
    text = _text([segment.text for segment in transcript.segments])
    match response_format:
        case "json":
            return _json(Transcription(text=text, usage=usage))
        case "text":
            return text.encode(), "text/plain; charset=utf-8"
        case "verbose_json":
            return _json(
                VerboseTranscription(
                    task=transcript.task,
                    language=transcript.language,
                    duration=transcript.seconds,
                    text=text,
                    segments=transcript.segments,
                    words=UNSET if transcript.words is None else transcript.words,
                    usage=usage,
                )
            )


def _text(parts: list[str]) -> str:
    text = IncrementalText()
    for part in parts:
        text.add(part)
    return text.text


def _json(value: object) -> tuple[bytes, str]:
    return msgspec.json.encode(value), "application/json"
