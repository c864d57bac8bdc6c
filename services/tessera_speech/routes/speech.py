"""The route that synthesizes speech: audio as a stream of bytes, or as server-sent events.

Knows nothing about models or codecs; see `tessera_speech.synthesis.text_to_audio`.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing

from litestar import post
from litestar.response import Stream

from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.web.sse import event, stream_response
from tessera.wire.audio import AUDIO_TYPES, SpeechAudioDelta, SpeechAudioDone, SpeechAudioWords, SpeechRequest
from tessera.wire.decoding import decode_json
from tessera_speech.pipeline import SpeechHost
from tessera_speech.synthesis.audio_files import content_type
from tessera_speech.synthesis.text_to_audio import AudioChunk


@post(
    "/v1/audio/speech",
    summary="Speak a text.",
    tags=["speech"],
    status_code=200,
    operation_class=documented(
        SpeechRequest, files=AUDIO_TYPES, events=SpeechAudioDelta | SpeechAudioWords | SpeechAudioDone
    ),
)
async def synthesize(request: HTTPRequest, host: Injected[SpeechHost]) -> Stream:
    """Sends the audio file while it is synthesized, or as `speech.audio.*` events with `stream_format=sse`.

    `input` is a text or SSML (`<speak>…</speak>` with break, prosody rate, say-as, sub, p, s; phoneme where the model
    reads phonemes). `voice` is one of the model's voices (see its card), a mixture like `joe+anna` or `joe(3)+anna(1)`,
    or one of OpenAI's names, which stand for them in turn. `pcm` is 24 kHz; the other formats have the model's own rate
    where the codec allows it. The same `seed` makes the same samples. With `timestamp_granularities: ["word"]` events
    tell when each word is said. Codec language models (CSM) keep their own pace and do not know words' times: `speed`,
    `prosody` and granularities are refused; their voices are speakers' numbers and the recordings in the model's folder
    `voices`.
    """
    body = decode_json(await request.body(), SpeechRequest)
    synthesis = (await host.tools(body.model)).synthesis
    chunks = synthesis.synthesize(body)
    if body.stream_format == "sse":
        events = _events(chunks, words=bool(body.timestamp_granularities))
        return await unless_client_leaves(request, stream_response(events, done=False))
    headers = {
        "content-type": content_type(body.response_format),
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }
    return Stream(await unless_client_leaves(request, _begun(chunks)), headers=headers)


async def _begun(chunks: AsyncGenerator[AudioChunk, None]) -> AsyncGenerator[bytes, None]:
    """The bytes of `chunks`. Returns once the first chunk has come, so that an error before it has its HTTP status."""
    first = await anext(chunks)

    async def resumed() -> AsyncGenerator[bytes, None]:
        async with aclosing(chunks):
            if first.data:
                yield first.data
            async for chunk in chunks:
                if chunk.data:
                    yield chunk.data

    return resumed()


async def _events(chunks: AsyncGenerator[AudioChunk, None], *, words: bool) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        async for chunk in chunks:
            if words and chunk.words:
                yield event(SpeechAudioWords(words=chunk.words))
            if chunk.data:
                yield event(SpeechAudioDelta(audio=base64.b64encode(chunk.data).decode("ascii")))
            if chunk.usage:
                yield event(SpeechAudioDone(usage=chunk.usage))
