"""The request of `POST /tokenize`, as vLLM has it. Its answer stands with those of tools and tokens."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from tessera.wire.chat import Request
from tessera.wire.conversation import Message
from tessera.wire.tools import Tool
from tessera.wire.vllm.sampling import Source


class TokenizeRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /tokenize`: a `prompt`, or `messages` as the model's template writes them."""

    model: str
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=2048)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    chat_template: Source | None = None
    """A Jinja template in place of the model's own, where the setting `request_chat_templates` allows it."""
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    """Whether the prompt opens the assistant's turn: true unless `continue_final_message` is."""
    continue_final_message: bool = False
    """Whether the prompt ends within the last message."""
    add_special_tokens: bool = True
    """Whether a `prompt` gets special tokens; a chat template writes its own."""
    return_token_strs: bool = False
