"""Accepts long recordings: the file is stored, then the record is written, then a worker is rung for.

A file that is too large for memory is stored as it arrives. Whatever goes wrong leaves neither a record nor a file.
Does not know what is in a recording.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from litestar import Response

from tessera.api.job_headers import idempotency_of, owner_of
from tessera.api.job_resources import JobResources, NewJob
from tessera.api.transcriptions.request import cost_of_recording, hash_of, input_of, is_background, read_transcription
from tessera.api.transcriptions.view import accepted
from tessera.errors import InvalidRequestError, PayloadTooLargeError, TesseraError, UnsupportedMediaError
from tessera.jobs.artifacts.store import UnfinishedArtifact
from tessera.jobs.queues import queue_of_transcriptions
from tessera.jobs.webhooks import checked_webhook
from tessera.telemetry import request_id_var
from tessera.web.bodies.spool import SpooledForm
from tessera.web.dependencies import HTTPRequest
from tessera.web.forms import Form
from tessera.web.uploads import Uploaded, arriving, read_to_disk
from tessera.wire.audio import TranscriptionRequest
from tessera.wire.transcription_jobs import TranscriptionJob

FORM_BYTES = 16 * 1024 * 1024
"""Most bytes of a form beside its file; four speakers' references need most of them."""
FILE = "file"
"""Name of the form's field that has the recording."""
_CONTENT_TYPE = "application/octet-stream"


def announced_bytes(request: HTTPRequest) -> int:
    """The announced bytes of a request's body; 0 if none are announced."""
    return request.content_length or 0


async def accept_form(request: HTTPRequest, jobs: JobResources, form: Form) -> Response[TranscriptionJob]:
    """Accept a recording that is in memory, and return 202 with its job. Raises the errors of `accept_stream`."""
    unknown = next((name for name in form.files if name != FILE), None)
    if unknown is not None:
        raise InvalidRequestError(f"`{unknown}` is not a file of this request; `{FILE}` is", param=unknown)
    if FILE not in form.files:
        raise InvalidRequestError(
            f"`{FILE}` is required: the recording as a file of a multipart form",
            param=FILE,
            code="missing_required_parameter",
        )
    upload = form.files[FILE]
    _check_size(jobs, len(upload.data))
    body = await _checked_request(jobs, form.fields)
    digest = await asyncio.to_thread(lambda: hashlib.sha256(upload.data).hexdigest())
    uploaded = Uploaded(form.fields, upload.filename, upload.content_type, len(upload.data), digest)
    job_id = _new_id()
    await asyncio.to_thread(jobs.artifacts.put, f"{job_id}/input", upload.data, _CONTENT_TYPE)
    return await _submit(request, jobs, job_id, body, uploaded)


async def accept_stream(request: HTTPRequest, jobs: JobResources) -> Response[TranscriptionJob]:
    """Accept a recording that is stored as it arrives, and return 202 with its job.

    The field `background=true` has to come before the file.

    Raises:
        InvalidRequestError: the form is damaged, or a field is wrong; names the field.
        PayloadTooLargeError: the announced length or the bytes that arrive are over `speech.max_job_bytes`.
        UnsupportedMediaError: the body is not a form.
        TesseraError: the errors of `AsyncJobStore.create` and `ArtifactStore.create`.
    """
    kind = request.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        raise UnsupportedMediaError(f"content-type {kind or '(none)'!r} is not supported here; send a multipart form")
    _check_size(jobs, announced_bytes(request) - FORM_BYTES)
    return await _accept_pieces(request, jobs, arriving(request), kind, on_file=_require_background)


async def accept_spooled(request: HTTPRequest, jobs: JobResources, form: SpooledForm) -> Response[TranscriptionJob]:
    """Accept a recording that has arrived in a form, and return 202 with its job. Raises the errors of
    `accept_stream`."""
    return await _accept_pieces(request, jobs, form.pieces(), form.content_type, on_file=lambda _: None)


