"""What a stream's chunks have beside the text when `stream_options` ask for it: token counts and padding.

Does not know the shape of a chunk.
"""

from __future__ import annotations

import secrets

from msgspec import UNSET, UnsetType

from tessera.language.usage import TokenCount, usage
from tessera.wire.chat import Delta, Usage
from tessera.wire.hints import StreamOptions

PADDED_CHARACTERS = 32
"""Text and padding of a chunk are together a multiple of this, so that most tokens give chunks of one size."""


class StreamExtras:
    """The extras of one stream.

    Args:
        options: of the request; None for a plain stream.
        spent: count the stream's tokens, one for each prompt, kept up to date by the caller.
    """

    def __init__(self, options: StreamOptions | None, *spent: TokenCount) -> None:
        self._options = options or StreamOptions()
        self._spent = spent

    @property
    def counted_at_the_end(self) -> bool:
        """Whether a last chunk without choices counts the tokens."""
        return self._options.include_usage

    def usage(self, *, last: bool) -> Usage | UnsetType | None:
        """The `usage` of a chunk: unset without `include_usage`, and null in chunks before the last, as OpenAI has it;
        with `continuous_usage_stats` the tokens so far."""
        if last or self._options.continuous_usage_stats:
            return usage(self._spent)
        return None if self._options.include_usage else UNSET

    def padding(self, text: str) -> str | UnsetType:
        """The `obfuscation` of a chunk with a text: random characters; unset unless it was asked for."""
        if not self._options.include_obfuscation:
            return UNSET
        missing = PADDED_CHARACTERS - len(text) % PADDED_CHARACTERS
        return secrets.token_urlsafe(missing)[:missing]


def text_of_delta(delta: Delta) -> str:
    """All text that a delta adds."""
    parts = [delta.content, delta.reasoning_content]
    for call in delta.tool_calls or []:
        parts += [call.function.name, call.function.arguments]
    return "".join(part for part in parts if isinstance(part, str))
