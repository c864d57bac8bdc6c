"""Makes responses as jobs: asks an upstream the way the gateway does, keeps the events, keeps the response.

An attempt that follows a lost one closes the items that were open in the kept events and goes on numbering events and
items, so a client that watches sees one stream. Only the first writer of a response's end wins: a worker that comes
late, or after a cancel, changes nothing. Knows nothing about Celery.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Request
from litestar.types import Message

from tessera.errors import BadGatewayError, InvalidRequestError, TesseraError, UnavailableError
from tessera.jobs.artifacts.store import ArtifactStore
from tessera.jobs.worker.runner import JobContext
from tessera.telemetry import request_id_var
from tessera.wire.decoding import DAMAGED
from tessera.wire.jobs import Artifact, Job, ResponseInput
from tessera_gateway.limits import JsonBody
from tessera_gateway.responses.background import EVENTS_S
from tessera_gateway.responses.event_log import EventLog, events_in
from tessera_gateway.responses.forwarding import PATH, Forward
from tessera_gateway.responses.relay import ResponseRelay
from tessera_gateway.responses.store import KeptResponse, ResponseStore

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.1
"""Seconds between two looks whether the job has to stop."""
FLUSH_EVERY_S = 0.05
"""Seconds for which events are collected before they are kept together."""
RETRY_S = 0.5
"""Seconds between two attempts to reach a Redis that is down."""
MAY_PASS = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses of an upstream after which another attempt can help."""


class ResponseJobs:
    """The handler of jobs of the kind `response`.

    Args:
        loop: runs in a thread of its own; upstreams are asked there.
        store: where responses are kept.
        artifacts: where the bodies are.
        forward: sends a request to an upstream.
        max_attempts: attempts after which a failure is the response's end.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: ResponseStore,
        artifacts: ArtifactStore,
        forward: Forward,
        *,
        max_attempts: int,
    ) -> None:
        self._loop = loop
        self._store = store
        self._artifacts = artifacts
        self._forward = forward
        self._max_attempts = max_attempts

    def __call__(self, job: Job, context: JobContext) -> Mapping[str, Artifact]:
        """Make the response of a job. Implements `Handler`."""
        given = msgspec.json.decode(job.input, type=ResponseInput)
        with self._artifacts.open(given.body) as file:
            body = file.read()
        making = asyncio.run_coroutine_threadsafe(self._make(job, given, body), self._loop)
        try:
            while True:
                context.step(0)
                concurrent.futures.wait([making], timeout=LOOK_EVERY_S)
                if making.done():
                    making.result()
                    return {}
        except BaseException:
            making.cancel()
            raise

    async def _make(self, job: Job, given: ResponseInput, body: bytes) -> None:
        request_id_var.set(given.request_id)
        kept = await self._store.get(job.owner, job.id)
        if kept is None or kept.ended:
            return
        log = EventLog(self._store, job.owner, job.id, keep_s=self._store.keep_ms / 1000) if given.stream else None
        try:
            if log is not None:
                await log.resume()
            made = await self._ask(job, given, body, kept, log)
        except TesseraError as error:
            if error.retryable and job.attempts < self._max_attempts:
                raise
            made = {**kept.response, "status": "failed", "error": {"code": "server_error", "message": error.message}}
            await self._end(job, made, log)
            raise
        await self._end(job, made, log)

    async def _ask(
        self, job: Job, given: ResponseInput, body: bytes, kept: KeptResponse, log: EventLog | None
    ) -> dict[str, Any]:
        """The response of an upstream, as it is kept.

        Raises:
            TesseraError: there is none.
        """
        receiving = _Answer(log)
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": PATH,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "tessera.owner": job.owner,
        }
        request: Request[Any, Any, Any] = Request(scope, receive=_never, send=receiving.take)  # type: ignore[arg-type]
        app = ResponseRelay(await self._forward(request, JsonBody(given.model, body, "application/json")), None, None)
        flushing = asyncio.create_task(log.flush_always(FLUSH_EVERY_S)) if log is not None else None
        try:
            await app(request.scope, _never, receiving.take)
        finally:
            if flushing is not None:
                flushing.cancel()
                await asyncio.gather(flushing, return_exceptions=True)
        made = receiving.response()
        same = ("id", "created_at", "background", "store", "previous_response_id")
        return {**made, **{name: kept.response[name] for name in same}}

    async def _end(self, job: Job, made: dict[str, Any], log: EventLog | None) -> None:
        """Keep the end of a response, however long Redis is down."""
        while True:
            try:
                outcome = await self._store.keep(job.owner, made, None, None, known=True)
                if outcome == "large":
                    failure = {"code": "server_error", "message": "the response is larger than what may be kept"}
                    made = {**made, "status": "failed", "error": failure, "output": []}
                    outcome = await self._store.keep(job.owner, made, None, None, known=True)
                if log is not None and outcome == "kept":
                    await log.close(made, EVENTS_S)
            except UnavailableError:
                logger.warning("the end of %s is not kept yet: Redis is down", job.id)
                await asyncio.sleep(RETRY_S)
            else:
                return


class _Answer:
    """Takes the messages of a response."""

    def __init__(self, log: EventLog | None) -> None:
        self._log = log
        self._status = 0
        self._kind = b""
        self._body = bytearray()
        self._final: dict[str, Any] | None = None

    async def take(self, message: Message) -> None:
        """Take a message of ASGI."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._kind = dict(message["headers"]).get(b"content-type", b"")
        elif message["type"] == "http.response.body":
            self._body += message["body"]
            if self._kind.startswith(b"text/event-stream"):
                for one in events_in(self._body):
                    self._event(one)

    def _event(self, one: dict[str, Any]) -> None:
        kind = one.get("type")
        if kind in {"response.completed", "response.incomplete", "response.failed"}:
            self._final = one["response"]
        elif kind == "error":
            self._final = {"status": "failed", "error": {"code": one.get("code"), "message": one.get("message")}}
        elif self._log is not None:
            self._log.add(one)

    def response(self) -> dict[str, Any]:
        """The whole response.

        Raises:
            TesseraError: the upstream refused or failed.
        """
        if self._final is None:
            try:
                decoded = msgspec.json.decode(bytes(self._body))
            except DAMAGED:
                decoded = None
            if self._status == 200 and isinstance(decoded, dict) and "output" in decoded:
                return decoded
            raise _refusal(self._status, decoded)
        if self._final["status"] == "failed":
            error = self._final.get("error") or {}
            kind = InvalidRequestError if error.get("code") == "invalid_prompt" else BadGatewayError
            raise kind(str(error.get("message", "the upstream failed")))
        return self._final


def _refusal(status: int, decoded: object) -> TesseraError:
    inner = decoded.get("error") if isinstance(decoded, dict) else None
    message = inner.get("message") if isinstance(inner, dict) else None
    if status in MAY_PASS:
        return UnavailableError(str(message or f"the upstream answered {status}"))
    if 400 <= status < 500:
        return InvalidRequestError(str(message or f"the upstream answered {status}"))
    return BadGatewayError(str(message or "the upstream broke its answer off"))


async def _never() -> Any:
    """Nobody waits at the other end, so nobody leaves."""
    await asyncio.Event().wait()
