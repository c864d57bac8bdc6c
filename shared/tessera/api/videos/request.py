"""Makes a `VideoOrder` of the body of `POST /v1/videos`: every field checked and every default decided.

What can be wrong with a request is said here, before there is a record. Orders that begin with a completed video
(remixes and extensions) are in `tessera.api.videos.derived_request`. Does not know HTTP beyond the form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tessera.api.generation_parameters import (
    cost_of_frames,
    guidance_of,
    second_guidance_of,
    seed_of,
    size_of,
    steps_of,
)
from tessera.api.job_resources import JobResources
from tessera.api.videos.first_frame import IMAGE_FIELD, InputFile, read_first_frame
from tessera.errors import InvalidRequestError, NotFoundError
from tessera.settings.video import VideoSettings
from tessera.web.forms import Form
from tessera.wire.jobs import VideoInput
from tessera.wire.models import Card
from tessera.wire.videos import VideoCreateRequest, VideoExtendRequest, VideoRemixRequest

DEFAULT_SECONDS = 4.0
"""Length of a video whose request names none."""
DEFAULT_FPS = 16
"""Frames per second of a model whose card names none."""
MOST_FPS_OF_A_GIF = 50
"""A GIF's frames are shown for whole hundredths of a second, and players slow down those of one hundredth."""
_ID = re.compile(r"^video_[0-9a-f]{32}$")


@dataclass(frozen=True)
class StoredFile:
    """A file of an earlier job, which the new job keeps a copy of, so that the earlier job may be deleted."""

    key: str
    """Artifact key of the file."""
    content_type: str | None
    """None for an image, whose type its first bytes tell."""


@dataclass(frozen=True)
class VideoOrder:
    """A video that was asked for, checked: what `tessera.api.videos.submission.submit` accepts."""

    request: VideoCreateRequest | VideoRemixRequest | VideoExtendRequest
    """The request as it was decoded; it has the priority, the deadline and the webhook."""
    job_input: VideoInput
    """The input of the job. Submission sets its `image` and its `request_id`."""
    card: Card
    begins_with: InputFile | StoredFile | None
    """The first frame, or the video that goes on; None for a video from text alone."""
    fingerprint: str
    """A hash of what was asked for: the same for a repeated request."""


async def order_from(form: Form, jobs: JobResources) -> VideoOrder:
    """The order of `POST /v1/videos`.

    Raises:
        InvalidRequestError: a field that is wrong, or that this model or server does not allow; names the field.
        PayloadTooLargeError, UnsupportedMediaError: as `read_first_frame`.
        ModelNotFoundError, UnavailableError: as `Cards`.
    """
    unknown = next((name for name in form.files if name != IMAGE_FIELD), None)
    if unknown is not None:
        raise InvalidRequestError(f"`{unknown}` is not a file of this request; only `{IMAGE_FIELD}` is", param=unknown)
    request = form.decode(VideoCreateRequest)
    card = await jobs.cards(request.model)
    first_frame = read_first_frame(form, request, card, jobs.settings.video)
    job_input = make_input(request, card, jobs.settings.video)
    return VideoOrder(request, job_input, card, first_frame, form.fingerprint())


def checked_id(video_id: str) -> str:
    """The id of a video, or of what could be one.

    Raises:
        NotFoundError: no video has such an id.
    """
    if not _ID.match(video_id):
        raise NotFoundError(f"there is no video {video_id!r}", code="video_not_found")
    return video_id


def make_input(request: VideoCreateRequest, card: Card, settings: VideoSettings) -> VideoInput:
    """The input of the job, every default decided.

    Args:
        request: the decoded body.
        card: the card of the model that will make the video.
        settings: limits and defaults.

    Raises:
        InvalidRequestError: a size, length or number of steps that cannot be; names the field and the limit.
    """
    width, height = size_of(request.size, card, settings)
    seconds, frames, fps = _length(request, card, settings)
    cache = request.step_cache or settings.step_cache
    # The operator's threshold is for the operator's way of caching.
    threshold = settings.step_cache_threshold if cache == settings.step_cache else None
    return VideoInput(
        model=card.id,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt or "",
        width=width,
        height=height,
        frames=frames,
        fps=fps,
        seconds=f"{seconds:g}",
        steps=steps_of(request.steps, card, settings),
        guidance_scale=guidance_of(request.guidance_scale, card),
        guidance_scale_2=second_guidance_of(request.guidance_scale_2, request.guidance_scale, card),
        adapters=_adapters(request, card),
        seed=seed_of(request.seed),
        step_cache=cache,
        step_cache_threshold=request.step_cache_threshold or threshold or None,
        image=None,
        output_format=request.output_format,
        request_id=None,
    )


