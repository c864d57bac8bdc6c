"""Models' own names in the events of a live session: a client may name the model that transcribes by an alias.

Reads events that update the session, and changes nothing else in them. What is no such event passes as it is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tessera.wire.decoding import DAMAGED
from tessera_gateway.upstreams import Upstreams

UPDATE = "session.update"
"""A text without these characters is no update of a session."""
PLACES = (("session",), ("session", "audio", "input", "transcription"))
"""Objects of an update that may have a `model`."""


async def with_own_names(text: str, upstreams: Upstreams) -> str:
    """The event, with the models' own names where it has aliases."""
    try:
        event = msgspec.json.decode(text)
    except DAMAGED:
        return text
    if not isinstance(event, dict) or event.get("type") != UPDATE:
        return text
    changed = False
    for place in PLACES:
        named = _at(event, place)
        if isinstance(name := named.get("model"), str):
            own = await upstreams.resolve(name)
            named["model"], changed = own, changed or own != name
    return msgspec.json.encode(event).decode() if changed else text


def _at(event: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    value: Any = event
    for key in place:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
