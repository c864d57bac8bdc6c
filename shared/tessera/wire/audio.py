"""Speech synthesis and transcription as OpenAI's wire has them.

Source: OpenAI's API reference, checked against its Python SDK 3.52.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

AudioFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
TranscriptFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]


class VoiceReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A voice by id: the SDK's other way to write a voice's name."""

    id: str


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/audio/speech`."""

    model: str
    input: Annotated[str, Meta(min_length=1)]
    voice: str | VoiceReference | None = None
    response_format: AudioFormat = "mp3"
    speed: Annotated[float, Meta(ge=0.25, le=4.0)] = 1.0
    stream_format: Literal["audio", "sse"] = "audio"
    # beyond OpenAI
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    timestamp_granularities: Annotated[list[Literal["word"]], Meta(max_length=1)] = []
    """With `stream_format=sse`: when each word of `input` is said."""


class TranscriptionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of `POST /v1/audio/transcriptions` beside `file`. Comes as a form."""

    model: str
    language: Annotated[str, Meta(min_length=2, max_length=16)] | None = None
    prompt: Annotated[str, Meta(max_length=4096)] | None = None
    response_format: TranscriptFormat = "json"
    temperature: Annotated[float, Meta(ge=0, le=1)] = 0.0
    timestamp_granularities: Annotated[list[Literal["word", "segment"]], Meta(max_length=2)] = []
    stream: bool = False


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of transcribed audio. Times are seconds from the beginning."""

    id: int
    start: float
    end: float
    text: str


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A word of the transcript. Times are seconds from the beginning."""

    word: str
    start: float
    end: float


class TranscriptUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Audio is counted in seconds."""

    type: Literal["duration"] = "duration"
    seconds: float


class Transcription(msgspec.Struct, frozen=True, kw_only=True):
    """Answer with `response_format=json`."""

    text: str
    usage: TranscriptUsage


class VerboseTranscription(msgspec.Struct, frozen=True, kw_only=True):
    """Answer with `response_format=verbose_json`. `duration` in seconds; `words` where they were asked for."""

    task: Literal["transcribe"] = "transcribe"
    language: str
    duration: float
    text: str
    segments: list[Segment]
    words: list[Word] | UnsetType = UNSET
    usage: TranscriptUsage


class TranscriptTextDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="transcript.text.delta"):
    """Stream event: more text."""

    delta: str


class TranscriptTextDone(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="transcript.text.done"):
    """Stream event: the whole text."""

    text: str
    usage: TranscriptUsage


class SpeechAudioDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="speech.audio.delta"):
    """Stream event: base64 of the next bytes of the file."""

    audio: str


class SpokenWord(msgspec.Struct, frozen=True, kw_only=True):
    """A word of the text and when it is said, in seconds from the beginning of the audio.

    `offset` is its first character in `input`, or in the text of the SSML without its markup.
    """

    word: str
    start: float
    end: float
    offset: int


class SpeechAudioWords(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="speech.audio.words"):
    """Stream event beyond OpenAI: the words of the next sentence, before its audio."""

    words: list[SpokenWord]


class SpeechUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a speech took: tokens of text that the model read, frames of sound that it made."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechAudioDone(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="speech.audio.done"):
    """Stream event: the file is complete."""

    usage: SpeechUsage