async def _accept_pieces(
    request: HTTPRequest,
    jobs: JobResources,
    pieces: AsyncIterator[bytes],
    content_type: str,
    *,
    on_file: Callable[[dict[str, Any]], None],
) -> Response[TranscriptionJob]:
    job_id = _new_id()
    async with _stored(jobs, f"{job_id}/input") as path:
        uploaded = await read_to_disk(
            pieces,
            content_type,
            path,
            file_field=FILE,
            most_file_bytes=jobs.settings.speech.max_job_bytes,
            most_field_bytes=FORM_BYTES,
            on_file=on_file,
        )
        body = await _checked_request(jobs, uploaded.fields)
    return await _submit(request, jobs, job_id, body, uploaded)


@asynccontextmanager
async def _stored(jobs: JobResources, key: str) -> AsyncIterator[Path]:
    """The path to write an artifact to; it is stored at the end of the context unless an error leaves it."""
    context = jobs.artifacts.create(key, _CONTENT_TYPE)
    unfinished: UnfinishedArtifact = await asyncio.to_thread(context.__enter__)
    try:
        yield unfinished.path
    except BaseException as error:
        await asyncio.to_thread(context.__exit__, type(error), error, error.__traceback__)
        raise
    await asyncio.to_thread(context.__exit__, None, None, None)


async def _checked_request(jobs: JobResources, fields: dict[str, Any]) -> TranscriptionRequest:
    body = read_transcription(fields)
    card = await jobs.cards(body.model)  # whose name is the model's own, where the body has an alias
    checked_webhook(body.webhook_url, jobs.settings.webhooks)
    return msgspec.structs.replace(body, model=card.id)


def _require_background(fields: dict[str, Any]) -> None:
    if not is_background(fields):
        raise PayloadTooLargeError(
            f"`{FILE}` is too large to wait for; send `background=true` before it to have it transcribed as a job",
            param="background",
        )


def _check_size(jobs: JobResources, size: int) -> None:
    most = jobs.settings.speech.max_job_bytes
    if size > most:
        raise PayloadTooLargeError(
            f"`{FILE}` has {size} bytes; `speech.max_job_bytes` is {most}; compress it or send it in parts", param=FILE
        )


async def _submit(
    request: HTTPRequest, jobs: JobResources, job_id: str, body: TranscriptionRequest, uploaded: Uploaded
) -> Response[TranscriptionJob]:
    """Accept the job of a stored file: 202 with the job, or with the one that an idempotency key stands for."""
    try:
        new = await _new_job(request, jobs, job_id, body, uploaded)
    except TesseraError:
        await jobs.remove_files(job_id)
        raise
    return accepted(await jobs.accept(new))


async def _new_job(
    request: HTTPRequest, jobs: JobResources, job_id: str, body: TranscriptionRequest, uploaded: Uploaded
) -> NewJob:
    if not uploaded.bytes:
        raise InvalidRequestError(f"`{FILE}` is empty", param=FILE)
    speakers = None
    if body.known_speaker_references:
        speakers = f"{job_id}/speakers.json"
        data = msgspec.json.encode(body.known_speaker_references)
        await asyncio.to_thread(jobs.artifacts.put, speakers, data, "application/json")
    return NewJob(
        id=job_id,
        kind="transcription",
        owner=owner_of(request),
        queue=queue_of_transcriptions(body.model),
        job_input=input_of(
            body,
            recording=f"{job_id}/input",
            size=uploaded.bytes,
            filename=uploaded.filename,
            speakers=speakers,
            request_id=request_id_var.get(),
        ),
        cost=cost_of_recording(uploaded.bytes),
        idempotency=idempotency_of(request, hash_of(uploaded.fields, uploaded.sha256)),
        priority=body.priority,
        deadline_s=body.deadline_s,
        webhook=checked_webhook(body.webhook_url, jobs.settings.webhooks),
    )


def _new_id() -> str:
    return f"transcription_{uuid.uuid4().hex}"
