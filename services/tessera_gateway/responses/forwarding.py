"""How a request reaches an upstream: passed through, or translated to chat where an upstream has no `/v1/responses`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from litestar.types import ASGIApp

from tessera.protocols.counting import CountTranslation
from tessera.protocols.responses.request import refuse_kept
from tessera.protocols.responses.translation import ResponseTranslation
from tessera.protocols.translation import Translation
from tessera.web.dependencies import HTTPRequest
from tessera.wire.decoding import decode_json
from tessera.wire.responses.answer import InputTokens
from tessera.wire.responses.request import InputTokensRequest, ResponseRequest
from tessera_gateway.limits import JsonBody
from tessera_gateway.translated.translator import Translator

Forward = Callable[[HTTPRequest, JsonBody], Awaitable[ASGIApp]]
"""Sends a body to an upstream."""
PATH = "/v1/responses"
COUNT_PATH = "/v1/responses/input_tokens"


def forwarding(translator: Translator) -> Forward:
    """Send bodies through `translator`."""

    async def forward(request: HTTPRequest, body: JsonBody) -> ASGIApp:
        def make() -> Translation[Any]:
            asked = decode_json(body.data, ResponseRequest)
            refuse_kept(asked)
            return ResponseTranslation(asked)

        return await translator.forward(request, body, make, native=PATH)

    return forward


def counting(translator: Translator) -> Forward:
    """Send bodies whose tokens are counted through `translator`. An upstream without the route is asked for one token,
    and counts."""

    async def forward(request: HTTPRequest, body: JsonBody) -> ASGIApp:
        def make() -> Translation[Any]:
            asked = decode_json(body.data, InputTokensRequest).whole()
            refuse_kept(asked)
            return CountTranslation(ResponseTranslation(asked).chat, InputTokens)

        return await translator.forward(request, body, make, native=COUNT_PATH)

    return forward
