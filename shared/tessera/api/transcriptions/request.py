"""Reads the form of `POST /v1/audio/transcriptions` as the typed request, and makes the input of a job.

Checks the fields, for clients that wait and for jobs alike. Does not know what is in a recording: its decoder does.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from tessera.errors import InvalidRequestError
from tessera.wire.audio import TranscriptionRequest
from tessera.wire.decoding import DAMAGED, convert_form
from tessera.wire.jobs import TranscriptionInput

BYTES_PER_COST = 1e6
"""Bytes of a unit of cost. A job's cost is its file's size, because its seconds are known only when it is decoded."""
REFUSED_FIELDS = {
    "include": "log-probabilities are not reported",
}
_OF_JOBS = ("priority", "deadline_s", "webhook_url")


def read_transcription(fields: dict[str, Any]) -> TranscriptionRequest:
    """The typed request of a form's fields.

    Raises:
        InvalidRequestError: a field is wrong, or two contradict each other; names the field.
    """
    for name, reason in REFUSED_FIELDS.items():
        if name in fields:
            raise InvalidRequestError(f"`{name}` is not supported: {reason}", param=name, code="unsupported_parameter")
    body = convert_form(with_objects(fields), TranscriptionRequest)
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
    if body.stream and body.background:
        raise InvalidRequestError(
            "`stream` and `background` exclude each other: a job's events are at "
            "`GET /v1/audio/transcriptions/{id}/events`",
            param="stream",
        )
    given = next((name for name in _OF_JOBS if name in fields), None)
    if given is not None and not body.background:
        raise InvalidRequestError(f"`{given}` is for jobs: send `background=true` with it", param=given)
    return body


def is_background(fields: dict[str, Any]) -> bool:
    """Whether a form asks for a job. `read_transcription` refuses a value that is neither true nor false."""
    return str(fields.get("background", "")).strip().lower() in {"true", "1"}


def with_objects(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with `chunking_strategy` decoded if it is JSON text; the SDK writes it with brackets."""
    value = fields.get("chunking_strategy")
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return fields
    try:
        return fields | {"chunking_strategy": msgspec.json.decode(value)}
    except DAMAGED as error:
        raise InvalidRequestError(
            f"`chunking_strategy` is not valid JSON: {error}", param="chunking_strategy", code="invalid_json"
        ) from error


def input_of(
    body: TranscriptionRequest,
    *,
    recording: str,
    size: int,
    filename: str,
    speakers: str | None,
    request_id: str | None,
) -> TranscriptionInput:
    """The input of the job, which its worker gets.

    Args:
        body: the decoded request.
        recording: artifact key of the file.
        size: bytes of the file.
        filename: name that the client gave the file; shown, never used as a path.
        speakers: artifact key of the known speakers' references; None if there are none.
        request_id: id of the HTTP request, for the worker's log.
    """
    return TranscriptionInput(
        model=body.model,
        recording=recording,
        bytes=size,
        filename=filename[:255],
        language=body.language,
        prompt=body.prompt,
        response_format=body.response_format,
        temperature=body.temperature,
        timestamp_granularities=body.timestamp_granularities,
        chunking_strategy=body.chunking_strategy,
        known_speaker_names=body.known_speaker_names,
        speakers=speakers,
        request_id=request_id,
    )


def request_of(given: TranscriptionInput, references: list[str]) -> TranscriptionRequest:
    """The request from which a job's input was made."""
    return TranscriptionRequest(
        model=given.model,
        language=given.language,
        prompt=given.prompt,
        response_format=given.response_format,
        temperature=given.temperature,
        timestamp_granularities=given.timestamp_granularities,
        chunking_strategy=given.chunking_strategy,
        known_speaker_names=given.known_speaker_names,
        known_speaker_references=references,
        background=True,
    )


def cost_of_recording(size: int) -> float:
    """The cost of a file of `size` bytes."""
    return max(size, 1) / BYTES_PER_COST


def hash_of(fields: dict[str, Any], sha256: str) -> str:
    """A hash of fields and file: equal for repeated requests, whatever their multipart boundary is."""
    return hashlib.sha256(msgspec.json.encode([fields, sha256], order="deterministic")).hexdigest()
