"""The settings of the text service."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tessera.settings.section import Port, Positive, Section, says
from tessera.settings.sequence import ReasoningParser, SequenceEngineSettings, ToolParser


class TextSettings(Section, frozen=True, kw_only=True):
    """Language models."""

    host: Annotated[str, says("Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, says("TCP port.")] = 8001
    url: Annotated[str, says("Where the gateway reaches it. Empty: http://host:port.")] = ""
    model: Annotated[str, says("Name of a starter, path of a model directory, or hf:owner/name of a model hub.")] = (
        "smollm2-135m-instruct"
    )
    max_output_tokens: Annotated[Positive, says("Most tokens one answer may have.")] = 4096
    max_choices: Annotated[Positive, says("Largest `n`.")] = 16
    pinned_prompts: Annotated[
        list[str], says("System prompts that are computed at the start and stay in the prefix cache.")
    ] = msgspec.field(default_factory=list)
    tool_parser: Annotated[ToolParser, says("How the model writes tool calls. `auto`: as its template shows.")] = "auto"
    reasoning_parser: Annotated[
        ReasoningParser, says("How the model writes thoughts. `auto`: as its template shows.")
    ] = "auto"
    engine: SequenceEngineSettings = SequenceEngineSettings()
