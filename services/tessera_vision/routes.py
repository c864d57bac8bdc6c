"""The vision service's routes: OpenAI's chat completions with images, and models."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post
from litestar.datastructures import State
from litestar.response import Stream

from tessera.language.service import EngineHost
from tessera.web.app import json_response
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.web.models import MODEL_ROUTES
from tessera.web.sse import stream_response
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.decoding import decode_json
from tessera_vision.pipeline import VisionTools

Host = EngineHost[VisionTools]


@post(
    "/v1/chat/completions",
    summary="Answer a conversation with images.",
    tags=["vision"],
    status_code=200,
    operation_class=documented(ChatCompletionRequest),
)
async def chat_completions(request: Request[Any, Any, State], state: State) -> Response[bytes] | Stream:
    """Images come as data URLs; streams server-sent events when `stream` is true."""
    body = decode_json(await request.body(), ChatCompletionRequest)
    host: Host = state.host
    chat = host.tools(body.model).chat
    if body.stream:
        return await unless_client_leaves(request, stream_response(chat.stream(body)))
    return json_response(await unless_client_leaves(request, chat.answer(body)))


ROUTES = [*MODEL_ROUTES, chat_completions]
