"""`/v1/messages` and its count of tokens, of every service that answers conversations."""

from __future__ import annotations

from typing import Any

from litestar import Response, post
from litestar.response import Stream

from tessera.protocols.counting import CountingHost, count_prompt
from tessera.protocols.messages.errors import request_id_header
from tessera.protocols.messages.request import chat_request
from tessera.protocols.messages.translation import MessageTranslation
from tessera.protocols.serving import AnsweringHost, serve_translated
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.docs import documented
from tessera.wire.decoding import decode_json
from tessera.wire.message_answers import CountedTokens, MessageAnswer, MessageEvent
from tessera.wire.messages import CountTokensRequest, MessagesRequest


@post(
    "/v1/messages",
    summary="Answer a conversation, in Anthropic's shapes.",
    tags=["messages"],
    status_code=200,
    operation_class=documented(MessagesRequest, returns=MessageAnswer, events=MessageEvent),
)
async def create_message(request: HTTPRequest, host: Injected[AnsweringHost]) -> Response[Any] | Stream:
    """Streams Anthropic's events with `stream: true`. What cannot be done here is refused by its name."""
    body = decode_json(await request.body(), MessagesRequest)
    translation = MessageTranslation(body)
    chat = (await host.tools(body.model)).chat
    answer = await serve_translated(request, chat, translation, done=False)
    answer.headers.update(request_id_header())
    return answer


@post(
    "/v1/messages/count_tokens",
    summary="Count the tokens of a conversation, in Anthropic's shapes.",
    tags=["messages"],
    status_code=200,
    operation_class=documented(CountTokensRequest),
)
async def count_tokens(request: HTTPRequest, host: Injected[CountingHost]) -> Response[CountedTokens]:
    """Counts what the model's template writes, images and tools included."""
    chat = chat_request(decode_json(await request.body(), CountTokensRequest))
    return await count_prompt(request, host, chat, CountedTokens, request_id_header())


MESSAGE_ROUTES = [create_message, count_tokens]
