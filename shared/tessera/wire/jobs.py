"""The durable record of a job. Its `input` has what the worker needs, typed by the kind of job. Does not know Redis."""

from __future__ import annotations

from typing import Literal

import msgspec

from tessera.wire.audio import DiarizedFormat, VADConfig
from tessera.wire.images import ImageFormat
from tessera.wire.videos import VideoFormat

JobKind = Literal["video", "image", "transcription", "response"]
JobStatus = Literal["queued", "in_progress", "completed", "failed", "cancelled"]
ENDED: frozenset[str] = frozenset({"completed", "failed", "cancelled"})


class JobError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job failed."""

    code: str
    message: str


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A result file: its key in the artifact store, size and checksum."""

    key: str
    content_type: str
    bytes: int
    sha256: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is now. Times are Unix seconds; `progress` is 0 to 100."""

    id: str
    kind: JobKind
    owner: str
    """Owner of the job: the beginning of the API key's digest, or `anonymous`."""
    queue: str
    """Name of the queue; the workers that listen to it can do the job."""
    status: JobStatus
    input: msgspec.Raw
    progress: int = 0
    done: float | None = None
    """How much of `total` is done, in the unit of the kind of job (seconds of a recording); None if unknown or not
    counted."""
    total: float | None = None
    attempts: int = 0
    cancel_requested: bool = False
    """Whether the job is cancelled but a worker still has it, until that worker's next step."""
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    expires_at: float | None = None
    deadline: float | None = None
    """Time at which the job is failed if it has not ended; None for no limit."""
    estimated_start_at: float | None = None
    estimated_end_at: float | None = None
    webhook: str | None = None
    """Address that is called when the job has ended."""
    webhook_result: str | None = None
    """Result of the last call of the webhook."""
    error: JobError | None = None
    checkpoint: str | None = None
    """Key of the artifact from which another attempt can go on; None if there is none."""
    artifacts: dict[str, Artifact] = {}


class VideoInput(msgspec.Struct, frozen=True, kw_only=True):
    """`input` of a job of kind `video`: everything a worker needs; media by artifact key."""

    model: str
    prompt: str
    negative_prompt: str
    width: int
    height: int
    frames: int
    fps: int
    seconds: str
    steps: int
    guidance_scale: float
    seed: int
    guidance_scale_2: float | None = None
    adapters: dict[str, float] = {}
    step_cache: Literal["off", "first_block", "polynomial", "magnitude"] = "off"
    step_cache_threshold: float | None = None
    image: str | None = None
    output_format: VideoFormat = "mp4"
    remixed_from: str | None = None
    """Id of the video that this one varies."""
    extends: str | None = None
    """Id of the video that this one continues. `image` is then the key of that video's file, whose last frame is the
    first of the new ones."""
    before: int = 0
    """Number of frames of the video that this one continues."""
    request_id: str | None = None


class ImageInput(msgspec.Struct, frozen=True, kw_only=True):
    """`input` of a job of kind `image`: one or more images of one prompt."""

    model: str
    prompt: str
    negative_prompt: str
    width: int
    height: int
    count: int
    steps: int
    guidance_scale: float
    seed: int
    """Seed of the first image; each further image has the next."""
    output_format: ImageFormat
    compression: int | None
    """Quality of a JPEG or WebP, 0 to 100; None for the encoder's default."""
    request_id: str | None = None


class TranscriptionInput(msgspec.Struct, frozen=True, kw_only=True):
    """`input` of a job of kind `transcription`; the recording and the speakers' references by artifact key."""

    model: str
    recording: str
    bytes: int
    """Size of the recording in bytes."""
    filename: str
    language: str | None = None
    prompt: str | None = None
    response_format: DiarizedFormat = "json"
    temperature: float = 0.0
    timestamp_granularities: list[Literal["word", "segment"]] = []
    chunking_strategy: Literal["auto", "none"] | VADConfig | None = None
    known_speaker_names: list[str] = []
    speakers: str | None = None
    """Artifact key of a JSON list of data URLs: recordings of the known speakers."""
    request_id: str | None = None


class ResponseInput(msgspec.Struct, frozen=True, kw_only=True):
    """`input` of a job of kind `response`."""

    model: str
    body: str
    """Artifact key of the body for the upstream, with the whole conversation."""
    stream: bool = False
    """Whether the events are kept for clients that watch."""
    request_id: str | None = None
