"""From the body of `POST /v1/videos` to the input of a video job: everything that can be wrong is said here, before
there is a record.

Does not know HTTP beyond the form, and does not look into an image further than its first bytes: the worker decodes it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

import msgspec

from tessera.api.generation_parameters import (
    cost_of_frames,
    guidance_of,
    second_guidance_of,
    seed_of,
    size_of,
    steps_of,
)
from tessera.api.videos.image_dimensions import image_size, image_type
from tessera.errors import InvalidRequestError, PayloadTooLargeError, UnsupportedMediaError
from tessera.jobs.artifacts.store import ArtifactStore
from tessera.settings.video import VideoSettings
from tessera.web.forms import Form
from tessera.wire.decoding import convert_form, decode_json
from tessera.wire.jobs import VideoInput
from tessera.wire.models import Card
from tessera.wire.videos import VideoCreateRequest, VideoRemixRequest

DEFAULT_SECONDS = 4.0
DEFAULT_FPS = 16
MOST_FPS_OF_A_GIF = 50
"""Its frames are shown for whole hundredths of a second, and players slow down those of one hundredth."""
IMAGE_FIELD = "input_reference"


class ImageUpload(msgspec.Struct, frozen=True):
    """A first frame: encoded bytes and the type that they begin like."""

    data: bytes
    content_type: str


def read_request(form: Form, body: bytes, *, is_form: bool) -> VideoCreateRequest:
    """The typed request. Raises `InvalidRequestError` naming the field."""
    unknown = [name for name in form.files if name != IMAGE_FIELD]
    if unknown:
        raise InvalidRequestError(
            f"`{unknown[0]}` is not a file of this request; only `{IMAGE_FIELD}` is", param=unknown[0]
        )
    return convert_form(form.fields, VideoCreateRequest) if is_form else decode_json(body, VideoCreateRequest)


def read_remix(form: Form, body: bytes, *, is_form: bool) -> VideoRemixRequest:
    """The typed request of a remix. Raises `InvalidRequestError` naming the field."""
    if form.files:
        name = next(iter(form.files))
        raise InvalidRequestError(f"`{name}` is not a file of this request: a remix takes none", param=name)
    return convert_form(form.fields, VideoRemixRequest) if is_form else decode_json(body, VideoRemixRequest)


def stored_input(artifacts: ArtifactStore, given: VideoInput) -> ImageUpload | None:
    """What an earlier job began with: its first frame, or the video that it went on from. Raises `NotFoundError`."""
    if given.image is None:
        return None
    with artifacts.open(given.image) as file:
        data = file.read()
    return ImageUpload(data, _image_type(data) if given.extends is None else "application/octet-stream")


def check_limits(given: VideoInput, card: Card, settings: VideoSettings) -> None:
    """Refuse to make again what was allowed once and is no more. Raises `InvalidRequestError`."""
    size_of(f"{given.width}x{given.height}", card, settings)
    steps_of(given.steps, card, settings)
    own_fps = card.fps or DEFAULT_FPS
    most = frames_for(settings.max_seconds, min(given.fps, own_fps), card.frames_multiple)
    if given.frames > most:
        raise InvalidRequestError(f"the video has {given.frames} frames; the limit is {most} now", param="video_id")


def body_hash(form: Form) -> str:
    """A hash of what a request asks for: equal for repeated requests, whatever their multipart boundary is."""
    files = {name: hashlib.sha256(upload.data).hexdigest() for name, upload in form.files.items()}
    return hashlib.sha256(msgspec.json.encode([form.fields, files], order="deterministic")).hexdigest()


def read_image(form: Form, request: VideoCreateRequest, card: Card, settings: VideoSettings) -> ImageUpload | None:
    """The first frame, given as a file or as a data URL.

    Raises:
        InvalidRequestError: the model needs one, or takes none, or it is given twice or not as a data URL, or it is
            damaged or has more pixels than `video.max_pixels`.
        PayloadTooLargeError: it is over `video.max_image_bytes`.
        UnsupportedMediaError: it is not PNG, JPEG or WebP.
    """
    upload = form.files.get(IMAGE_FIELD)
    if upload is not None and request.input_reference is not None:
        raise InvalidRequestError(f"`{IMAGE_FIELD}` is given twice", param=IMAGE_FIELD)
    if upload is None and request.input_reference is None:
        if card.image_input == "required":
            raise InvalidRequestError(
                f"the model {card.id!r} starts from an image: send it as `{IMAGE_FIELD}`",
                param=IMAGE_FIELD,
                code="missing_required_parameter",
            )
        return None
    if card.image_input == "none":
        raise InvalidRequestError(
            f"the model {card.id!r} takes no `{IMAGE_FIELD}`: it is text to video", param=IMAGE_FIELD
        )
    if upload is not None:
        data = upload.data
    else:
        assert request.input_reference is not None
        data = _from_data_url(request.input_reference.image_url)
    if len(data) > settings.max_image_bytes:
        raise PayloadTooLargeError(
            f"`{IMAGE_FIELD}` has {len(data)} bytes; the limit is {settings.max_image_bytes}", param=IMAGE_FIELD
        )
    kind, size = _image_type(data), image_size(data)
    if size is None:
        raise InvalidRequestError(f"`{IMAGE_FIELD}` is damaged: its header says no size", param=IMAGE_FIELD)
    if size[0] * size[1] > settings.max_pixels:
        raise InvalidRequestError(
            f"`{IMAGE_FIELD}` has {size[0]}x{size[1]} pixels; the limit is {settings.max_pixels} in all",
            param=IMAGE_FIELD,
        )
    return ImageUpload(data, kind)


def make_input(
    request: VideoCreateRequest, card: Card, settings: VideoSettings, *, image: str | None, request_id: str | None
) -> VideoInput:
    """What the worker gets, every default decided.

    Args:
        request: as decoded.
        card: of the model that will do it.
        settings: limits and defaults.
        image: artifact key of the first frame.
        request_id: for the worker's log.

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
        image=image,
        output_format=request.output_format,
        request_id=request_id,
    )


def _adapters(request: VideoCreateRequest, card: Card) -> dict[str, float]:
    """What the request asks for, without those that have no weight."""
    for name in request.adapters or {}:
        if name not in card.adapters:
            known = ", ".join(card.adapters) or "none: `video.adapters` lists them"
            raise InvalidRequestError(f"{card.id!r} has no adapter {name!r}; it has: {known}", param="adapters")
    return {name: weight for name, weight in sorted((request.adapters or {}).items()) if weight}


def cost_of(given: VideoInput) -> float:
    """How much work a video is: millions of pixels that are denoised, over all passes."""
    return cost_of_frames(given.width, given.height, given.frames, given.steps, given.guidance_scale)


def frames_for(seconds: float, fps: int, multiple: int) -> int:
    """How many frames make `seconds`: the nearest `k * multiple + 1`, at least one."""
    return max(0, round((seconds * fps - 1) / multiple)) * multiple + 1


def _length(request: VideoCreateRequest, card: Card, settings: VideoSettings) -> tuple[float, int, int]:
    """Seconds, frames and frames per second.

    However many frames a second are asked for, there are at most as many as `video.max_seconds` have at the model's
    own rate: they are what costs.
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


def _from_data_url(url: str) -> bytes:
    head, comma, encoded = url.partition(",")
    if not head.startswith("data:") or not head.endswith(";base64") or not comma:
        raise InvalidRequestError(
            "`input_reference.image_url` must be a data URL (data:image/png;base64,…): nothing is fetched for you",
            param="input_reference.image_url",
        )
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise InvalidRequestError(
            f"`input_reference.image_url` is not valid base64: {error}", param="input_reference.image_url"
        ) from error


def _image_type(data: bytes) -> str:
    kind = image_type(data)
    if kind is None:
        raise UnsupportedMediaError(f"`{IMAGE_FIELD}` is not a PNG, JPEG or WebP image", param=IMAGE_FIELD)
    return kind
