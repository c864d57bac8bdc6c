"""The Responses API: created, kept under the key's owner, read, cancelled, deleted."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Response, delete, get, post
from litestar.params import Parameter
from litestar.types import ASGIApp

from tessera.api.job_headers import owner_of
from tessera.web.app import json_response
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.docs import documented
from tessera.wire.responses.answer import DeletedResponse, GeneratedResponse, InputTokens, ResponseItemList
from tessera.wire.responses.events import StreamedEvent
from tessera.wire.responses.request import InputTokensRequest, ResponseRequest
from tessera_gateway.limits import read_json
from tessera_gateway.responses.keeping import Responses

MAX_ITEMS = 100
"""Most items of one page."""
ResponseId = Annotated[str, Parameter(description="Id of a kept response.")]


@post(
    "/v1/responses",
    status_code=200,
    summary="Answer a conversation of items.",
    tags=["responses"],
    operation_class=documented(ResponseRequest, returns=GeneratedResponse, events=StreamedEvent),
)
async def create_response(request: HTTPRequest, responses: Injected[Responses]) -> ASGIApp:
    """Streams typed events with `stream: true`. Kept for `previous_response_id` unless `store` is false; with
    `background: true` a job makes it."""
    return await responses.create(request, await read_json(request), owner_of(request))


@post(
    "/v1/responses/input_tokens",
    status_code=200,
    summary="Count the tokens of a conversation of items.",
    tags=["responses"],
    operation_class=documented(InputTokensRequest, returns=InputTokens),
)
async def count_input_tokens(request: HTTPRequest, responses: Injected[Responses]) -> ASGIApp:
    """Counts what the model's template writes, the conversation before included. An upstream without such a route is
    asked for one token, and counts."""
    return await responses.count(request, await read_json(request), owner_of(request))


@get(
    "/v1/responses/{response_id:str}",
    summary="Look at a response.",
    tags=["responses"],
    operation_class=documented(returns=GeneratedResponse, events=StreamedEvent),
)
async def retrieve_response(
    request: HTTPRequest,
    responses: Injected[Responses],
    response_id: ResponseId,
    stream: Annotated[bool, Parameter(description="Watch a response with `background: true` as it is made.")] = False,
    starting_after: Annotated[
        int | None, Parameter(ge=0, description="Number of the last event that is known.")
    ] = None,
) -> ASGIApp:
    """As it is now; or, with `stream`, its events behind `starting_after`."""
    owner = owner_of(request)
    if stream:
        first = 0 if starting_after is None else starting_after + 1
        return await responses.background.watch(request, owner, response_id, first)
    return json_response(await responses.retrieve(owner, response_id)).to_asgi_response(None, request)


@delete("/v1/responses/{response_id:str}", status_code=200, summary="Delete a response.", tags=["responses"])
async def delete_response(
    request: HTTPRequest, responses: Injected[Responses], response_id: ResponseId
) -> Response[DeletedResponse]:
    """One that is being made is stopped."""
    return json_response(await responses.delete(owner_of(request), response_id))


@post(
    "/v1/responses/{response_id:str}/cancel",
    status_code=200,
    summary="Stop a response with `background: true`.",
    tags=["responses"],
    operation_class=documented(returns=GeneratedResponse),
)
async def cancel_response(
    request: HTTPRequest, responses: Injected[Responses], response_id: ResponseId
) -> Response[dict[str, Any]]:
    """One that has ended is returned as it is."""
    return json_response(await responses.cancel(owner_of(request), response_id))


@get(
    "/v1/responses/{response_id:str}/input_items",
    summary="What a response was made from.",
    tags=["responses"],
)
async def list_input_items(
    request: HTTPRequest,
    responses: Injected[Responses],
    response_id: ResponseId,
    after: Annotated[str | None, Parameter(description="Id of the last item of the page before.")] = None,
    limit: Annotated[int, Parameter(ge=1, le=MAX_ITEMS)] = 20,
    order: Annotated[Literal["asc", "desc"], Parameter(description="`asc` begins with the oldest.")] = "desc",
) -> Response[ResponseItemList]:
    """The items of the request, and those of the responses before it."""
    page = await responses.input_items(owner_of(request), response_id, after=after, limit=limit, order=order)
    return json_response(page)


RESPONSE_ROUTES = [
    create_response,
    count_input_tokens,
    retrieve_response,
    delete_response,
    cancel_response,
    list_input_items,
]
