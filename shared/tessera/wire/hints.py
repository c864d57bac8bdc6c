"""Parameters that clients send and that change no answer, as the base of the requests that accept them.

Each says what it does here. The page `services/guides/parameters.md` lists them. Does not know what a request asks for.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class Hints(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hints of OpenAI's API that every generating request accepts."""

    user: str | None = None
    """Without effect: fair shares and limits belong to API keys."""
    safety_identifier: str | None = None
    """Without effect: nobody is watched by it, and limits belong to API keys."""
    metadata: dict[str, Any] | None = None
    """Without effect: nothing of an answer is kept."""
    store: bool | None = None
    """Without effect: nothing of an answer is kept, whether it is true or false."""
    service_tier: Literal["auto", "default"] | None = None
    """Without effect: there is one tier."""
    prompt_cache_key: Annotated[str, Meta(max_length=1024)] | None = None
    """Requests with the same key go to the same upstream of a gateway, where their common beginning is cached."""
    prompt_cache_retention: Literal["in-memory", "in_memory", "24h"] | None = None
    """Without effect: cached prefixes stay as long as there is room for them."""


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stream has beside the text. Without effect where nothing is streamed."""

    include_usage: bool = False
    """Whether a last chunk counts the tokens."""
    include_obfuscation: bool = False
    """Whether chunks are padded to sizes that tell an eavesdropper less about their text."""
    # beyond OpenAI
    continuous_usage_stats: bool = False
    """Whether every chunk counts the tokens so far."""