def _adapters(request: VideoCreateRequest, card: Card) -> dict[str, float]:
    """The adapters that the request asks for with a weight other than zero."""
    for name in request.adapters or {}:
        if name not in card.adapters:
            known = ", ".join(card.adapters) or "none: `video.adapters` lists them"
            raise InvalidRequestError(f"{card.id!r} has no adapter {name!r}; it has: {known}", param="adapters")
    return {name: weight for name, weight in sorted((request.adapters or {}).items()) if weight}


def check_limits(given: VideoInput, card: Card, settings: VideoSettings) -> None:
    """Refuse to make again what the limits of an earlier day allowed.

    Raises:
        InvalidRequestError: the size, the steps or the frames are over a limit.
    """
    size_of(f"{given.width}x{given.height}", card, settings)
    steps_of(given.steps, card, settings)
    own_fps = card.fps or DEFAULT_FPS
    most = frames_for(settings.max_seconds, min(given.fps, own_fps), card.frames_multiple)
    if given.frames > most:
        raise InvalidRequestError(f"the video has {given.frames} frames; the limit is {most} now", param="video_id")


def cost_of(job_input: VideoInput) -> float:
    """The cost of a video: millions of pixels that are denoised, over all passes."""
    size = job_input.width, job_input.height
    return cost_of_frames(*size, job_input.frames, job_input.steps, job_input.guidance_scale)


def frames_for(seconds: float, fps: int, multiple: int) -> int:
    """The number of frames of `seconds`: the nearest `k * multiple + 1`, at least one."""
    return max(0, round((seconds * fps - 1) / multiple)) * multiple + 1


def _length(request: VideoCreateRequest, card: Card, settings: VideoSettings) -> tuple[float, int, int]:
    """Seconds, frames and frames per second.

    Frames are what costs. So at any frame rate a clip has at most as many frames as `video.max_seconds` have at the
    model's own rate.
    """
    own_fps = card.fps or DEFAULT_FPS
    fps = request.fps or own_fps
    if request.output_format == "gif" and fps > MOST_FPS_OF_A_GIF:
        raise InvalidRequestError(
            f"`fps` is {fps}; a GIF shows at most {MOST_FPS_OF_A_GIF}: ask for fewer, or for `output_format` mp4",
            param="fps",
        )
    multiple = card.frames_multiple
    most = frames_for(settings.max_seconds, min(fps, own_fps), multiple)
    if request.frames is None:
        seconds = float(request.seconds) if request.seconds is not None else min(DEFAULT_SECONDS, settings.max_seconds)
        if not 0 < seconds <= settings.max_seconds:
            raise InvalidRequestError(
                f"`seconds` is {request.seconds}; it must be over 0 and at most {settings.max_seconds}", param="seconds"
            )
        frames = frames_for(seconds, fps, multiple)
    else:
        frames = _exact(request, multiple)
        seconds = frames / fps
    if frames > most:
        raise InvalidRequestError(
            f"the clip would have {frames} frames; the limit is {most} at {fps} frames per second",
            param="frames" if request.frames is not None else "fps",
        )
    return seconds, frames, fps


def _exact(request: VideoCreateRequest, multiple: int) -> int:
    assert request.frames is not None
    if request.seconds is not None:
        raise InvalidRequestError("`frames` and `seconds` say the same: send one of them", param="frames")
    if (request.frames - 1) % multiple:
        below = (request.frames - 1) // multiple * multiple + 1
        raise InvalidRequestError(
            f"`frames` is {request.frames}; a clip of this model has one more than a multiple of {multiple}: the "
            f"nearest are {below} and {below + multiple}",
            param="frames",
        )
    return request.frames
