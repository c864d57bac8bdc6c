"""`/v1/messages` and its count of tokens, of every service that answers conversations."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from litestar import Response, post
from litestar.response import Stream

from tessera.engine.host import EngineHost
from tessera.protocols.messages.errors import request_id_header
from tessera.protocols.messages.request import chat_request
from tessera.protocols.messages.translation import MessageTranslation
from tessera.protocols.serving import AnsweringHost, serve_translated
from tessera.web.app import json_response
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.decoding import decode_json
from tessera.wire.message_answers import CountedTokens, MessageAnswer, MessageEvent
from tessera.wire.messages import CountTokensRequest, MessagesRequest


class PromptCounts(Protocol):
    """Counts the tokens of prompts."""

    async def count(self, request: ChatCompletionRequest) -> int:
        """Number of tokens of a request's prompt."""
        ...


class CountingTools(Protocol):
    """What counting needs of the tools of a service's model."""

    @property
    def tokens(self) -> PromptCounts:
        """Counts prompts."""
        ...


CountingHost: TypeAlias = EngineHost[CountingTools]


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
    body = decode_json(await request.body(), CountTokensRequest)
    chat = chat_request(body)
    tokens = (await host.tools(body.model)).tokens
    counted = CountedTokens(await unless_client_leaves(request, tokens.count(chat)))
    return json_response(counted, headers=request_id_header())


MESSAGE_ROUTES = [create_message, count_tokens]
