"""`tessera jobs`: prints jobs for an operator, and cancels, retries or purges them. Does not know Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from tessera.errors import TesseraError
from tessera.jobs.admin import JobsAdmin
from tessera.jobs.artifacts.selection import make_artifact_store
from tessera.jobs.bell import make_bell
from tessera.settings.tree import Settings
from tessera.wire.jobs import Job, JobStatus

MAX_PROMPT_CHARS = 48
"""Characters of a prompt that a line of the list shows."""


@contextmanager
def admin_of(settings: Settings) -> Iterator[JobsAdmin]:
    """An operator's access to the jobs of a suite, closed at the end."""
    bell = make_bell(settings)
    admin = JobsAdmin(
        settings.redis_url,
        timeout_s=settings.redis.timeout_s,
        settings=settings.jobs,
        artifacts=make_artifact_store(settings),
        bell=bell,
    )
    try:
        yield admin
    finally:
        admin.close()
        bell.close()


def show_list(admin: JobsAdmin, *, status: JobStatus | None, limit: int, say: Callable[[str], None]) -> int:
    """Print one line for each job, the newest first."""
    jobs = admin.list(status=status)
    if not jobs:
        say("there are no jobs" if status is None else f"no job is {status}")
        return 0
    head = ("id", "status", "done", "tries", "age", "owner", "what")
    rows = [head, *(_row(job) for job in jobs[:limit])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if len(jobs) > limit:
        say(f"… and {len(jobs) - limit} more")
    return 0


def show(admin: JobsAdmin, job_id: str, say: Callable[[str], None]) -> int:
    """Print everything about a job as JSON."""
    say(msgspec.json.format(msgspec.json.encode(admin.get(job_id)), indent=2).decode())
    return 0


def cancel(admin: JobsAdmin, job_ids: Sequence[str], say: Callable[[str], None]) -> int:
    """Cancel jobs."""

    def one(job_id: str) -> str:
        job = admin.cancel(job_id)
        return "will stop at its next step" if job.cancel_requested else job.status

    return _each(job_ids, one, say)


def retry(admin: JobsAdmin, job_ids: Sequence[str], say: Callable[[str], None]) -> int:
    """Let failed or cancelled jobs begin again."""
    return _each(job_ids, lambda job_id: admin.retry(job_id).status, say)


def purge(
    admin: JobsAdmin,
    job_ids: Sequence[str],
    *,
    status: JobStatus | None,
    older_than_s: float,
    say: Callable[[str], None],
) -> int:
    """Remove jobs and their files: those that are named, and all of a status and age."""
    chosen = list(job_ids)
    if status is not None:
        before = time.time() - older_than_s
        chosen += [job.id for job in admin.list(status=status) if (job.ended_at or job.created_at) <= before]

    def one(job_id: str) -> str:
        admin.purge(job_id)
        return "forgotten"

    if not chosen:
        say("nothing to purge")
    return _each(chosen, one, say)


def _each(job_ids: Sequence[str], action: Callable[[str], str], say: Callable[[str], None]) -> int:
    status = 0
    for job_id in job_ids:
        try:
            say(f"{job_id}: {action(job_id)}")
        except TesseraError as error:
            say(f"{job_id}: {error.message}")
            status = 1
    return status


def _row(job: Job) -> tuple[str, ...]:
    given: dict[str, Any] = msgspec.json.decode(job.input)
    what = " ".join(str(given.get("filename") or given.get("prompt") or "").split())
    shown = what if len(what) <= MAX_PROMPT_CHARS else what[: MAX_PROMPT_CHARS - 1] + "…"
    problem = f"  ({job.error.code})" if job.error is not None else ""
    status = "cancelling" if job.cancel_requested else job.status
    return job.id, status, f"{job.progress} %", str(job.attempts), _age(job), job.owner, f"{shown}{problem}"


def _age(job: Job) -> str:
    seconds = max(0.0, time.time() - job.created_at)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
