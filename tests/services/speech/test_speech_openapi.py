"""The speech service's API description: every route says what a success is."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tessera.settings.tree import Settings
from tessera.wire.audio import AUDIO_TYPES, TRANSCRIPT_TYPES
from tessera_speech.app import create_app

METHODS = {"get", "put", "post", "delete", "head"}
EVENTS = "text/event-stream"


@pytest.fixture(scope="module")
def document() -> Any:
    return json.loads(json.dumps(create_app(Settings()).openapi_schema.to_schema()))


def success(document: Any, path: str, method: str = "post", status: str = "200") -> Any:
    return document["paths"][path][method]["responses"][status]["content"]


def names(schema: Any) -> list[str]:
    """The components that a schema refers to."""
    return re.findall(r"#/components/schemas/(\w+)", json.dumps(schema))


def test_every_route_describes_its_success_with_schemas_that_exist(document: Any) -> None:
    routes = [(path, method) for path, methods in document["paths"].items() for method in methods if method in METHODS]
    assert len(routes) > 10
    for path, method in routes:
        for media_type, media in success(document, path, method).items():
            if media_type in {"application/json", EVENTS}:
                assert names(media["schema"]), (path, method, media_type)
            else:
                assert media["schema"]["type"] == "string", (path, method, media_type)
    assert set(names(document)) <= document["components"]["schemas"].keys()


def test_speech_is_a_file_or_events(document: Any) -> None:
    content = success(document, "/v1/audio/speech")
    assert set(content) == {*AUDIO_TYPES, EVENTS}
    assert all(content[each]["schema"] == {"type": "string", "format": "binary"} for each in AUDIO_TYPES)
    assert names(content[EVENTS]) == ["SpeechAudioDelta", "SpeechAudioWords", "SpeechAudioDone"]


def test_a_transcript_is_json_a_text_events_or_an_accepted_job(document: Any) -> None:
    content = success(document, "/v1/audio/transcriptions")
    assert set(content) == {"application/json", EVENTS, *TRANSCRIPT_TYPES}
    assert names(content["application/json"]) == ["Transcription", "VerboseTranscription", "DiarizedTranscription"]
    assert names(content[EVENTS]) == ["TranscriptTextDelta", "TranscriptTextSegment", "TranscriptTextDone"]
    accepted = success(document, "/v1/audio/transcriptions", status="202")
    assert names(accepted) == names(success(document, "/v1/audio/transcriptions/{job_id}", "get"))
    assert names(accepted) == ["TranscriptionJob"]


def test_a_translation_is_json_or_a_text(document: Any) -> None:
    content = success(document, "/v1/audio/translations")
    assert set(content) == {"application/json", *TRANSCRIPT_TYPES}
    assert names(content["application/json"]) == ["Transcription", "VerboseTranscription"]
