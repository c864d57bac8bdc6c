"""Responses that are made by jobs: accepted, looked at, watched, cancelled. The worker is `response_jobs`.

The record of a response and the record of its job live side by side: the job says whether it waits, runs or has failed;
the response has everything else, and once it has ended the job no longer matters. A stream of events is kept if the
request asked for one, for `EVENTS_S` after its last event.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec
from litestar.types import ASGIApp

from tessera.api.job_resources import JobResources, NewJob
from tessera.errors import ConflictError, InvalidRequestError, NotFoundError
from tessera.jobs.event_subscription import EventSubscription, wait_for_event
from tessera.protocols.responses.translation import ResponseTranslation
from tessera.telemetry import request_id_var
from tessera.web.app import json_response
from tessera.web.dependencies import HTTPRequest
from tessera.web.sse import PING, event, stream_response
from tessera.wire.decoding import decode_json
from tessera.wire.jobs import ResponseInput
from tessera.wire.responses.request import ResponseRequest
from tessera_gateway.responses.history import not_found
from tessera_gateway.responses.store import KeptResponse, ResponseStore

QUEUE = "response"
"""Name of the queue of all these jobs."""
EVENTS_S = 3600.0
"""Seconds that the events of a response are kept behind the last of them."""
EVENTS_AT_ONCE = 200
"""Most events that are read at once."""
BODY_NAME = "request.json"
"""Name of the artifact with the body for the upstream."""
ENDED = frozenset({"completed", "incomplete", "failed", "cancelled"})
TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})


class BackgroundResponses:
    """Responses of jobs.

    Args:
        store: where responses are kept.
        jobs: the store of jobs, their files and their bell.
        check: raises if there is no model of a name.
        enabled: whether a worker makes them.
    """

    def __init__(
        self, store: ResponseStore, jobs: JobResources, check: Callable[[str], Awaitable[object]], *, enabled: bool
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._check = check
        self._enabled = enabled
        self._subscription = EventSubscription(store.redis)

    async def accept(
        self,
        request: HTTPRequest,
        owner: str,
        given: dict[str, Any],
        whole: bytes,
        own: list[dict[str, Any]],
        previous: str | None,
    ) -> ASGIApp:
        """Accept a response and answer with it, or with the stream of its events.

        Args:
            request: of the client.
            owner: whose response it will be.
            given: its body as it came.
            whole: the body for the upstream, with the whole conversation.
            own: the items of the request itself.
            previous: id of the response before it.

        Raises:
            InvalidRequestError: the request cannot be honoured, or no worker makes responses.
            TesseraError: the job cannot be accepted.
        """
        if not self._enabled:
            raise InvalidRequestError(
                "`background` is switched off here (gateway.response_workers is 0)",
                param="background",
                code="unsupported_parameter",
            )
        checked = decode_json(whole, ResponseRequest)
        translation = ResponseTranslation(checked)
        await self._check(checked.model)
        identity = f"resp_{uuid.uuid4().hex}"
        shown = msgspec.to_builtins(translation.shown("queued"))
        response = {
            **shown,
            "id": identity,
            "created_at": int(time.time()),
            "background": True,
            "store": True,
            "previous_response_id": previous,
        }
        streamed = bool(given.get("stream"))
        if await self._store.keep(owner, response, own, previous, ended=False) != "kept":
            raise InvalidRequestError("`input` is larger than what may be kept of one key", param="input")
        if streamed:
            begun = [
                event({"type": kind, "sequence_number": number, "response": response}, kind)
                for number, kind in enumerate(("response.created", "response.queued"))
            ]
            await self._store.append(owner, identity, begun, keep_s=self._store.keep_ms / 1000)
        try:
            await self._submit(identity, owner, checked, whole, streamed=streamed)
        except BaseException:
            await self._store.delete(owner, identity)
            raise
        if streamed:
            return await self.watch(request, owner, identity, 0)
        return json_response(response).to_asgi_response(None, request)

    async def current(self, owner: str, kept: KeptResponse) -> dict[str, Any]:
        """A response as it is now: one that has not ended has its job's status."""
        response = kept.response
        if kept.ended:
            return response
        try:
            job = await self._jobs.store.get(response["id"], kind="response", owner=owner)
        except NotFoundError:
            return await self._end(owner, response, "failed", "the job of this response is gone")
        if job.status == "failed":
            message = job.error.message if job.error else "the job failed"
            return await self._end(owner, response, "failed", message)
        if job.status == "cancelled":
            return await self._end(owner, response, "cancelled", None)
        return {**response, "status": "queued" if job.status == "queued" else "in_progress"}

    async def cancel(self, owner: str, kept: KeptResponse) -> dict[str, Any]:
        """Stop a response; its status is `cancelled` from now on. One that has ended is returned as it is."""
        if kept.ended:
            return kept.response
        try:
            await self._jobs.store.cancel(kept.response["id"], kind="response", owner=owner)
        except (NotFoundError, ConflictError):
            again = await self._store.get(owner, kept.response["id"])
            return await self.current(owner, again or kept)
        return await self._end(owner, kept.response, "cancelled", None)

    async def remove_job(self, owner: str, identity: str) -> None:
        """Remove the job of a response, which stops it, and its files."""
        try:
            await self._jobs.store.delete(identity, kind="response", owner=owner)
        except NotFoundError:
            return
        await self._jobs.remove_files(identity)

    async def watch(self, request: HTTPRequest, owner: str, identity: str, first: int) -> ASGIApp:
        """The events of a response from number `first` on, past and future, as a stream.

        Raises:
            NotFoundError: the response is not kept, or is another owner's.
            InvalidRequestError: its events are not kept.
        """
        kept = await self._store.get(owner, identity)
        if kept is None:
            raise not_found(identity)
        if await self._store.events(owner, identity, 0, 1) is None:
            raise InvalidRequestError(
                f"the events of {identity!r} are not kept: they are for an hour, of a response that was made with "
                "`background: true` and `stream: true`; get it without `stream`",
                param="stream",
            )
        stream = await stream_response(self._events(owner, identity, first), done=False)
        return stream.to_asgi_response(None, request)

    async def close(self) -> None:
        """End the subscription."""
        await self._subscription.close()

    async def _events(self, owner: str, identity: str, number: int) -> AsyncGenerator[bytes]:
        yield PING
        with self._subscription.subscribe(identity) as woken:
            while True:
                woken.clear()
                found = await self._store.events(owner, identity, number, EVENTS_AT_ONCE)
                for each in found or []:
                    yield each
                    number += 1
                if found:
                    if _kind(found[-1]) in TERMINAL:
                        return
                    continue
                kept = await self._store.get(owner, identity)
                if kept is None:
                    return
                response = await self.current(owner, kept)
                if response["status"] not in ENDED:
                    await wait_for_event(woken)
                elif not await self._store.events(owner, identity, number, 1):
                    yield last_event(response, number)
                    return

    async def _end(self, owner: str, response: dict[str, Any], status: str, message: str | None) -> dict[str, Any]:
        """Give a response its last status, unless it has one."""
        error = None if message is None else {"code": "server_error", "message": message}
        ended = {**response, "status": status, "error": error}
        if await self._store.keep(owner, ended, None, None, known=True) == "ended":
            kept = await self._store.get(owner, response["id"])
            return ended if kept is None else kept.response
        await self._store.append(owner, response["id"], [], keep_s=EVENTS_S)
        return ended

    async def _submit(self, identity: str, owner: str, body: ResponseRequest, whole: bytes, *, streamed: bool) -> None:
        key = f"{identity}/{BODY_NAME}"
        await asyncio.to_thread(self._jobs.artifacts.put, key, whole, "application/json")
        given = ResponseInput(model=body.model, body=key, stream=streamed, request_id=request_id_var.get())
        await self._jobs.accept(
            NewJob(
                id=identity,
                kind="response",
                owner=owner,
                queue=QUEUE,
                job_input=given,
                cost=1.0,
                idempotency=None,
                priority=body.priority or 0,
                deadline_s=body.deadline_s,
                webhook=None,
            )
        )


def last_event(response: dict[str, Any], number: int) -> bytes:
    """The last event of a response that ended without one: its worker was lost, or it was cancelled."""
    kind = "response.failed" if response["status"] == "failed" else "response.incomplete"
    if response["status"] == "completed":
        kind = "response.completed"
    return event({"type": kind, "sequence_number": number, "response": response}, kind)


def _kind(one: bytes) -> str:
    return one.partition(b"\n")[0].removeprefix(b"event: ").decode()
