"""The route that speaks: audio as a stream of bytes, or as server-sent events.

Does not know models or codecs: see `tessera_speech.synthesis`.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from litestar import Request, post
from litestar.datastructures import State
from litestar.response import Stream

from tessera.language.service import EngineHost
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.web.sse import event, stream_response
from tessera.wire.audio import SpeechAudioDelta, SpeechAudioDone, SpeechRequest
from tessera.wire.decoding import decode_json
from tessera_speech.codecs import content_type
from tessera_speech.pipeline import SpeechTools

Host = EngineHost[SpeechTools]


@post(
    "/v1/audio/speech",
    summary="Speak a text.",
    tags=["speech"],
    status_code=200,
    operation_class=documented(SpeechRequest),
)
async def synthesize(request: Request[Any, Any, State], state: State) -> Stream:
    """Sends the audio file sentence by sentence as it is made, or as `speech.audio.*` events with `stream_format=sse`.

    `voice` is one of the model's voices (see its card) or one of OpenAI's names, which stand for them in turn.
    `pcm` is 24 kHz; the other formats have the model's own rate where the codec allows it. The same `seed` makes the
    same samples.
    """
    body = decode_json(await request.body(), SpeechRequest)
    host: Host = state.host
    synthesis = (await host.tools(body.model)).synthesis
    pieces = synthesis.speak(body)
    if body.stream_format == "sse":
        return await unless_client_leaves(request, stream_response(_speech_events(pieces), done=False))
    headers = {
        "content-type": content_type(body.response_format),
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }
    return Stream(await unless_client_leaves(request, _begun(pieces)), headers=headers)


async def _begun(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """`pieces` once the first has come, so that an error before it has its own HTTP status."""
    first = await anext(pieces)

    async def resumed() -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    return resumed()


async def _speech_events(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(pieces):
        async for piece in pieces:
            yield event(SpeechAudioDelta(audio=base64.b64encode(piece).decode("ascii")))
    yield event(SpeechAudioDone())
