"""The settings of a session: their defaults, and how an update changes those that it names.

Knows nothing about the effect of a setting.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tessera.errors import InvalidRequestError
from tessera.wire.decoding import decode_json
from tessera.wire.realtime import ConversationSession, Session, TranscriptionSession


def default_session(intent: Literal["transcription", "realtime"], model: str | None) -> Session:
    """The settings of a new session; `model` is the language model of a conversation."""
    return TranscriptionSession() if intent == "transcription" else ConversationSession(model=model)


def update_session(session: Session, fields: dict[str, Any]) -> Session:
    """The settings of `session` with those in `fields` replaced.

    Raises:
        InvalidRequestError: an unknown or wrong setting; `param` is its path.
    """
    current = msgspec.to_builtins(session)
    kind = fields.get("type", current["type"])
    if kind != current["type"]:
        raise InvalidRequestError(
            f"`session.type`: this is a session of type {current['type']!r} and stays one; connect with "
            "`?intent=transcription` or without it",
            param="session.type",
        )
    try:
        return decode_json(msgspec.json.encode(_merged(current, fields)), type(session))
    except InvalidRequestError as error:
        if error.param is None:
            raise
        param = f"session.{error.param}"
        message = error.message.replace(f"`{error.param}`", f"`{param}`")
        raise InvalidRequestError(message, param=param, code=error.own_code) from error


def _merged(current: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    merged = dict(current)
    for name, value in fields.items():
        before = merged.get(name)
        merged[name] = _merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged
