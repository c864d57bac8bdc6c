"""The routes that write down what is said: OpenAI's transcriptions and translations.

Does not know models: see `tessera_speech.transcription`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

import msgspec
from litestar import Request, Response, post
from litestar.datastructures import State
from litestar.response import Stream
from msgspec import UNSET

from tessera.errors import InvalidRequestError
from tessera.language.service import EngineHost
from tessera.web.app import json_response
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.web.forms import Form, read_form
from tessera.web.sse import event, stream_response
from tessera.wire.audio import (
    DiarizedTranscription,
    Segment,
    Transcription,
    TranscriptionRequest,
    TranscriptTextDelta,
    TranscriptTextDone,
    TranscriptUsage,
    TranslationRequest,
    VerboseTranscription,
)
from tessera.wire.decoding import DAMAGED, convert_form
from tessera_speech import subtitles
from tessera_speech.pipeline import SpeechTools
from tessera_speech.transcription import Listening
from tessera_speech.transcripts import TextInProgress

Host = EngineHost[SpeechTools]
SpeechHTTPRequest = Request[Any, Any, State]

TIMED_FORMATS = ("srt", "vtt", "verbose_json", "diarized_json")
REFUSED_FIELDS = {
    "include": "log-probabilities are not reported",
}


@post(
    "/v1/audio/transcriptions",
    summary="Transcribe a recording.",
    tags=["speech"],
    status_code=200,
    operation_class=documented(TranscriptionRequest, "multipart/form-data", file="file"),
)
async def transcribe(request: SpeechHTTPRequest, state: State) -> Response[bytes] | Stream:
    """Takes any common audio or video file. Streams `transcript.text.*` events when `stream` is true."""
    form, _ = await read_form(request)
    body, data = _transcription_request(form)
    host: Host = state.host
    transcription = (await host.tools(body.model)).transcription
    work = transcription.listen(body, data, timestamps=body.response_format in TIMED_FORMATS)
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
    form, _ = await read_form(request)
    data = _file(form)
    asked = convert_form(_with_objects(form.fields), TranslationRequest)
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
    work = transcription.listen(body, data, timestamps=timestamps, translate=True)
    listening = await unless_client_leaves(request, work)
    return await unless_client_leaves(request, _whole(listening, body, task="translate"))


def _transcription_request(form: Form) -> tuple[TranscriptionRequest, bytes]:
    for name, reason in REFUSED_FIELDS.items():
        if name in form.fields:
            raise InvalidRequestError(f"`{name}` is not supported: {reason}", param=name, code="unsupported_parameter")
    data = _file(form)
    body = convert_form(_with_objects(form.fields), TranscriptionRequest)
    if body.timestamp_granularities and body.response_format != "verbose_json":
        raise InvalidRequestError(
            "`timestamp_granularities` needs `response_format=verbose_json`: the other formats have no place for it",
            param="timestamp_granularities",
        )
    if (body.known_speaker_names or body.known_speaker_references) and body.response_format != "diarized_json":
        raise InvalidRequestError(
            "`known_speaker_names` needs `response_format=diarized_json`: the other formats name no speakers",
            param="known_speaker_names",
        )
    if body.stream and body.response_format not in {"json", "text", "diarized_json"}:
        raise InvalidRequestError(
            f"`stream` sends text; `response_format={body.response_format}` needs the whole transcript first",
            param="stream",
        )
    return body, data


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


async def _transcript_events(listening: Listening) -> AsyncGenerator[bytes, None]:
    text = TextInProgress()
    segments = listening.segments()
    async with aclosing(segments):
        async for segment in segments:
            if delta := text.add(segment.text):
                yield event(TranscriptTextDelta(delta=delta))
    yield event(TranscriptTextDone(text=text.text, usage=TranscriptUsage(seconds=_seconds(listening))))


async def _diarized_events(listening: Listening) -> AsyncGenerator[bytes, None]:
    text = TextInProgress()
    segments = listening.diarized()
    async with aclosing(segments):
        async for segment in segments:
            if delta := text.add(segment.text):
                yield event(TranscriptTextDelta(delta=delta, segment_id=segment.id))
            yield event(segment)
    yield event(TranscriptTextDone(text=text.text, usage=TranscriptUsage(seconds=_seconds(listening))))


async def _diarized(listening: Listening) -> Response[bytes]:
    text = TextInProgress()
    segments = []
    async for segment in listening.diarized():
        segments.append(segment)
        text.add(segment.text)
    seconds = _seconds(listening)
    return json_response(
        DiarizedTranscription(
            duration=seconds, text=text.text, segments=segments, usage=TranscriptUsage(seconds=seconds)
        )
    )


async def _whole(
    listening: Listening, body: TranscriptionRequest, task: Literal["transcribe", "translate"] = "transcribe"
) -> Response[bytes]:
    if body.response_format == "diarized_json":
        return await _diarized(listening)
    segments: list[Segment] = []
    text = TextInProgress()
    async for segment in listening.segments():
        segments.append(segment)
        text.add(segment.text)
    usage = TranscriptUsage(seconds=_seconds(listening))
    match body.response_format:
        case "json":
            return json_response(Transcription(text=text.text, usage=usage))
        case "verbose_json":
            return json_response(
                VerboseTranscription(
                    task=task,
                    language="english" if task == "translate" else listening.language,
                    duration=_seconds(listening),
                    text=text.text,
                    segments=segments,
                    words=listening.words if "word" in body.timestamp_granularities else UNSET,
                    usage=usage,
                )
            )
        case "text":
            return _plain(text.text, "text/plain")
        case "srt":
            return _plain(subtitles.srt(segments), "application/x-subrip")
        case "vtt":
            return _plain(subtitles.vtt(segments), "text/vtt")


def _plain(text: str, media_type: str) -> Response[bytes]:
    return Response(text.encode(), headers={"content-type": f"{media_type}; charset=utf-8"})


def _seconds(listening: Listening) -> float:
    return round(listening.seconds, 3)


def _with_objects(fields: dict[str, Any]) -> dict[str, Any]:
    """A form's `chunking_strategy` may be a JSON text, where the SDK writes brackets."""
    value = fields.get("chunking_strategy")
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return fields
    try:
        return fields | {"chunking_strategy": msgspec.json.decode(value)}
    except DAMAGED as error:
        raise InvalidRequestError(
            f"`chunking_strategy` is not valid JSON: {error}", param="chunking_strategy", code="invalid_json"
        ) from error


TRANSCRIPTION_ROUTES = [transcribe, translate]
