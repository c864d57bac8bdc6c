"""The settings of the text service."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tessera.settings.encoders import EncoderEngineSettings, EncoderSettings
from tessera.settings.section import HOST, MODEL, PORT, URL, Port, Positive, Section, described
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


class TextSettings(Section, frozen=True, kw_only=True):
    """The text service: language models."""

    host: Annotated[str, HOST] = "127.0.0.1"
    port: Annotated[Port, PORT] = 8001
    url: Annotated[str, URL] = ""
    model: Annotated[str, MODEL] = "smollm2-135m-instruct"
    max_output_tokens: Annotated[Positive, described("Most tokens of one answer.")] = 4096
    max_tokens_policy: Annotated[MaxTokensPolicy, MAX_TOKENS_POLICY] = "clamp"
    max_choices: Annotated[Positive, described("Largest `n` of a request, which is the number of its answers.")] = 16
    pinned_prompts: Annotated[
        list[str], described("System prompts that are computed at the start and never leave the prefix cache.")
    ] = msgspec.field(default_factory=list)
    tool_parser: Annotated[ToolParser, TOOL_PARSER] = "auto"
    reasoning_parser: Annotated[ReasoningParser, REASONING_PARSER] = "auto"
    request_chat_templates: Annotated[bool, REQUEST_CHAT_TEMPLATES] = False
    encoders: Annotated[
        list[EncoderSettings],
        described(
            "Encoders that the service has beside its language model, each a table `[[text.encoders]]` with `source` "
            "and, where the files do not say it, `name`, `role`, `pooling`, `normalize`, `dimensions`, `max_tokens`, "
            "`template`, `instruction`, `categories` and `threshold`."
        ),
    ] = msgspec.field(default_factory=list)
    engine: SequenceEngineSettings = SequenceEngineSettings()
    encoder_engine: EncoderEngineSettings = EncoderEngineSettings()
