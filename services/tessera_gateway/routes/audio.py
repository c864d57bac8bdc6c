"""Speech synthesis and transcription, passed through; long recordings, accepted as jobs."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post
from litestar.datastructures import State
from litestar.types import ASGIApp

from tessera.api.job_resources import JobResources
from tessera.api.transcriptions.request import is_background
from tessera.api.transcriptions.submission import accept_form, accept_stream, announced_bytes
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
    """Takes any audio that PyAV reads, as a form with `file` and `model`. With `background=true` it is a job: answered
    202, looked at under its id."""
    proxy: Proxy = state.proxy
    jobs: JobResources | None = state.get("transcriptions")
    most: int = state.max_body_bytes
    if jobs is not None and announced_bytes(request) > most:
        return _as_app(request, await accept_stream(request, jobs))
    body, form = await read_multipart(request, most)
    if jobs is not None and is_background(form.fields):
        return _as_app(request, await accept_form(request, jobs, form))
    return await proxy.forward(request, "/v1/audio/transcriptions", "transcription", body)


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
    body, _ = await read_multipart(request, state.max_body_bytes)
    return await proxy.forward(request, "/v1/audio/translations", "transcription", body)


def _as_app(request: Request[Any, Any, Any], response: Response[bytes]) -> ASGIApp:
    """What is passed on is an ASGI app, so an answer of the gateway's own is made one, too."""
    return response.to_asgi_response(None, request)
