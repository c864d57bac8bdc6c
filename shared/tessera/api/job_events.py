"""The events of a job as a stream of server-sent events. Knows no kind of job: the resource says how one is shown."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from tessera.jobs.records import JobEvent
from tessera.web.sse import PING
from tessera.wire.jobs import Job


async def event_stream(
    events: AsyncGenerator[tuple[JobEvent, Job]], show: Callable[[JobEvent, Job], bytes]
) -> AsyncIterator[bytes]:
    """The events as bytes, behind a ping that begins the response at once, however long nothing happens.

    Args:
        events: what happened to a job, each with the record as it is now.
        show: the server-sent event for one of them.
    """
    yield PING
    async with contextlib.aclosing(events):
        async for happened, job in events:
            yield show(happened, job)
