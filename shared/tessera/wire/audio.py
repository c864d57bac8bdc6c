"""Speech synthesis and transcription as OpenAI's wire has them.

Source: OpenAI's API reference, checked against its Python SDK 3.52.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tessera.wire.videos import JobDeadline

AudioFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
AUDIO_TYPES = ("audio/mpeg", "audio/ogg", "audio/aac", "audio/flac", "audio/wav", "audio/pcm")
"""Content types of synthesized speech, by `response_format`."""
TranscriptFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]
DiarizedFormat = Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"]


class VoiceReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A voice by its id, which the SDK accepts in place of a voice's name."""

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
    """`word` adds the time of each word of `input` to the events of `stream_format=sse`."""


class VADConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of voice activity detection: threshold of the probability, padding, and the silence that ends speech."""

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    prefix_padding_ms: Annotated[int, Meta(ge=0, le=5_000)] = 300
    silence_duration_ms: Annotated[int, Meta(ge=32, le=10_000)] = 500


class TranscriptionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of `POST /v1/audio/transcriptions` beside `file`. Comes as a form."""

    model: str
    language: Annotated[str, Meta(min_length=2, max_length=16)] | None = None
    prompt: Annotated[str, Meta(max_length=4096)] | None = None
    response_format: DiarizedFormat = "json"
    temperature: Annotated[float, Meta(ge=0, le=1)] = 0.0
    timestamp_granularities: Annotated[list[Literal["word", "segment"]], Meta(max_length=2)] = []
    stream: bool = False
    chunking_strategy: Literal["auto", "none"] | VADConfig | None = None
    """`none` is beyond OpenAI: the model cuts by itself, and also transcribes silence and noise."""
    known_speaker_names: Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=4)] = []
    known_speaker_references: Annotated[list[str], Meta(max_length=4)] = []
    """Data URLs of recordings of these speakers, 2 to 10 seconds each, for `response_format=diarized_json`."""
    # beyond OpenAI, whose responses have `background` too
    background: bool = False
    """Whether to transcribe as a job that outlives the connection, answered 202 with its id. Only a job has the next
    three fields."""
    priority: Annotated[int, Meta(ge=0, le=100)] = 0
    """Place among the jobs of the same key: higher waits longer."""
    deadline_s: JobDeadline | None = None
    """Seconds from now until the job is failed if it has not ended."""
    webhook_url: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None
    """Address of a webhook in OpenAI's form, called when the job has ended; needs `webhooks.secret`."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of transcribed audio. Times are seconds from the beginning.

    The measures are those of the window that the segment was transcribed in, which begins at `seek` hundredths of a
    second: the sampling temperature, the mean log-probability of its tokens (below -1: doubtful), the compression ratio
    of its text (above 2.4: it repeats itself), and the probability that nobody speaks.
    """

    id: int
    seek: int = 0
    start: float
    end: float
    text: str
    tokens: list[int] = []
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 1.0
    no_speech_prob: float = 0.0


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A word of the transcript. Times are seconds from the beginning."""

    word: str
    start: float
    end: float


class TranscriptUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a transcription, in seconds of audio."""

    type: Literal["duration"] = "duration"
    seconds: float


class TranslationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of `POST /v1/audio/translations` beside `file`: into English. Comes as a form."""

    model: str
    prompt: Annotated[str, Meta(max_length=4096)] | None = None
    response_format: TranscriptFormat = "json"
    temperature: Annotated[float, Meta(ge=0, le=1)] = 0.0
    chunking_strategy: Literal["auto", "none"] | VADConfig | None = None
    """Beyond OpenAI, as for transcriptions."""


class Transcription(msgspec.Struct, frozen=True, kw_only=True):
    """Answer with `response_format=json`."""

    text: str
    usage: TranscriptUsage


class VerboseTranscription(msgspec.Struct, frozen=True, kw_only=True):
    """Answer with `response_format=verbose_json`. `duration` in seconds; `words` where they were asked for."""

    task: Literal["transcribe", "translate"] = "transcribe"
    language: str
    duration: float
    text: str
    segments: list[Segment]
    words: list[Word] | UnsetType = UNSET
    usage: TranscriptUsage


class TranscriptTextSegment(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="transcript.text.segment"):
    """A stretch that one speaker says without a break; also a stream event. Times are seconds from the beginning."""

    id: str
    start: float
    end: float
    speaker: str
    text: str


class DiarizedTranscription(msgspec.Struct, frozen=True, kw_only=True):
    """Answer with `response_format=diarized_json`. `duration` in seconds."""

    task: Literal["transcribe"] = "transcribe"
    duration: float
    text: str
    segments: list[TranscriptTextSegment]
    usage: TranscriptUsage


TRANSCRIPT_TYPES = ("text/plain", "text/vtt", "application/x-subrip")
"""Content types of transcripts that are not JSON."""
TranslationBody = Transcription | VerboseTranscription
"""A translation as JSON, by `response_format`."""
TranscriptBody = Transcription | VerboseTranscription | DiarizedTranscription
"""A transcript as JSON, by `response_format`."""


class TranscriptTextDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="transcript.text.delta"):
    """Stream event: more text, of the segment with `segment_id` where speakers are told apart."""

    delta: str
    segment_id: str | UnsetType = UNSET


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
    """Usage of a synthesis: tokens of text that the model read, frames of audio that it made."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechAudioDone(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="speech.audio.done"):
    """Stream event: the file is complete."""

    usage: SpeechUsage
