"""Images in OpenAI's shapes, with the fields that self-hosted servers add (seed, steps, guidance).

Source: OpenAI's API reference, checked against its Python SDK 3.52. What no diffusion model here can do (a transparent
background, moderation, partial images) is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tessera.wire.videos import JobDeadline

ImageFormat = Literal["png", "jpeg", "webp"]
Quality = Literal["auto", "low", "medium", "high", "standard", "hd"]


class ImageGenerationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/images/generations`."""

    prompt: Annotated[str, Meta(min_length=1, max_length=8192)]
    model: str | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    size: Annotated[str, Meta(pattern=r"^([0-9]{1,5}x[0-9]{1,5}|auto)$")] | None = None
    response_format: Literal["b64_json", "url"] | None = None
    output_format: ImageFormat | None = None
    output_compression: Annotated[int, Meta(ge=0, le=100)] | None = None
    """Quality of a JPEG or WebP, from 0 to 100, the best."""
    quality: Quality | None = None
    """Chooses the denoising steps: `low` is half of the model's own number, `high` and `hd` are twice as many."""
    background: Literal["auto", "opaque"] | None = None
    stream: Literal[False] | None = None
    # beyond OpenAI
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """Seed of the first image; each further image has the next."""
    steps: Annotated[int, Meta(ge=1)] | None = None
    guidance_scale: Annotated[float, Meta(ge=0, le=100)] | None = None
    negative_prompt: Annotated[str, Meta(max_length=8192)] | None = None
    priority: Annotated[int, Meta(ge=0, le=100)] = 0
    """Place among the jobs of the same key: higher waits longer."""
    deadline_s: JobDeadline | None = None
    """Seconds that the client waits, at most `video.image_wait_s`; without it, `video.image_patience_s`. Images that
    are estimated to take longer are refused, and those that do are failed."""


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """One image. `seed` is beyond OpenAI and makes the same image again (other requests of a batch may change the last
    bit of a colour)."""

    b64_json: str
    seed: int


class ImagesResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /v1/images/generations`."""

    created: int
    data: list[Image]
    background: Literal["opaque"]
    output_format: ImageFormat
    quality: Literal["low", "medium", "high"]
    size: str
