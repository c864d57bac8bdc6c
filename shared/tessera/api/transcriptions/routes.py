"""Transcription jobs of long recordings, the same in the gateway and in the speech service, over the job records.

`POST /v1/audio/transcriptions` with `background=true` makes them. Each app answers that route itself, because it
answers clients who wait there, too, and hands a job on to `tessera.api.transcriptions.submission`. Does not know who
transcribes.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, HttpMethod, Response, delete, get, post, route
from litestar.params import Parameter
from litestar.response import Stream

from tessera.api.downloads import artifact_response
from tessera.api.job_events import event_stream
from tessera.api.job_headers import last_event_id, owner_of, poll_headers
from tessera.api.job_resources import JobResources
from tessera.api.transcriptions.view import transcription_event, transcription_job_of
from tessera.errors import ConflictError, InvalidRequestError, NotFoundError
from tessera.web.app import json_response
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.docs import documented
from tessera.web.sse import stream_response
from tessera.wire.audio import TRANSCRIPT_TYPES, TranscriptBody
from tessera.wire.jobs import Job, TranscriptionInput
from tessera.wire.transcription_jobs import TranscriptionJob, TranscriptionJobDeleted, TranscriptionJobList

JobId = Annotated[str, Parameter(description="Id of a transcription job.")]
MAX_LIST = 100
"""Most jobs of one page of a list."""
_ID = re.compile(r"^transcription_[0-9a-f]{32}$")


class TranscriptionsController(Controller):
    """Transcription jobs of the key that asks."""

    path = "/v1/audio/transcriptions"
    tags = ("transcription jobs",)

    @get("/", summary="List transcription jobs.")
    async def list_jobs(
        self,
        request: HTTPRequest,
        jobs: Injected[JobResources],
        after: Annotated[str | None, Parameter(description="Id of the last job of the page before.")] = None,
        limit: Annotated[int, Parameter(ge=1, le=MAX_LIST)] = 20,
        order: Annotated[Literal["asc", "desc"], Parameter(description="By time of creation.")] = "desc",
    ) -> Response[TranscriptionJobList]:
        """The jobs by time of creation, the newest first unless `order` is `asc`."""
        page = await jobs.store.list(
            kind="transcription", owner=owner_of(request), after=after, limit=limit, order=order
        )
        shown = [transcription_job_of(job) for job in page.jobs]
        first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
        return json_response(TranscriptionJobList(data=shown, first_id=first, last_id=last, has_more=page.has_more))

    @get("/{job_id:str}", summary="Look at a transcription job.")
    async def retrieve(
        self, request: HTTPRequest, jobs: Injected[JobResources], job_id: JobId
    ) -> Response[TranscriptionJob]:
        """Status, and how many seconds are transcribed; `openai-poll-after-ms` says when to ask again."""
        job = await _job(jobs, request, job_id)
        return json_response(transcription_job_of(job), headers=poll_headers(job))

    @get(
        "/{job_id:str}/events",
        summary="Watch a transcription job.",
        operation_class=documented(events=TranscriptionJob),
    )
    async def events(self, request: HTTPRequest, jobs: Injected[JobResources], job_id: JobId) -> Stream:
        """Server-sent events from the job's beginning to its end, each with the job as it was then.

        `transcription.queued` (again after a lost worker), `transcription.in_progress`, `transcription.progress`, and
        at the end `transcription.completed`, `transcription.failed` or `transcription.cancelled`. With the header
        `Last-Event-ID` they go on behind that event.
        """
        after = last_event_id(request)
        await _job(jobs, request, job_id)
        events = jobs.store.events(_checked(job_id), kind="transcription", owner=owner_of(request), after=after)
        return await stream_response(event_stream(events, transcription_event), done=False)

    @delete("/{job_id:str}", status_code=200, summary="Delete a transcription job, its recording and its text.")
    async def delete_job(
        self, request: HTTPRequest, jobs: Injected[JobResources], job_id: JobId
    ) -> Response[TranscriptionJobDeleted]:
        """A job that runs is stopped at once."""
        await jobs.store.delete(_checked(job_id), kind="transcription", owner=owner_of(request))
        await jobs.remove_files(job_id)
        return json_response(TranscriptionJobDeleted(id=job_id))

    @post("/{job_id:str}/cancel", status_code=200, summary="Stop a transcription job but keep its record.")
    async def cancel(
        self, request: HTTPRequest, jobs: Injected[JobResources], job_id: JobId
    ) -> Response[TranscriptionJob]:
        """The job becomes `cancelled`, at once or when its worker stops, like OpenAI's background responses."""
        job = await jobs.store.cancel(_checked(job_id), kind="transcription", owner=owner_of(request))
        return json_response(transcription_job_of(job), headers=poll_headers(job))

    @route(
        "/{job_id:str}/content",
        http_method=[HttpMethod.GET, HttpMethod.HEAD],
        summary="The transcript of a completed job.",
        operation_class=documented(returns=TranscriptBody, files=TRANSCRIPT_TYPES),
    )
    async def content(
        self,
        request: HTTPRequest,
        jobs: Injected[JobResources],
        job_id: JobId,
        response_format: Annotated[
            str | None,
            Parameter(description="`json`, `text`, `srt`, `vtt`, `verbose_json` or `diarized_json`."),
        ] = None,
    ) -> Response[Any]:
        """The transcript in the format that the job was made with, or in another: all but `diarized_json`, which has to
        be asked for when the job is made. A `Range` header names a part."""
        job = await _job(jobs, request, job_id)
        if job.status != "completed":
            raise ConflictError(f"the transcription {job_id!r} is {job.status}; only a completed one has content")
        chosen = response_format or msgspec.json.decode(job.input, type=TranscriptionInput).response_format
        artifact = job.artifacts.get(chosen)
        if artifact is None:
            known = ", ".join(job.artifacts)
            raise InvalidRequestError(
                f"`response_format` is {chosen!r}; this transcript has {known}", param="response_format"
            )
        name = f"{job_id}.{artifact.key.rpartition('.')[2]}"
        return await artifact_response(request, jobs.artifacts, artifact, filename=name)


async def _job(jobs: JobResources, request: HTTPRequest, job_id: str) -> Job:
    return await jobs.store.get(_checked(job_id), kind="transcription", owner=owner_of(request))


def _checked(job_id: str) -> str:
    if not _ID.match(job_id):
        raise NotFoundError(f"there is no transcription {job_id!r}", code="transcription_not_found")
    return job_id
