"""Leaves the oldest turns out of a conversation that is too long for its model (`truncation: auto`)."""

from __future__ import annotations

import msgspec

from tessera.wire.chat import ChatCompletionRequest


def without_oldest(chat: ChatCompletionRequest) -> ChatCompletionRequest | None:
    """The request without its oldest turns, about a quarter of the messages that are left, so that few attempts are
    enough; None if nothing can be left out.

    System messages at the beginning and everything from the last message of the user on stay. What is left begins with
    a message of the user, so that no result of a tool is without its call.
    """
    messages = chat.messages
    start = next((place for place, each in enumerate(messages) if each.role not in {"system", "developer"}), 0)
    users = [place for place, each in enumerate(messages) if each.role == "user" and place > start]
    if not users:
        return None
    wanted = start + max(1, (users[-1] - start) // 4)
    first = next(place for place in users if place >= wanted or place == users[-1])
    return msgspec.structs.replace(chat, messages=[*messages[:start], *messages[first:]])
