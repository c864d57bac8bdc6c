"""From the body of `POST /v1/videos` to the input of a video job: everything that can be wrong is said here, before
there is a record.

Does not know HTTP beyond the form, and does not look into an image further than its first bytes: the worker decodes it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets

import msgspec

from tessera.errors import InvalidRequestError, PayloadTooLargeError, UnsupportedMediaError
from tessera.settings import VideoSettings
from tessera.web.forms import Form
from tessera.wire.decoding import convert_form, decode_json
from tessera.wire.jobs import VideoInput
from tessera.wire.models import Card
from tessera.wire.videos import VideoCreateRequest

DEFAULT_SECONDS = 4.0
DEFAULT_SIZE = "832x480"
DEFAULT_FPS = 16
DEFAULT_STEPS, DEFAULT_GUIDANCE_SCALE = 30, 5.0
"""Where neither the request, nor the operator, nor the model's card says."""
MIN_PIXELS_OF_A_SIDE = 16
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


def body_hash(form: Form) -> str:
    """A hash of what a request asks for: equal for repeated requests, whatever their multipart boundary is."""
    files = {name: hashlib.sha256(upload.data).hexdigest() for name, upload in form.files.items()}
    return hashlib.sha256(msgspec.json.encode([form.fields, files], order="deterministic")).hexdigest()


def read_image(form: Form, request: VideoCreateRequest, card: Card, settings: VideoSettings) -> ImageUpload | None:
    """The first frame, given as a file or as a data URL.

    Raises:
        InvalidRequestError: the model needs one, or takes none, or it is given twice or not as a data URL.
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
    return ImageUpload(data, _image_type(data))


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
    width, height = _size(request, card, settings)
    seconds = float(request.seconds) if request.seconds is not None else min(DEFAULT_SECONDS, settings.max_seconds)
    if not 0 < seconds <= settings.max_seconds:
        raise InvalidRequestError(
            f"`seconds` is {request.seconds}; it must be over 0 and at most {settings.max_seconds}", param="seconds"
        )
    steps = request.steps or min(settings.steps or card.steps or DEFAULT_STEPS, settings.max_steps)
    if steps > settings.max_steps:
        raise InvalidRequestError(f"`steps` is {steps}; the limit is {settings.max_steps}", param="steps")
    guidance_scale = next(
        scale for scale in (request.guidance_scale, card.guidance_scale, DEFAULT_GUIDANCE_SCALE) if scale is not None
    )
    fps = card.fps or DEFAULT_FPS
    cache = request.step_cache or settings.step_cache
    # The operator's threshold is for the operator's way of caching.
    threshold = settings.step_cache_threshold if cache == settings.step_cache else None
    return VideoInput(
        model=card.id,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt or "",
        width=width,
        height=height,
        frames=frames_for(seconds, fps, card.frames_multiple),
        fps=fps,
        seconds=f"{seconds:g}",
        steps=steps,
        guidance_scale=guidance_scale,
        seed=request.seed if request.seed is not None else secrets.randbelow(2**31),
        step_cache=cache,
        step_cache_threshold=request.step_cache_threshold or threshold or None,
        image=image,
        request_id=request_id,
    )


def cost_of(given: VideoInput) -> float:
    """How much work a video is: millions of pixels that are denoised, over all passes."""
    passes = given.steps * (2 if given.guidance_scale > 1.0 else 1)
    return given.width * given.height * given.frames * passes / 1e6


def frames_for(seconds: float, fps: int, multiple: int) -> int:
    """How many frames make `seconds`: the nearest `k * multiple + 1`, at least one."""
    return max(0, round((seconds * fps - 1) / multiple)) * multiple + 1


def _size(request: VideoCreateRequest, card: Card, settings: VideoSettings) -> tuple[int, int]:
    size = request.size or (card.sizes[0] if card.sizes else DEFAULT_SIZE)
    width, height = (int(side) for side in size.split("x"))
    made_for = f"; the model is made for {', '.join(card.sizes)}" if card.sizes else ""
    if min(width, height) < MIN_PIXELS_OF_A_SIDE:
        raise InvalidRequestError(
            f"`size` is {size}; each side has at least {MIN_PIXELS_OF_A_SIDE} pixels{made_for}", param="size"
        )
    if width % card.size_multiple or height % card.size_multiple:
        raise InvalidRequestError(
            f"`size` is {size}; both sides must be multiples of {card.size_multiple}{made_for}", param="size"
        )
    if width * height > settings.max_pixels:
        raise InvalidRequestError(
            f"`size` is {size}, which is {width * height} pixels; the limit is {settings.max_pixels}{made_for}",
            param="size",
        )
    return width, height


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
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise UnsupportedMediaError(f"`{IMAGE_FIELD}` is not a PNG, JPEG or WebP image", param=IMAGE_FIELD)
