"""Anthropic's messages: passed through to upstreams that have them, translated for those that do not."""

from __future__ import annotations

from litestar import post
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from tessera.protocols.counting import CountTranslation
from tessera.protocols.messages.errors import request_id_header
from tessera.protocols.messages.request import chat_request
from tessera.protocols.messages.translation import MessageTranslation
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.docs import documented
from tessera.wire.decoding import decode_json
from tessera.wire.message_answers import CountedTokens, MessageAnswer, MessageEvent
from tessera.wire.messages import CountTokensRequest, MessagesRequest
from tessera_gateway.limits import read_json
from tessera_gateway.translated.translator import Translator


@post(
    "/v1/messages",
    status_code=200,
    summary="Answer a conversation, in Anthropic's shapes.",
    tags=["messages"],
    operation_class=documented(MessagesRequest, returns=MessageAnswer, events=MessageEvent),
)
async def create_message(request: HTTPRequest, translator: Injected[Translator]) -> ASGIApp:
    """Streams Anthropic's events with `stream: true`. What cannot be done here is refused by its name."""
    body = await read_json(request)

    def make() -> MessageTranslation:
        return MessageTranslation(decode_json(body.data, MessagesRequest))

    return WithRequestId(await translator.forward(request, body, make, native="/v1/messages"))


@post(
    "/v1/messages/count_tokens",
    status_code=200,
    summary="Count the tokens of a conversation, in Anthropic's shapes.",
    tags=["messages"],
    operation_class=documented(CountTokensRequest, returns=CountedTokens),
)
async def count_tokens(request: HTTPRequest, translator: Injected[Translator]) -> ASGIApp:
    """Counts what the model's template writes. An upstream without such a route is asked for one token, and counts."""
    body = await read_json(request)

    def make() -> CountTranslation[CountedTokens]:
        return CountTranslation(chat_request(decode_json(body.data, CountTokensRequest)), CountedTokens)

    return WithRequestId(await translator.forward(request, body, make, native="/v1/messages/count_tokens"))


class WithRequestId:
    """A response with the header by which Anthropic's clients name a request, as an ASGI app."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the response on with one header more."""

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in request_id_header().items()]
                message["headers"] = [*message["headers"], *own]
            await send(message)

        await self.app(scope, receive, send_with_id)
