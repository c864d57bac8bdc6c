"""The routes that transcribe recordings: OpenAI's transcriptions and translations.

Knows nothing about models; see `tessera_speech.transcription.audio_to_text`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

from litestar import Response, post
from litestar.openapi import ResponseSpec
from litestar.response import Stream

from tessera.api.job_resources import JobResources
from tessera.api.transcriptions.request import is_background, read_transcription, with_objects
from tessera.api.transcriptions.submission import accept_form, accept_stream, announced_bytes
from tessera.errors import InvalidRequestError, UnsupportedMediaError
from tessera.web.bodies.budget import let_body_go
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.web.forms import Form, parse_multipart
from tessera.web.sse import event, stream_response
from tessera.web.uploads import read_to_memory
from tessera.wire.audio import (
    TRANSCRIPT_TYPES,
    TranscriptBody,
    TranscriptionRequest,
    TranscriptTextDelta,
    TranscriptTextDone,
    TranscriptTextSegment,
    TranscriptUsage,
    TranslationBody,
    TranslationRequest,
)
from tessera.wire.decoding import convert_form
from tessera.wire.transcription_jobs import TranscriptionJob
from tessera_speech.pipeline import SpeechHost
from tessera_speech.transcription.audio_to_text import TIMED_FORMATS, RunningTranscription
from tessera_speech.transcription.transcript_files import encode_transcript, finish_transcript, finish_with_speakers
from tessera_speech.transcription.transcript_tokenizer import IncrementalText


@post(
    "/v1/audio/transcriptions",
    summary="Transcribe a recording.",
    tags=["speech"],
    status_code=200,
    responses={202: ResponseSpec(TranscriptionJob, generate_examples=False, description="The job that was accepted.")},
    operation_class=documented(
        TranscriptionRequest,
        "multipart/form-data",
        file="file",
        returns=TranscriptBody,
        events=TranscriptTextDelta | TranscriptTextSegment | TranscriptTextDone,
        files=TRANSCRIPT_TYPES,
    ),
)
async def transcribe(
    request: HTTPRequest,
    host: Injected[SpeechHost],
    transcription_jobs: Injected[JobResources],
    max_upload_bytes: Injected[int],
) -> Response[bytes] | Response[TranscriptionJob] | Stream:
    """Takes any common audio or video file. Streams `transcript.text.*` events when `stream` is true. With `background`
    the answer is 202 and a job, which is polled under its id."""
    if announced_bytes(request) > max_upload_bytes:
        return await accept_stream(request, transcription_jobs)
    form = await _form(request, max_upload_bytes)
    if is_background(form.fields):
        return await accept_form(request, transcription_jobs, form)
    data = _file(form)
    body = read_transcription(form.fields)
    transcription = (await host.tools(body.model)).transcription
    work = transcription.transcribe(body, data, timestamps=body.response_format in TIMED_FORMATS)
    del form, data  # the upload is needed until it is decoded, not until it is transcribed
    running = await unless_client_leaves(request, work)
    let_body_go(request.scope)
    if body.stream:
        events = _diarized_events if body.response_format == "diarized_json" else _transcript_events
        return await unless_client_leaves(request, stream_response(events(running), done=False))
    return await unless_client_leaves(request, _finished(running, body))


@post(
    "/v1/audio/translations",
    summary="Transcribe a recording into English.",
    tags=["speech"],
    status_code=200,
    operation_class=documented(
        TranslationRequest,
        "multipart/form-data",
        file="file",
        returns=TranslationBody,
        files=TRANSCRIPT_TYPES,
    ),
)
async def translate(
    request: HTTPRequest, host: Injected[SpeechHost], max_upload_bytes: Injected[int]
) -> Response[bytes]:
    """Takes any common audio or video file; the model has to be one that translates (a multilingual Whisper)."""
    form = await _form(request, max_upload_bytes)
    data = _file(form)
    fields = convert_form(with_objects(form.fields), TranslationRequest)
    body = TranscriptionRequest(
        model=fields.model,
        prompt=fields.prompt,
        response_format=fields.response_format,
        temperature=fields.temperature,
        chunking_strategy=fields.chunking_strategy,
    )
    transcription = (await host.tools(body.model)).transcription
    timestamps = body.response_format in TIMED_FORMATS
    work = transcription.transcribe(body, data, timestamps=timestamps, translate=True)
    del form, data  # the upload is needed until it is decoded, not until it is transcribed
    running = await unless_client_leaves(request, work)
    let_body_go(request.scope)
    return await unless_client_leaves(request, _finished(running, body, task="translate"))


async def _form(request: HTTPRequest, max_bytes: int) -> Form:
    content_type = request.headers.get("content-type", "")
    if content_type.startswith("application/json"):
        raise InvalidRequestError(
            "`file` is required, and JSON has no place for it: send multipart/form-data",
            param="file",
            code="missing_required_parameter",
        )
    if not content_type.startswith("multipart/form-data"):
        given = content_type.split(";")[0] or "(none)"
        raise UnsupportedMediaError(f"content-type {given!r} is not supported; send multipart/form-data")
    return parse_multipart(await read_to_memory(request, max_bytes), content_type)


def _file(form: Form) -> bytes:
    for name in form.files:
        if name != "file":
            raise InvalidRequestError(f"`{name}` is not a file of this request; `file` is", param=name)
    if "file" not in form.files:
        raise InvalidRequestError(
            "`file` is required: the recording as a file of a multipart form",
            param="file",
            code="missing_required_parameter",
        )
    return form.files["file"].data


async def _transcript_events(running: RunningTranscription) -> AsyncGenerator[bytes, None]:
    text = IncrementalText()
    segments = running.segments()
    async with aclosing(segments):
        async for segment in segments:
            if delta := text.add(segment.text):
                yield event(TranscriptTextDelta(delta=delta))
    yield event(TranscriptTextDone(text=text.text, usage=TranscriptUsage(seconds=_seconds(running))))


async def _diarized_events(running: RunningTranscription) -> AsyncGenerator[bytes, None]:
    text = IncrementalText()
    segments = running.diarized()
    async with aclosing(segments):
        async for segment in segments:
            if delta := text.add(segment.text):
                yield event(TranscriptTextDelta(delta=delta, segment_id=segment.id))
            yield event(segment)
    yield event(TranscriptTextDone(text=text.text, usage=TranscriptUsage(seconds=_seconds(running))))


async def _finished(
    running: RunningTranscription, body: TranscriptionRequest, task: Literal["transcribe", "translate"] = "transcribe"
) -> Response[bytes]:
    if body.response_format == "diarized_json":
        transcript = await finish_with_speakers(running)
    else:
        transcript = await finish_transcript(running, words="word" in body.timestamp_granularities, task=task)
    data, content_type = encode_transcript(transcript, body.response_format)
    return Response(data, headers={"content-type": content_type})


def _seconds(running: RunningTranscription) -> float:
    return round(running.seconds, 3)
