"""The speech service's routes: OpenAI's speech, transcriptions and models.

Does not know models or codecs: see `tessera_speech.pipeline`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

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
from tessera.web.models import MODEL_ROUTES
from tessera.web.sse import event, stream_response
from tessera.wire.audio import (
    Segment,
    Transcription,
    TranscriptionRequest,
    TranscriptTextDelta,
    TranscriptTextDone,
    TranscriptUsage,
    VerboseTranscription,
)
from tessera.wire.decoding import convert_form
from tessera_speech import subtitles
from tessera_speech.live.routes import realtime
from tessera_speech.pipeline import Listening, SpeechTools
from tessera_speech.speech_routes import synthesize
from tessera_speech.transcripts import TextInProgress

Host = EngineHost[SpeechTools]
SpeechHTTPRequest = Request[Any, Any, State]

TIMED_FORMATS = ("srt", "vtt", "verbose_json")
REFUSED_FIELDS = {
    "chunking_strategy": "recordings are always cut at the model's own timestamps",
    "include": "log-probabilities are not reported",
    "known_speaker_names": "speakers are not told apart",
    "known_speaker_references": "speakers are not told apart",
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
        return await unless_client_leaves(request, stream_response(_transcript_events(listening), done=False))
    return await unless_client_leaves(request, _whole(listening, body))


def _transcription_request(form: Form) -> tuple[TranscriptionRequest, bytes]:
    for name, reason in REFUSED_FIELDS.items():
        if name in form.fields:
            raise InvalidRequestError(f"`{name}` is not supported: {reason}", param=name, code="unsupported_parameter")
    if form.fields.get("response_format") == "diarized_json":
        raise InvalidRequestError(
            "`response_format=diarized_json` is not supported: speakers are not told apart; "
            "`verbose_json` has segments with times",
            param="response_format",
            code="unsupported_parameter",
        )
    for name in form.files:
        if name != "file":
            raise InvalidRequestError(f"`{name}` is not a file of this request; `file` is", param=name)
    if "file" not in form.files:
        raise InvalidRequestError(
            "`file` is required: the recording as a file of a multipart form",
            param="file",
            code="missing_required_parameter",
        )
    body = convert_form(form.fields, TranscriptionRequest)
    if body.timestamp_granularities and body.response_format != "verbose_json":
        raise InvalidRequestError(
            "`timestamp_granularities` needs `response_format=verbose_json`: the other formats have no place for it",
            param="timestamp_granularities",
        )
    if body.stream and body.response_format not in {"json", "text"}:
        raise InvalidRequestError(
            f"`stream` sends text; `response_format={body.response_format}` needs the whole transcript first",
            param="stream",
        )
    return body, form.files["file"].data


async def _transcript_events(listening: Listening) -> AsyncGenerator[bytes, None]:
    text = TextInProgress()
    segments = listening.segments()
    async with aclosing(segments):
        async for segment in segments:
            if delta := text.add(segment.text):
                yield event(TranscriptTextDelta(delta=delta))
    yield event(TranscriptTextDone(text=text.text, usage=TranscriptUsage(seconds=_seconds(listening))))


async def _whole(listening: Listening, body: TranscriptionRequest) -> Response[bytes]:
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
                    language=listening.language,
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


ROUTES = [*MODEL_ROUTES, synthesize, transcribe, realtime]
