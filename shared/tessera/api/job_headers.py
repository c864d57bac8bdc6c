"""Headers of job routes: those that are read from a request, and those of a response. Knows no kind of job."""

from __future__ import annotations

import re

from tessera.errors import InvalidRequestError
from tessera.jobs.records import Created
from tessera.jobs.store import Idempotency
from tessera.web.dependencies import HTTPRequest
from tessera.wire.jobs import Job

POLL_AFTER_MS = 500
"""Milliseconds after which a client asks again for a job that has not ended."""
MAX_KEY_LENGTH = 255
"""Characters of an `Idempotency-Key`."""
_EVENT_ID = re.compile(r"^[0-9]{1,20}-[0-9]{1,20}$")


def owner_of(request: HTTPRequest) -> str:
    """The owner whose jobs a request may see; set by the gateway's guard, `anonymous` without one."""
    return str(request.scope.get("tessera.owner", "anonymous"))


def idempotency_of(request: HTTPRequest, fingerprint: str) -> Idempotency | None:
    """The request's `Idempotency-Key` with a hash of what the request asks for; None without the header.

    Raises:
        InvalidRequestError: the key is empty or too long.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise InvalidRequestError(f"`Idempotency-Key` has 1 to {MAX_KEY_LENGTH} characters", param="Idempotency-Key")
    return Idempotency(key, fingerprint)


def last_event_id(request: HTTPRequest) -> str:
    """The id of the last event that the client has; empty for a stream from its beginning.

    Raises:
        InvalidRequestError: `Last-Event-ID` is no id of an event.
    """
    after = request.headers.get("last-event-id", "")
    if after and not _EVENT_ID.match(after):
        raise InvalidRequestError("`Last-Event-ID` is no id of an event of this stream", param="Last-Event-ID")
    return after


def poll_headers(job: Job) -> dict[str, str]:
    """The header by which OpenAI's SDK learns when to ask again for a job that has not ended."""
    return {"openai-poll-after-ms": str(POLL_AFTER_MS)} if job.status in ("queued", "in_progress") else {}


def accepted_headers(created: Created) -> dict[str, str]:
    """Headers of the response that accepts a job, or repeats it for an `Idempotency-Key`."""
    return {**poll_headers(created.job), **({"idempotent-replayed": "true"} if created.replayed else {})}
