"""Speech synthesis and transcription, passed through; long recordings, accepted as jobs."""

from __future__ import annotations

from typing import Any

from litestar import Response, post
from litestar.openapi import ResponseSpec
from litestar.types import ASGIApp

from tessera.api.job_resources import JobResources
from tessera.api.transcriptions.request import is_background
from tessera.api.transcriptions.submission import accept_spooled, accept_stream, announced_bytes
from tessera.web.bodies.spool import SpoolPlace
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.docs import documented
from tessera.wire.audio import (
    AUDIO_TYPES,
    TRANSCRIPT_TYPES,
    SpeechAudioDelta,
    SpeechAudioDone,
    SpeechAudioWords,
    SpeechRequest,
    TranscriptBody,
    TranscriptionRequest,
    TranscriptTextDelta,
    TranscriptTextDone,
    TranscriptTextSegment,
    TranslationBody,
    TranslationRequest,
)
from tessera.wire.transcription_jobs import TranscriptionJob
from tessera_gateway.limits import read_json, read_multipart
from tessera_gateway.proxy import Proxy


@post(
    "/v1/audio/speech",
    status_code=200,
    summary="Speak a text.",
    tags=["audio"],
    operation_class=documented(
        SpeechRequest, files=AUDIO_TYPES, events=SpeechAudioDelta | SpeechAudioWords | SpeechAudioDone
    ),
)
async def speech(request: HTTPRequest, proxy: Injected[Proxy]) -> ASGIApp:
    """Audio arrives while it is made."""
    return await proxy.forward(request, "/v1/audio/speech", "speech", await read_json(request))


@post(
    "/v1/audio/transcriptions",
    status_code=200,
    summary="Write down what is said in a file.",
    tags=["audio"],
    operation_class=documented(
        TranscriptionRequest,
        "multipart/form-data",
        file="file",
        returns=TranscriptBody,
        events=TranscriptTextDelta | TranscriptTextSegment | TranscriptTextDone,
        files=TRANSCRIPT_TYPES,
    ),
    responses={202: ResponseSpec(TranscriptionJob, generate_examples=False, description="The job that was accepted.")},
)
async def transcriptions(
    request: HTTPRequest,
    proxy: Injected[Proxy],
    transcription_jobs: Injected[JobResources | None],
    max_form_bytes: Injected[int],
    spool: Injected[SpoolPlace],
) -> ASGIApp:
    """Takes any audio that PyAV reads, as a form with `file` and `model`. With `background=true` it is a job: answered
    202, looked at under its id."""
    jobs = transcription_jobs
    if jobs is not None and announced_bytes(request) > max_form_bytes:
        return _as_app(request, await accept_stream(request, jobs))
    body, form = await read_multipart(request, max_form_bytes, spool)
    if jobs is not None and is_background(form.fields):
        return _as_app(request, await accept_spooled(request, jobs, form))
    return await proxy.forward(request, "/v1/audio/transcriptions", "transcription", body)


@post(
    "/v1/audio/translations",
    status_code=200,
    summary="Write down in English what is said in a file.",
    tags=["audio"],
    operation_class=documented(
        TranslationRequest, "multipart/form-data", file="file", returns=TranslationBody, files=TRANSCRIPT_TYPES
    ),
)
async def translations(
    request: HTTPRequest, proxy: Injected[Proxy], max_form_bytes: Injected[int], spool: Injected[SpoolPlace]
) -> ASGIApp:
    """Takes the same form as transcriptions, with a model that translates."""
    body, _ = await read_multipart(request, max_form_bytes, spool)
    return await proxy.forward(request, "/v1/audio/translations", "transcription", body)


def _as_app(request: HTTPRequest, response: Response[Any]) -> ASGIApp:
    """A response of the gateway's own as an ASGI app, which is what the proxy returns for one that is passed
    through."""
    return response.to_asgi_response(None, request)
