"""The routes that write down what is said: OpenAI's transcriptions and translations.

Does not know models: see `tessera_speech.transcription.audio_to_text`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

from litestar import Request, Response, post
from litestar.datastructures import State
from litestar.response import Stream

from tessera.api.job_resources import JobResources
from tessera.api.transcriptions.request import is_background, read_transcription, with_objects
from tessera.api.transcriptions.submission import accept_form, accept_stream, announced_bytes
from tessera.engine.host import EngineHost
from tessera.errors import InvalidRequestError, UnsupportedMediaError
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.web.forms import Form, parse_multipart
from tessera.web.sse import event, stream_response
from tessera.web.uploads import read_to_memory
from tessera.wire.audio import (
    TranscriptionRequest,
    TranscriptTextDelta,
    TranscriptTextDone,
    TranscriptUsage,
    TranslationRequest,
)
from tessera.wire.decoding import convert_form
from tessera_speech.pipeline import SpeechTools
from tessera_speech.transcription.audio_to_text import TIMED_FORMATS, RunningTranscription
from tessera_speech.transcription.transcript_files import encode_transcript, finish_transcript, finish_with_speakers
from tessera_speech.transcription.transcript_tokenizer import IncrementalText

Host = EngineHost[SpeechTools]
SpeechHTTPRequest = Request[Any, Any, State]


@post(
    "/v1/audio/transcriptions",
    summary="Transcribe a recording.",
    tags=["speech"],
    status_code=200,
    operation_class=documented(TranscriptionRequest, "multipart/form-data", file="file"),
)
async def transcribe(request: SpeechHTTPRequest, state: State) -> Response[bytes] | Stream:
    """Takes any common audio or video file. Streams `transcript.text.*` events when `stream` is true; with `background`
    it is a job, answered 202 and looked at under its id."""
    jobs: JobResources = state.transcriptions
    most: int = state.max_body_bytes
    if announced_bytes(request) > most:
        return await accept_stream(request, jobs)
    form = await _form(request, most)
    if is_background(form.fields):
        return await accept_form(request, jobs, form)
    data = _file(form)
    body = read_transcription(form.fields)
    host: Host = state.host
    transcription = (await host.tools(body.model)).transcription
    work = transcription.transcribe(body, data, timestamps=body.response_format in TIMED_FORMATS)
    listening = await unless_client_leaves(request, work)
    if body.stream:
        events = _diarized_events if body.response_format == "diarized_json" else _transcript_events
        return await unless_client_leaves(request, stream_response(events(listening), done=False))
    return await unless_client_leaves(request, _whole(listening, body))


@post(
    "/v1/audio/translations",
    summary="Write down in English what is said.",
    tags=["speech"],
    status_code=200,
    operation_class=documented(TranslationRequest, "multipart/form-data", file="file"),
)
async def translate(request: SpeechHTTPRequest, state: State) -> Response[bytes]:
    """Takes any common audio or video file; the model has to be one that translates (a multilingual Whisper)."""
    form = await _form(request, state.max_body_bytes)
    data = _file(form)
    asked = convert_form(with_objects(form.fields), TranslationRequest)
    body = TranscriptionRequest(
        model=asked.model,
        prompt=asked.prompt,
        response_format=asked.response_format,
        temperature=asked.temperature,
        chunking_strategy=asked.chunking_strategy,
    )
    host: Host = state.host
    transcription = (await host.tools(body.model)).transcription
    timestamps = body.response_format in TIMED_FORMATS
    work = transcription.transcribe(body, data, timestamps=timestamps, translate=True)
    listening = await unless_client_leaves(request, work)
    return await unless_client_leaves(request, _whole(listening, body, task="translate"))


async def _form(request: SpeechHTTPRequest, most_bytes: int) -> Form:
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
    return parse_multipart(await read_to_memory(request, most_bytes), content_type)


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


async def _transcript_events(listening: RunningTranscription) -> AsyncGenerator[bytes, None]:
    text = IncrementalText()
    segments = listening.segments()
    async with aclosing(segments):
        async for segment in segments:
            if delta := text.add(segment.text):
                yield event(TranscriptTextDelta(delta=delta))
    yield event(TranscriptTextDone(text=text.text, usage=TranscriptUsage(seconds=_seconds(listening))))


async def _diarized_events(listening: RunningTranscription) -> AsyncGenerator[bytes, None]:
    text = IncrementalText()
    segments = listening.diarized()
    async with aclosing(segments):
        async for segment in segments:
            if delta := text.add(segment.text):
                yield event(TranscriptTextDelta(delta=delta, segment_id=segment.id))
            yield event(segment)
    yield event(TranscriptTextDone(text=text.text, usage=TranscriptUsage(seconds=_seconds(listening))))


async def _whole(
    listening: RunningTranscription, body: TranscriptionRequest, task: Literal["transcribe", "translate"] = "transcribe"
) -> Response[bytes]:
    if body.response_format == "diarized_json":
        found = await finish_with_speakers(listening)
    else:
        found = await finish_transcript(listening, words="word" in body.timestamp_granularities, task=task)
    data, content_type = encode_transcript(found, body.response_format)
    return Response(data, headers={"content-type": content_type})


def _seconds(listening: RunningTranscription) -> float:
    return round(listening.seconds, 3)
