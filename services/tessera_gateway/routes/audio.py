"""Speech synthesis and transcription, passed through."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.datastructures import State
from litestar.types import ASGIApp

from tessera.web.docs import documented
from tessera.wire.audio import SpeechRequest, TranscriptionRequest, TranslationRequest
from tessera_gateway.limits import read_json, read_multipart
from tessera_gateway.proxy import Proxy


@post(
    "/v1/audio/speech",
    status_code=200,
    summary="Speak a text.",
    tags=["audio"],
    operation_class=documented(SpeechRequest),
)
async def speech(request: Request[Any, Any, Any], state: State) -> ASGIApp:
    """Audio arrives while it is made."""
    proxy: Proxy = state.proxy
    return await proxy.forward(request, "/v1/audio/speech", "speech", await read_json(request))


@post(
    "/v1/audio/transcriptions",
    status_code=200,
    summary="Write down what is said in a file.",
    tags=["audio"],
    operation_class=documented(TranscriptionRequest, "multipart/form-data", file="file"),
)
async def transcriptions(request: Request[Any, Any, Any], state: State) -> ASGIApp:
    """Takes any audio that PyAV reads, as a form with `file` and `model`."""
    proxy: Proxy = state.proxy
    return await proxy.forward(request, "/v1/audio/transcriptions", "transcription", await read_multipart(request))


@post(
    "/v1/audio/translations",
    status_code=200,
    summary="Write down in English what is said in a file.",
    tags=["audio"],
    operation_class=documented(TranslationRequest, "multipart/form-data", file="file"),
)
async def translations(request: Request[Any, Any, Any], state: State) -> ASGIApp:
    """As transcriptions, with a model that translates."""
    proxy: Proxy = state.proxy
    return await proxy.forward(request, "/v1/audio/translations", "transcription", await read_multipart(request))
