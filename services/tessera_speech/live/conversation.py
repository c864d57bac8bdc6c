"""The conversation of a session: its messages in order, for the client and for the language model.

Knows nothing about audio, events or how responses are generated.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from tessera.errors import ConflictError, InvalidRequestError, NotFoundError

MAX_ITEMS = 512
"""Most items of a conversation."""


@dataclass
class ConversationItem:
    """A message of a conversation.

    Attributes:
        id: identifier, unique in its conversation.
        role: `user`, `assistant` or `system`.
        kind: type of its content: `input_text`, `input_audio`, `output_text` or `output_audio`.
        text: its text or transcript; None until the transcript is known.
        status: `in_progress`, `completed` or `incomplete`.
        sentence_ends: each sentence of a spoken response, with the millisecond of its audio at which it ends.
    """

    id: str
    role: str
    kind: str
    text: str | None = None
    status: str = "completed"
    sentence_ends: list[tuple[str, float]] = field(default_factory=list)

    def wire(self) -> dict[str, Any]:
        """The item as events carry it."""
        part: dict[str, Any] = {"type": self.kind}
        part["transcript" if "audio" in self.kind else "text"] = self.text
        return {
            "id": self.id,
            "object": "realtime.item",
            "type": "message",
            "role": self.role,
            "status": self.status,
            "content": [part],
        }


class Conversation:
    """The messages of a session, in order."""

    def __init__(self) -> None:
        self.items: list[ConversationItem] = []

    def add(self, item: ConversationItem, previous: str | None = None) -> str | None:
        """Insert a message after another one (`root`: first; None: last). Returns the id of the message before it.

        Raises:
            ConflictError: its id is taken.
            InvalidRequestError: the conversation is full.
            NotFoundError: there is no message with the id `previous`.
        """
        if any(known.id == item.id for known in self.items):
            raise ConflictError(f"`item.id`: there is an item {item.id!r} already", param="item.id")
        if len(self.items) >= MAX_ITEMS:
            raise InvalidRequestError(
                f"`item`: a conversation has at most {MAX_ITEMS} items; delete some", param="item"
            )
        place = len(self.items)
        if previous == "root":
            place = 0
        elif previous is not None:
            place = self._place(previous, "previous_item_id") + 1
        self.items.insert(place, item)
        return self.items[place - 1].id if place else None

    def find(self, identity: str) -> ConversationItem:
        """The message with an id.

        Raises:
            NotFoundError: there is none.
        """
        return self.items[self._place(identity, "item_id")]

    def remove(self, identity: str) -> None:
        """Remove a message. Raises as `find` does."""
        del self.items[self._place(identity, "item_id")]

    def truncate(self, identity: str, end_ms: int) -> None:
        """Cut a spoken response after the last sentence that ends by `end_ms`: the client has not played the rest.

        Raises:
            NotFoundError, InvalidRequestError: there is no such response, or it is not as long.
        """
        item = self.find(identity)
        if item.kind != "output_audio":
            raise InvalidRequestError("`item_id`: only spoken answers can be truncated", param="item_id")
        length = item.sentence_ends[-1][1] if item.sentence_ends else 0.0
        if end_ms > length:
            raise InvalidRequestError(
                f"`audio_end_ms` is {end_ms}; the audio has {length:.0f} ms", param="audio_end_ms"
            )
        item.sentence_ends = [(text, end) for text, end in item.sentence_ends if end <= end_ms]
        item.text = " ".join(text for text, _ in item.sentence_ends)

    def messages(self, instructions: str) -> list[dict[str, str]]:
        """The messages for a language model. Those without text (audio without recognizable speech) are left out."""
        with_text = [{"role": item.role, "content": item.text} for item in self.items if item.text]
        return [*([{"role": "system", "content": instructions}] if instructions else []), *with_text]

    def _place(self, identity: str, param: str) -> int:
        for place, item in enumerate(self.items):
            if item.id == identity:
                return place
        raise NotFoundError(f"`{param}`: there is no item {identity!r} in the conversation", param=param)


def new_id(kind: str) -> str:
    """A new identifier: `item_…`, `resp_…` or `event_…`."""
    return f"{kind}_{secrets.token_hex(12)}"
