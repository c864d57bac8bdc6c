"""`POST /v1/responses` of a service, and counting its tokens. A service keeps nothing: what needs a memory is the
gateway's.
"""

from __future__ import annotations

from typing import Any

from litestar import Response, post
from litestar.response import Stream

from tessera.errors import ContextLengthError
from tessera.protocols.counting import CountingHost, count_prompt
from tessera.protocols.responses.request import refuse_kept
from tessera.protocols.responses.translation import ResponseTranslation
from tessera.protocols.serving import AnsweringHost, serve_translated
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.docs import documented
from tessera.wire.decoding import decode_json
from tessera.wire.responses.answer import GeneratedResponse, InputTokens
from tessera.wire.responses.events import StreamedEvent
from tessera.wire.responses.request import InputTokensRequest, ResponseRequest


@post(
    "/v1/responses",
    summary="Answer a conversation of items.",
    tags=["responses"],
    status_code=200,
    operation_class=documented(ResponseRequest, returns=GeneratedResponse, events=StreamedEvent),
)
async def create_response(request: HTTPRequest, host: Injected[AnsweringHost]) -> Response[Any] | Stream:
    """OpenAI's Responses API with typed events. `store`, `previous_response_id` and `background` need the gateway."""
    body = decode_json(await request.body(), ResponseRequest)
    refuse_kept(body)
    translation = ResponseTranslation(body)
    chat = (await host.tools(body.model)).chat
    while True:
        try:
            return await serve_translated(request, chat, translation, done=False)
        except ContextLengthError:
            if not translation.shorten():
                raise


@post(
    "/v1/responses/input_tokens",
    summary="Count the tokens of a conversation of items.",
    tags=["responses"],
    status_code=200,
    operation_class=documented(InputTokensRequest),
)
async def count_input_tokens(request: HTTPRequest, host: Injected[CountingHost]) -> Response[InputTokens]:
    """Counts what the model's template writes, images and tools included. `previous_response_id` needs the gateway."""
    body = decode_json(await request.body(), InputTokensRequest).whole()
    refuse_kept(body)
    return await count_prompt(request, host, ResponseTranslation(body).chat, InputTokens)


RESPONSE_ROUTES = [create_response, count_input_tokens]
