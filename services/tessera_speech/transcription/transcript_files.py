"""A finished transcript in OpenAI's formats. Does not know how it was heard, or HTTP."""

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
"""How a file of each format is called."""


@dataclass(frozen=True)
class FinishedTranscript:
    """All that was heard. `words` and `speakers` where they were asked for."""

    seconds: float
    language: str
    segments: list[Segment]
    words: list[Word] | None = None
    speakers: list[TranscriptTextSegment] | None = None
    task: Literal["transcribe", "translate"] = "transcribe"


async def finish_transcript(
    listening: RunningTranscription, *, words: bool, task: Literal["transcribe", "translate"] = "transcribe"
) -> FinishedTranscript:
    """Listen to the end. With `words` their times are kept."""
    segments = [segment async for segment in listening.segments()]
    return FinishedTranscript(
        seconds=round(listening.seconds, 3),
        language="english" if task == "translate" else listening.language,
        segments=segments,
        words=listening.words if words else None,
        task=task,
    )


async def finish_with_speakers(listening: RunningTranscription) -> FinishedTranscript:
    """Listen to the end, for who says what alone."""
    speakers = [segment async for segment in listening.diarized()]
    return FinishedTranscript(
        seconds=round(listening.seconds, 3), language=listening.language, segments=[], speakers=speakers
    )


def encode_transcript(found: FinishedTranscript, response_format: DiarizedFormat) -> tuple[bytes, str]:
    """Bytes and content type. `diarized_json` needs `speakers`."""
    usage = TranscriptUsage(seconds=found.seconds)
    match response_format:
        case "diarized_json":
            assert found.speakers is not None, "they were not asked for"
            text = _text([segment.text for segment in found.speakers])
            return _json(DiarizedTranscription(duration=found.seconds, text=text, segments=found.speakers, usage=usage))
        case "srt":
            return subtitles.srt(found.segments).encode(), "application/x-subrip; charset=utf-8"
        case "vtt":
            return subtitles.vtt(found.segments).encode(), "text/vtt; charset=utf-8"
    text = _text([segment.text for segment in found.segments])
    match response_format:
        case "json":
            return _json(Transcription(text=text, usage=usage))
        case "text":
            return text.encode(), "text/plain; charset=utf-8"
        case "verbose_json":
            return _json(
                VerboseTranscription(
                    task=found.task,
                    language=found.language,
                    duration=found.seconds,
                    text=text,
                    segments=found.segments,
                    words=UNSET if found.words is None else found.words,
                    usage=usage,
                )
            )


def _text(pieces: list[str]) -> str:
    text = IncrementalText()
    for piece in pieces:
        text.add(piece)
    return text.text


def _json(value: object) -> tuple[bytes, str]:
    return msgspec.json.encode(value), "application/json"
