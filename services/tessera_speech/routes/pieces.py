"""The route by which job workers have pieces of long recordings transcribed, by the engine that serves live clients.

It is not OpenAI's and not for clients: the gateway does not offer it. Bodies are the messages between a service and its
engine (`tessera.wire.engine`), so nothing is lost on the way. Knows nothing about jobs.
"""

from __future__ import annotations

from contextlib import aclosing

import msgspec
from litestar import Response, post
from litestar.params import FromQuery

from tessera.errors import InvalidRequestError
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.disconnect import unless_client_leaves
from tessera.wire.engine import Transcribe, Transcript
from tessera_speech.pipeline import SpeechHost

PATH = "/engine/transcripts"
CONTENT_TYPE = "application/msgpack"
MAX_BYTES = 256 * 1024 * 1024
"""Most bytes of a piece: more than an hour at 16,000 samples per second."""


@post(PATH, include_in_schema=False, status_code=200, request_max_body_size=MAX_BYTES)
async def transcribe_piece(request: HTTPRequest, host: Injected[SpeechHost], model: FromQuery[str]) -> Response[bytes]:
    """Answers a `Transcribe` with its list of `Transcript` once all are there. A client that leaves cancels."""
    try:
        message = msgspec.msgpack.decode(await request.body(), type=Transcribe)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"the body is no message to an engine: {error}") from error
    await host.tools(model)
    transcripts = await unless_client_leaves(request, _transcripts(host, message))
    return Response(msgspec.msgpack.encode(transcripts), media_type=CONTENT_TYPE)


async def _transcripts(host: SpeechHost, message: Transcribe) -> list[Transcript]:
    """Every answer of the engine to a message."""
    transcripts: list[Transcript] = []
    async with aclosing(host.engine.request(message)) as answers:
        async for answer in answers:
            assert isinstance(answer, Transcript)
            transcripts.append(answer)
    return transcripts
