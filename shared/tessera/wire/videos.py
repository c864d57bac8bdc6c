"""Videos in OpenAI's shapes, with the fields that self-hosted servers add (seed, steps, guidance, frames).

Source: OpenAI's API reference, checked against its Python SDK 3.52: `create` is always multipart there, `seconds` is a
string, nested fields come in brackets. JSON is accepted too.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

VideoStatus = Literal["queued", "in_progress", "completed", "failed"]
VideoFormat = Literal["mp4", "webm", "gif"]

JobDeadline = Annotated[float, Meta(ge=0.1, le=30 * 24 * 3600)]
"""Seconds that a client waits for a clip, images or a transcription: a tenth at least, because no job ends sooner."""


class ImageReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A first frame by data URL."""

    image_url: str


class VideoCreateRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of `POST /v1/videos`. In a form, `input_reference` may also be a file."""

    prompt: Annotated[str, Meta(min_length=1, max_length=8192)]
    model: str | None = None
    seconds: (
        Annotated[str, Meta(pattern=r"^[0-9]{1,4}(\.[0-9]{1,3})?$")] | Annotated[float, Meta(gt=0, lt=1e4)] | None
    ) = None
    """Length of the video in seconds: a string, as OpenAI's clients send it, or a number."""
    size: Annotated[str, Meta(pattern=r"^[0-9]{1,5}x[0-9]{1,5}$")] | None = None
    input_reference: ImageReference | None = None
    # beyond OpenAI
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    steps: Annotated[int, Meta(ge=1)] | None = None
    guidance_scale: Annotated[float, Meta(ge=0, le=100)] | None = None
    guidance_scale_2: Annotated[float, Meta(ge=0, le=100)] | None = None
    """Guidance scale of the steps of low noise, if the model has a second expert for them; else `guidance_scale`."""
    adapters: Annotated[dict[str, Annotated[float, Meta(ge=-4, le=4)]], Meta(max_length=8)] | None = None
    """Low-rank adapters (LoRA) of the model by name, each with its weight; the model's card lists them."""
    negative_prompt: Annotated[str, Meta(max_length=8192)] | None = None
    fps: Annotated[int, Meta(ge=1, le=120)] | None = None
    """Frames per second; the model's own rate if not given."""
    frames: Annotated[int, Meta(ge=1)] | None = None
    """Exact number of frames, instead of `seconds`."""
    output_format: VideoFormat = "mp4"
    """The container: MP4 with H.264, WebM with VP9, or an animated GIF."""
    step_cache: Literal["off", "first_block", "polynomial", "magnitude"] | None = None
    """How denoising steps reuse results of earlier steps, which is faster and gives a slightly different clip."""
    step_cache_threshold: Annotated[float, Meta(gt=0, le=10)] | None = None
    """How much error the step cache may cause; larger is faster."""
    priority: Annotated[int, Meta(ge=0, le=100)] = 0
    """Place among the jobs of the same key: higher waits longer."""
    deadline_s: JobDeadline | None = None
    """Seconds from now until the job is failed if it has not ended."""
    webhook_url: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None
    """Address of a webhook in OpenAI's form, called when the job has ended; needs `webhooks.secret`."""


class VideoRemixRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/videos/{id}/remix`: another prompt for the same seed and settings."""

    prompt: Annotated[str, Meta(min_length=1, max_length=8192)]
    # beyond OpenAI, as in `VideoCreateRequest`
    priority: Annotated[int, Meta(ge=0, le=100)] = 0
    deadline_s: JobDeadline | None = None
    webhook_url: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None


class VideoReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A completed video of this server, by its id."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]


class VideoExtendRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of `POST /v1/videos/extensions`, which continues a completed video."""

    prompt: Annotated[str, Meta(min_length=1, max_length=8192)]
    seconds: Annotated[str, Meta(pattern=r"^[0-9]{1,4}(\.[0-9]{1,3})?$")] | Annotated[float, Meta(gt=0, lt=1e4)]
    """Length of the new part in seconds."""
    video: VideoReference
    # beyond OpenAI, as in `VideoCreateRequest`
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    priority: Annotated[int, Meta(ge=0, le=100)] = 0
    deadline_s: JobDeadline | None = None
    webhook_url: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None


class VideoEditRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of `POST /v1/videos/edits`, which no model here can do."""

    prompt: Annotated[str, Meta(min_length=1, max_length=8192)]
    video: VideoReference


class VideoError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a video failed."""

    code: str
    message: str


class Video(msgspec.Struct, frozen=True, kw_only=True):
    """A video job as it is now. Times are Unix seconds."""

    id: str
    object: Literal["video"] = "video"
    model: str
    prompt: str
    status: VideoStatus
    progress: int
    seconds: str
    size: str
    created_at: int
    completed_at: int | None = None
    expires_at: int | None = None
    estimated_start_at: int | None = None
    """Estimate from the times of other jobs; null if there are none. Beyond OpenAI, as is the next field."""
    estimated_completion_at: int | None = None
    error: VideoError | None = None
    remixed_from_video_id: str | None = None
    extended_from_video_id: str | None = None
    """Beyond OpenAI: id of the video that this one begins with and continues. `seconds` counts both."""


class VideoPreview(msgspec.Struct, frozen=True, kw_only=True):
    """A picture of a video that is being made: the event `video.preview`, beyond OpenAI."""

    id: str
    object: Literal["video.preview"] = "video.preview"
    progress: int
    image_url: str
    """A small JPEG as a data URL: a frame from the middle, at about the resolution of the latents."""


class VideoList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of videos."""

    object: Literal["list"] = "list"
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `DELETE /v1/videos/{id}`."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: bool = True
