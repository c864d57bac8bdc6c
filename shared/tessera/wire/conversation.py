"""Messages of a conversation and the parts of their content, as OpenAI's wire has them.

Answers come back as assistant messages of the next request, with whatever a client library, a gateway or another
server has added to them. So an assistant's message may have any keys: those that are not fields are dropped while it
is decoded (`wire/tolerance`). Messages of other roles refuse what they do not have. Does not know requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tessera.wire.tools import ToolCall

Detail = Literal["auto", "low", "high"]


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A piece of text in a message."""

    text: str
    cache_control: Any = None
    """A hint of Anthropic's clients, without effect: every prompt is cached as far as the prefix cache has room."""


class ImageURL(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An image by data URL (`data:image/png;base64,…`)."""

    url: str
    detail: Detail = "auto"


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image_url", forbid_unknown_fields=True):
    """An image in a message: an object with its address, or the address alone."""

    image_url: ImageURL | str
    cache_control: Any = None

    @property
    def url(self) -> str:
        """The image as a data URL."""
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url

    @property
    def detail(self) -> Detail:
        """How much of the image the model sees."""
        return "auto" if isinstance(self.image_url, str) else self.image_url.detail


class InputAudio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recording in base64, or as a data URL."""

    data: Annotated[str, Meta(min_length=1)]
    format: Literal["wav", "mp3", "flac", "ogg", "opus", "m4a", "aac", "webm"] | None = None
    """A hint: the speech service looks at the bytes."""


class AudioPart(msgspec.Struct, frozen=True, tag_field="type", tag="input_audio", forbid_unknown_fields=True):
    """A recording in a message. The speech service transcribes it, and the model reads the transcript in its place."""

    input_audio: InputAudio
    cache_control: Any = None


class FileContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file by its bytes."""

    file_data: str | None = None
    """Base64, or a data URL that also names the content type."""
    filename: Annotated[str, Meta(max_length=512)] | None = None
    file_id: str | None = None
    """Refused, because no files are kept here. Present so that the refusal can say what to do."""


class FilePart(msgspec.Struct, frozen=True, tag_field="type", tag="file", forbid_unknown_fields=True):
    """A file in a message: the model reads its text, or sees it where it is an image."""

    file: FileContent
    cache_control: Any = None


class RefusalText(msgspec.Struct, frozen=True, tag_field="type", tag="refusal", forbid_unknown_fields=True):
    """What an assistant said when it refused. The model reads it as text."""

    refusal: str


Part = TextPart | ImagePart | AudioPart | FilePart | RefusalText


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    """Name of the speaker; the model's template decides whether the model sees it."""
    refusal: str | None = None
    """What the assistant said when it refused, in place of content."""
    tool_calls: list[ToolCall] | None = None
    """Calls that the assistant made."""
    tool_call_id: str | None = None
    """Id of the call that a `tool` message answers."""
    audio: Any = None
    annotations: Any = None
    function_call: Any = None
    """The form of `tool_calls` before 2023; refused unless it is null."""
    # beyond OpenAI
    reasoning_content: str | None = None
    """The assistant's thought; the model's template decides whether the model sees it again."""
    reasoning: str | None = None
    """The same by its newer name; read where `reasoning_content` is missing."""
    cache_control: Any = None
    """As the parts have it: a hint without effect."""

    @property
    def thought(self) -> str | None:
        """The assistant's thought under either name."""
        return self.reasoning if self.reasoning_content is None else self.reasoning_content

    @staticmethod
    def drops_unknown(fields: Mapping[str, Any]) -> bool:
        """Whether unknown keys of a message and of all that is in it are dropped, not refused (`wire/tolerance`)."""
        return fields.get("role") == "assistant"


ASSISTANT_FIELDS = (
    "tool_calls",
    "reasoning_content",
    "reasoning",
    "refusal",
    "audio",
    "annotations",
    "function_call",
)
"""Fields of a message that only an assistant's may have."""
