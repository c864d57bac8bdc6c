"""What was said in a session, by whom, in order, as the client sees it and as a language model reads it.

Does not know sound, events or how answers are made.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from tessera.errors import ConflictError, InvalidRequestError, NotFoundError

MOST_ITEMS = 512


@dataclass
class ConversationItem:
    """A message.

    `sentence_ends` has, for spoken answers, each sentence and the millisecond at which it ends.
    """

    id: str
    role: str
    kind: str
    text: str | None = None
    status: str = "completed"
    sentence_ends: list[tuple[str, float]] = field(default_factory=list)

    def wire(self) -> dict[str, Any]:
        """As events have it."""
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
    """Messages in order."""

    def __init__(self) -> None:
        self.items: list[ConversationItem] = []

    def add(self, item: ConversationItem, previous: str | None = None) -> str | None:
        """Put a message behind another (`root`: first; None: last). Returns the id of the one before it.

        Raises:
            ConflictError: its id is taken.
            InvalidRequestError: the conversation is full.
            NotFoundError: there is no such message to put it behind.
        """
        if any(known.id == item.id for known in self.items):
            raise ConflictError(f"`item.id`: there is an item {item.id!r} already", param="item.id")
        if len(self.items) >= MOST_ITEMS:
            raise InvalidRequestError(
                f"`item`: a conversation has at most {MOST_ITEMS} items; delete some", param="item"
            )
        place = len(self.items)
        if previous == "root":
            place = 0
        elif previous is not None:
            place = self._place(previous, "previous_item_id") + 1
        self.items.insert(place, item)
        return self.items[place - 1].id if place else None

    def find(self, identity: str) -> ConversationItem:
        """A message.

        Raises:
            NotFoundError: there is none with this id.
        """
        return self.items[self._place(identity, "item_id")]

    def remove(self, identity: str) -> None:
        """Take a message out. Raises as `find`."""
        del self.items[self._place(identity, "item_id")]

    def truncate(self, identity: str, end_ms: int) -> None:
        """Of a spoken answer keep the sentences that were heard to their end.

        Raises:
            NotFoundError, InvalidRequestError: there is no such answer, or it is not as long.
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
        """What a language model reads. Messages without text (sound that nobody could make out) are left out."""
        said = [{"role": item.role, "content": item.text} for item in self.items if item.text]
        return [*([{"role": "system", "content": instructions}] if instructions else []), *said]

    def _place(self, identity: str, param: str) -> int:
        for place, item in enumerate(self.items):
            if item.id == identity:
                return place
        raise NotFoundError(f"`{param}`: there is no item {identity!r} in the conversation", param=param)


def new_id(kind: str) -> str:
    """`item_…`, `resp_…`, `event_…`."""
    return f"{kind}_{secrets.token_hex(12)}"
