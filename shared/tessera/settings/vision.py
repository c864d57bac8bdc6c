"""The settings of the vision service."""

from __future__ import annotations

from typing import Annotated

from tessera.settings.section import Port, Positive, Section, says
from tessera.settings.sequence import ReasoningParser, SequenceEngineSettings, ToolParser


class VisionSettings(Section, frozen=True, kw_only=True):
    """Vision-language models."""

    host: Annotated[str, says("Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, says("TCP port.")] = 8002
    url: Annotated[str, says("Where the gateway reaches it. Empty: http://host:port.")] = ""
    model: Annotated[str, says("Name of a starter, path of a model directory, or hf:owner/name of a model hub.")] = (
        "scenes-vision"
    )
    max_output_tokens: Annotated[Positive, says("Most tokens one answer may have.")] = 1024
    max_choices: Annotated[Positive, says("Largest `n`.")] = 4
    max_images: Annotated[Positive, says("Most images in one request.")] = 8
    max_image_bytes: Annotated[Positive, says("Largest encoded image.")] = 20 * 1024 * 1024
    max_image_pixels: Annotated[Positive, says("Most pixels, checked from the header before decoding.")] = 33_554_432
    tool_parser: Annotated[ToolParser, says("How the model writes tool calls. `auto`: as its template shows.")] = "auto"
    reasoning_parser: Annotated[
        ReasoningParser, says("How the model writes thoughts. `auto`: as its template shows.")
    ] = "auto"
    engine: SequenceEngineSettings = SequenceEngineSettings(
        kv_cache_bytes=64 * 1024 * 1024, max_batch_tokens=1024, max_running=8, max_waiting=64
    )
