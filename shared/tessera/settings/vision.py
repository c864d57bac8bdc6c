"""The settings of the vision service."""

from __future__ import annotations

from typing import Annotated

from tessera.settings.section import HOST, MODEL, PORT, URL, Port, Positive, PositiveFloat, Section, described
from tessera.settings.sequence import (
    MAX_TOKENS_POLICY,
    REASONING_PARSER,
    REQUEST_CHAT_TEMPLATES,
    TOOL_PARSER,
    MaxTokensPolicy,
    ReasoningParser,
    SequenceEngineSettings,
    ToolParser,
)


class VisionSettings(Section, frozen=True, kw_only=True):
    """The vision service: vision-language models."""

    host: Annotated[str, HOST] = "127.0.0.1"
    port: Annotated[Port, PORT] = 8002
    url: Annotated[str, URL] = ""
    model: Annotated[str, MODEL] = "scenes-vision"
    max_output_tokens: Annotated[Positive, described("Most tokens of one answer.")] = 1024
    max_tokens_policy: Annotated[MaxTokensPolicy, MAX_TOKENS_POLICY] = "clamp"
    max_choices: Annotated[Positive, described("Largest `n` of a request, which is the number of its answers.")] = 4
    max_images: Annotated[Positive, described("Most images in one request.")] = 8
    max_image_bytes: Annotated[Positive, described("Largest encoded image, in bytes.")] = 20 * 1024 * 1024
    max_image_pixels: Annotated[
        Positive, described("Most pixels of one image, checked in its header before it is decoded.")
    ] = 33_554_432
    max_request_pixels: Annotated[
        Positive,
        described("Most pixels of all images of one request, checked in their headers before any is decoded."),
    ] = 67_108_864
    exact_image_pixels: Annotated[
        Positive,
        described(
            "Pixels above which an image is made smaller, to so many, before the model's own preprocessing sees it. "
            "Up to it, answers are those of the image as it was sent."
        ),
    ] = 16_777_216
    image_processes: Annotated[
        Positive, described("Most processes that decode images, each for one request at a time.")
    ] = 2
    image_timeout_s: Annotated[
        PositiveFloat, described("Seconds that decoding the images of one request may take.")
    ] = 20.0
    tool_parser: Annotated[ToolParser, TOOL_PARSER] = "auto"
    reasoning_parser: Annotated[ReasoningParser, REASONING_PARSER] = "auto"
    request_chat_templates: Annotated[bool, REQUEST_CHAT_TEMPLATES] = False
    engine: SequenceEngineSettings = SequenceEngineSettings(
        kv_cache_bytes=64 * 1024 * 1024, max_batch_tokens=1024, max_running=8, max_waiting=64
    )
