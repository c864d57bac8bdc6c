"""Refuses work that is estimated to take longer than its client waits, before it is begun or as soon as it shows.

Estimates come from what earlier jobs of the queue took and, once a job runs, from its own pace. While neither is known,
nothing is refused. Knows nothing about images and clips.
"""

from __future__ import annotations

import time

from tessera.errors import UnprocessableError
from tessera.wire.jobs import Job

MARGIN = 1.25
"""Factor by which an estimate may be over the time that a client waits: jobs of equal cost take so different times."""
LEAST_RUN_S = 2.0
"""Seconds that a job must have run before its own pace counts: its first steps are slower than others."""
LEAST_PROGRESS, MOST_PROGRESS = 5, 95
"""Progress, of 100, between which a job's own pace counts."""


def check_estimate(job: Job, wait_s: float, *, what: str, param: str, cure: str, queued: bool = True) -> None:
    """Refuse a job that was just accepted and will not end in time; the caller deletes it.

    Args:
        job: its record, with what is estimated.
        wait_s: seconds that its client waits.
        what: what it makes, for the error: "these images".
        param: field that says how long the client waits.
        cure: what to do about it.
        queued: whether its time in the queue counts.

    Raises:
        UnprocessableError: it is estimated to end later; names the seconds.
    """
    if job.estimated_start_at is None or job.estimated_end_at is None:
        return
    takes_s = job.estimated_end_at - (job.created_at if queued else job.estimated_start_at)
    if takes_s > wait_s * MARGIN:
        raise too_long(takes_s, wait_s, what=what, param=param, cure=cure)


def seconds_by_own_pace(job: Job, progress: int, now: float | None = None) -> float | None:
    """Seconds from its acceptance that a running job will have taken, by its own pace; None while that says nothing.

    Args:
        job: its record.
        progress: how much of it is done, of 100.
        now: Unix seconds; None for the present.
    """
    now = time.time() if now is None else now
    if job.started_at is None or not LEAST_PROGRESS <= progress <= MOST_PROGRESS:
        return None
    ran_s = now - job.started_at
    return None if ran_s < LEAST_RUN_S else job.started_at - job.created_at + ran_s * 100 / progress


def too_long(takes_s: float, wait_s: float, *, what: str, param: str, cure: str) -> UnprocessableError:
    """The error of work that takes longer than its client waits."""
    return UnprocessableError(
        f"{what} would take about {max(1, round(takes_s))} s on this server now, and the request waits {wait_s:g} s: "
        f"{cure}",
        param=param,
        code="takes_too_long",
    )
