"""Where job workers have pieces of long recordings heard, by the same engine as everybody else's.

Not OpenAI's, and not for clients: the gateway does not offer it. Messages are those between a service and its engine
(`tessera.wire.engine`), so nothing is lost on the way. Does not know jobs.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.datastructures import State

from tessera.engine.host import EngineHost
from tessera.errors import InvalidRequestError
from tessera.web.disconnect import unless_client_leaves
from tessera.wire.engine import Transcribe, Transcript
from tessera_speech.pipeline import SpeechTools

PATH = "/engine/transcripts"
CONTENT_TYPE = "application/msgpack"
MOST_BYTES = 256 * 1024 * 1024
"""Of a piece: more than an hour at 16,000 samples a second."""


@post(PATH, include_in_schema=False, status_code=200, request_max_body_size=MOST_BYTES)
async def transcribe_piece(request: Request[Any, Any, Any], state: State, model: str) -> Response[bytes]:
    """Answers a `Transcribe` by a list of `Transcript`, once all of it is heard. Who leaves cancels."""
    try:
        message = msgspec.msgpack.decode(await request.body(), type=Transcribe)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"the body is no message to an engine: {error}") from error
    host: EngineHost[SpeechTools] = state.host
    await host.tools(model)
    heard = await unless_client_leaves(request, _heard(host, message))
    return Response(msgspec.msgpack.encode(heard), media_type=CONTENT_TYPE)


async def _heard(host: EngineHost[SpeechTools], message: Transcribe) -> list[Transcript]:
    found: list[Transcript] = []
    async with aclosing(host.engine.request(message)) as answers:
        async for answer in answers:
            assert isinstance(answer, Transcript)
            found.append(answer)
    return found
