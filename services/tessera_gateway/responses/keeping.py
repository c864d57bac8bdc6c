"""Makes responses, and keeps them: `POST /v1/responses`, and reading, deleting, cancelling what is kept.

A request that keeps nothing and refers to nothing is passed on as its bytes came. Every other one is sent to the
upstream with its whole conversation, because upstreams keep nothing.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

import msgspec
from litestar.types import ASGIApp

from tessera.errors import InvalidRequestError, UnavailableError
from tessera.jobs.connection import DOWN_RETRY_S
from tessera.web.dependencies import HTTPRequest
from tessera.wire.decoding import decode_json
from tessera.wire.responses.answer import DeletedResponse, ResponseItemList
from tessera_gateway.limits import JsonBody
from tessera_gateway.responses.background import BackgroundResponses
from tessera_gateway.responses.forwarding import Forward
from tessera_gateway.responses.history import conversation_before, not_found, own_items, whole_body
from tessera_gateway.responses.relay import ResponseRelay
from tessera_gateway.responses.store import KeptResponse, ResponseStore

logger = logging.getLogger(__name__)

_REFERENCE = b"item_reference"


class AskedResponse(msgspec.Struct, frozen=True):
    """The fields of a request that say what is kept."""

    model: str
    input: msgspec.Raw = msgspec.Raw(b"null")
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    background: bool | None = None


def keeps_nothing(body: bytes) -> bool:
    """Whether a request says that nothing is kept and refers to nothing that is, so that its bytes pass as they are."""
    try:
        asked = decode_json(body, AskedResponse)
    except InvalidRequestError:
        return False
    return asked.store is False and not asked.background and not _refers(asked, body)


def _refers(asked: AskedResponse, body: bytes) -> bool:
    return asked.previous_response_id is not None or _REFERENCE in body


class Responses:
    """The responses of all owners.

    Args:
        store: where they are kept.
        background: makes them by jobs.
        forward: sends a request to an upstream.
        count: sends a request to an upstream that counts its tokens.
        most_bytes: most bytes of a request, which a whole conversation has to fit in.
    """

    def __init__(
        self,
        store: ResponseStore,
        background: BackgroundResponses,
        forward: Forward,
        count: Forward,
        *,
        most_bytes: int,
    ) -> None:
        self.store = store
        self.background = background
        self._forward = forward
        self._count = count
        self._most_bytes = most_bytes

    async def create(self, request: HTTPRequest, body: JsonBody, owner: str) -> ASGIApp:
        """Answer a request.

        Raises:
            NotFoundError: it refers to a response or an item that is not kept, or is another owner's.
            UnavailableError: it asks for what needs Redis, which is down.
            TesseraError: for the reasons of the upstream.
        """
        asked = decode_json(body.data, AskedResponse)
        refers = _refers(asked, body.data)
        if asked.background:
            return await self._in_background(request, asked, body, owner)
        if not refers and (asked.store is False or not await self._keeps(asked)):
            return ResponseRelay(await self._forward(request, body), None, None)
        given = decode_json(body.data, dict[str, Any])
        before, own = await self._conversation(asked, given, owner)
        whole = whole_body(given, [*before, *own], self._most_bytes)
        keeps = asked.store is not False and await self._keeps(asked)
        previous = asked.previous_response_id

        def changed(response: dict[str, Any]) -> dict[str, Any]:
            return {**response, "store": keeps, "previous_response_id": previous}

        async def finish(response: dict[str, Any]) -> dict[str, Any]:
            shown = changed(response)
            return await self._keep(owner, shown, own, previous) if keeps else shown

        inner = await self._forward(request, msgspec.structs.replace(body, data=whole))
        return ResponseRelay(inner, changed, finish)

    async def count(self, request: HTTPRequest, body: JsonBody, owner: str) -> ASGIApp:
        """Count the tokens of a request, those of the conversation before it included.

        Raises:
            NotFoundError: it refers to a response or an item that is not kept, or is another owner's.
            TesseraError: for the reasons of the upstream.
        """
        asked = decode_json(body.data, AskedResponse)
        if asked.previous_response_id is not None or _REFERENCE in body.data:
            given = decode_json(body.data, dict[str, Any])
            before, own = await self._conversation(asked, given, owner)
            whole = whole_body(given, [*before, *own], self._most_bytes, answered=False)
            body = msgspec.structs.replace(body, data=whole)
        return await self._count(request, body)

    async def retrieve(self, owner: str, identity: str) -> dict[str, Any]:
        """A kept response as it is now.

        Raises:
            NotFoundError: it is not kept, or is another owner's.
        """
        return await self.background.current(owner, await self._kept(owner, identity))

    async def cancel(self, owner: str, identity: str) -> dict[str, Any]:
        """Stop a response that a job makes; one that has ended is returned as it is.

        Raises:
            NotFoundError: it is not kept, or is another owner's.
            InvalidRequestError: no job makes it.
        """
        kept = await self._kept(owner, identity)
        if not kept.response.get("background"):
            raise InvalidRequestError(
                "only a response with `background: true` can be cancelled; close the connection to stop any other",
                param="response_id",
            )
        return await self.background.cancel(owner, kept)

    async def delete(self, owner: str, identity: str) -> DeletedResponse:
        """Remove a response, and the job that makes it.

        Raises:
            NotFoundError: it is not kept, or is another owner's.
        """
        kept = await self._kept(owner, identity)
        if kept.response.get("background"):
            await self.background.remove_job(owner, identity)
        await self.store.delete(owner, identity)
        return DeletedResponse(id=identity)

    async def input_items(
        self, owner: str, identity: str, *, after: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> ResponseItemList:
        """A page of the items that a response was made from, those of the responses before it included.

        Raises:
            NotFoundError: it is not kept, or is another owner's.
            InvalidRequestError: `after` is none of its items.
        """
        kept = await self._kept(owner, identity)
        before = []
        if kept.previous is not None:
            before = await conversation_before(self.store, owner, kept.previous, self._most_bytes)
        items = [*before, *kept.input]
        if order == "desc":
            items.reverse()
        start = 0
        if after is not None:
            places = [place for place, item in enumerate(items) if item.get("id") == after]
            if not places:
                raise InvalidRequestError(f"`after`: the response has no item {after!r}", param="after")
            start = places[0] + 1
        page = items[start : start + limit]
        first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
        return ResponseItemList(data=page, first_id=first, last_id=last, has_more=start + limit < len(items))

    async def _in_background(self, request: HTTPRequest, asked: AskedResponse, body: JsonBody, owner: str) -> ASGIApp:
        if asked.store is False:
            raise InvalidRequestError(
                "`background` needs `store`: the response is looked at under its id", param="background"
            )
        given = decode_json(body.data, dict[str, Any])
        before, own = await self._conversation(asked, given, owner)
        whole = whole_body(given, [*before, *own], self._most_bytes)
        return await self.background.accept(request, owner, given, whole, own, asked.previous_response_id)

    async def _conversation(
        self, asked: AskedResponse, given: dict[str, Any], owner: str
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The items before a request, and its own."""
        items = given.get("input")
        if items is not None and not isinstance(items, str) and not _are_items(items):
            raise InvalidRequestError("`input` is a text or a list of items", param="input")
        previous = asked.previous_response_id
        before = [] if previous is None else await conversation_before(self.store, owner, previous, self._most_bytes)
        return before, await own_items(self.store, owner, items)

    async def _keeps(self, asked: AskedResponse) -> bool:
        """Whether a response can be kept now.

        Raises:
            UnavailableError: it cannot, and the request says that it has to.
        """
        there = await self.store.available()
        if asked.store and not there:
            raise UnavailableError(
                "`store`: Redis, which keeps responses, does not answer; try again, or send `store: false`",
                retry_after=DOWN_RETRY_S,
            )
        return there

    async def _keep(
        self, owner: str, response: dict[str, Any], own: list[dict[str, Any]], previous: str | None
    ) -> dict[str, Any]:
        """Keep a response that has ended; one that cannot be kept says so in `store`."""
        try:
            outcome: str = await self.store.keep(owner, response, own, previous)
        except UnavailableError as error:
            outcome = error.message
        if outcome == "kept":
            return response
        logger.warning("the response %s is not kept: %s", response.get("id"), outcome)
        return {**response, "store": False}

    async def _kept(self, owner: str, identity: str) -> KeptResponse:
        kept = await self.store.get(owner, identity)
        if kept is None:
            raise not_found(identity)
        return kept


def _are_items(items: object) -> bool:
    return isinstance(items, list) and all(isinstance(item, dict) for item in items)
