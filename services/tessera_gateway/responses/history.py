"""The whole conversation of a request: what is kept of the responses before it, and its own items with references
replaced by the items themselves.

An upstream keeps nothing, so it is sent everything. Does not know how a response is made.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from tessera.errors import InvalidRequestError, NotFoundError
from tessera.protocols.responses.items import as_items, type_of
from tessera_gateway.responses.store import ResponseStore

GOES_ON = frozenset({"completed", "incomplete"})
"""Status of a response with which a conversation can go on."""


def not_found(identity: str) -> NotFoundError:
    """The error for a response that is not kept, or is another owner's."""
    return NotFoundError(
        f"there is no response {identity!r}: it was never kept, its time is over, or it was deleted",
        param="response_id",
        code="response_not_found",
    )


async def conversation_before(store: ResponseStore, owner: str, previous: str, most_bytes: int) -> list[dict[str, Any]]:
    """The items of all responses up to `previous`.

    Raises:
        NotFoundError: `previous`, or one before it, is not kept or is another owner's.
        InvalidRequestError: the conversation is too long, or `previous` has not ended well.
    """
    chain = await store.chain(owner, previous, most_bytes)
    param = "previous_response_id"
    if chain.outcome == "gone":
        which = f"{previous!r}" if chain.last == previous else f"{previous!r}, because {chain.last!r} before it is gone"
        raise NotFoundError(
            f"there is no conversation of {which}; send the items themselves",
            param=param,
            code="previous_response_not_found",
        )
    if chain.outcome != "whole":
        raise InvalidRequestError(
            f"`{param}`: the conversation is longer than a request may be; send the items that matter", param=param
        )
    last = chain.turns[-1]
    if last.status not in GOES_ON:
        raise InvalidRequestError(f"`{param}`: the response {previous!r} is {last.status}", param=param)
    return [item for turn in chain.turns for item in [*turn.input, *turn.output]]


async def own_items(store: ResponseStore, owner: str, given: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The items of a request, each with an id, and references replaced by the items that they name.

    Raises:
        NotFoundError: an item that is referred to is not kept, or is another owner's.
    """
    items = as_items(given)
    wanted = [str(item.get("id")) for item in items if type_of(item) == "item_reference"]
    found = await store.items(owner, wanted) if wanted else {}
    for place, item in enumerate(items):
        if type_of(item) == "item_reference" and str(item.get("id")) not in found:
            raise NotFoundError(
                f"`input[{place}]` refers to the item {item.get('id')!r}, which is not kept here; send the item itself",
                param=f"input[{place}]",
                code="item_not_found",
            )
    return [found[str(item["id"])] if type_of(item) == "item_reference" else _with_id(item) for item in items]


def _with_id(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is listed: with an id, and a message's text as a part."""
    kind = type_of(item)
    if kind != "message":
        prefix = {"function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}.get(kind, "item")
        return {**item, "id": item.get("id") or f"{prefix}_{uuid.uuid4().hex}"}
    listed = {**item, "type": "message", "id": item.get("id") or f"msg_{uuid.uuid4().hex}"}
    content = item.get("content")
    if isinstance(content, str):
        ours = item.get("role") == "assistant"
        part = {"type": "output_text", "annotations": []} if ours else {"type": "input_text"}
        listed["content"] = [{**part, "text": content}]
    return listed


def whole_body(body: dict[str, Any], items: list[dict[str, Any]], most_bytes: int, *, answered: bool = True) -> bytes:
    """The body for an upstream: the whole conversation, and nothing that it would have to keep. One whose tokens are
    counted and that is not `answered` cannot be kept, and does not say so.

    Raises:
        InvalidRequestError: it is larger than a request may be.
    """
    left_out = {"previous_response_id", "background"}
    sent = {name: value for name, value in body.items() if name not in left_out}
    encoded = msgspec.json.encode({**sent, "input": items, **({"store": False} if answered else {})})
    if len(encoded) > most_bytes:
        raise InvalidRequestError(
            f"`previous_response_id`: with this request the conversation has {len(encoded)} bytes, over {most_bytes}",
            param="previous_response_id",
        )
    return encoded
