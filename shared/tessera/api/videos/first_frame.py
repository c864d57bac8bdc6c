"""The image that a video starts from, as a file of a form or as a data URL. Nothing is fetched and nothing decoded.

The image is checked by its first bytes alone; the worker decodes it.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from tessera.api.videos.image_header import image_size, image_type
from tessera.errors import InvalidRequestError, PayloadTooLargeError, UnsupportedMediaError
from tessera.settings.video import VideoSettings
from tessera.web.forms import Form
from tessera.wire.models import Card
from tessera.wire.videos import VideoCreateRequest

IMAGE_FIELD = "input_reference"
"""Name of the field, and of the file of a form, that has the image."""


class InputFile(msgspec.Struct, frozen=True):
    """A file that a job begins with: encoded bytes and their content type."""

    data: bytes
    content_type: str


def read_first_frame(form: Form, request: VideoCreateRequest, card: Card, settings: VideoSettings) -> InputFile | None:
    """The image that a request starts from; None where it starts from none.

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
    kind, size = type_of_image(data), image_size(data)
    if size is None:
        raise InvalidRequestError(f"`{IMAGE_FIELD}` is damaged: its header says no size", param=IMAGE_FIELD)
    if size[0] * size[1] > settings.max_pixels:
        raise InvalidRequestError(
            f"`{IMAGE_FIELD}` has {size[0]}x{size[1]} pixels; the limit is {settings.max_pixels} in all",
            param=IMAGE_FIELD,
        )
    return InputFile(data, kind)


def type_of_image(data: bytes) -> str:
    """The content type of an image. Raises `UnsupportedMediaError` for anything but PNG, JPEG and WebP."""
    kind = image_type(data)
    if kind is None:
        raise UnsupportedMediaError(f"`{IMAGE_FIELD}` is not a PNG, JPEG or WebP image", param=IMAGE_FIELD)
    return kind


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
