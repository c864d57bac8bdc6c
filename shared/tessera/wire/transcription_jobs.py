"""Transcription jobs of long recordings: the answers of `POST /v1/audio/transcriptions` with `background=true`.

Beyond OpenAI, which has no long transcriptions; the names are those of its background responses and its videos. The
transcript itself is the job's content, in OpenAI's formats (`tessera.wire.audio`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tessera.wire.audio import DiarizedFormat
from tessera.wire.jobs import JobError, JobStatus


class TranscriptionJob(msgspec.Struct, frozen=True, kw_only=True):
    """A recording that is transcribed, as it is now. Times are Unix seconds; `progress` is 0 to 100."""

    id: str
    object: Literal["audio.transcription"] = "audio.transcription"
    model: str
    filename: str
    status: JobStatus
    progress: int
    seconds: float | None = None
    """Length of the recording; null until it has been decoded."""
    seconds_heard: float | None = None
    """Seconds of the recording that are transcribed."""
    response_format: DiarizedFormat
    """Format of `/content`, if it is asked for no other."""
    formats: list[str] = []
    """Formats that `/content` has, once the job is completed."""
    created_at: int
    completed_at: int | None = None
    expires_at: int | None = None
    estimated_start_at: int | None = None
    estimated_completion_at: int | None = None
    error: JobError | None = None


class TranscriptionJobList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of transcription jobs."""

    object: Literal["list"] = "list"
    data: list[TranscriptionJob]
    first_id: str | None
    last_id: str | None
    has_more: bool


class TranscriptionJobDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `DELETE /v1/audio/transcriptions/{id}`."""

    id: str
    object: Literal["audio.transcription.deleted"] = "audio.transcription.deleted"
    deleted: bool = True
