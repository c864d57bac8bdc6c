"""Jobs of all owners, as an operator sees and changes them. Does not know how they are printed."""

from __future__ import annotations

import logging
from typing import Any

from tessera.errors import ConflictError, NotFoundError, UnavailableError
from tessera.jobs import records
from tessera.jobs.artifacts.store import ArtifactStore
from tessera.jobs.bell import Bell
from tessera.jobs.connection import connect, microseconds, redis_errors_translated, sources
from tessera.settings.jobs import JobSettings
from tessera.wire.jobs import Job, JobStatus

logger = logging.getLogger(__name__)

MAX_RECORDS = 10_000
"""Most records of each state that are read, the newest first."""
_STATES: dict[JobStatus, str] = {
    "queued": "queued",
    "in_progress": "leased",
    "completed": "ended",
    "failed": "ended",
    "cancelled": "ended",
}


class JobsAdmin:
    """An operator's access to jobs. Every method raises `UnavailableError` when Redis is down.

    Args:
        url: address of Redis: redis://, rediss:// or unix://.
        timeout_s: seconds after which a Redis that does not answer counts as down.
        settings: limits and times of jobs.
        artifacts: where the files of jobs are.
        bell: rung for a job that begins again.
    """

    def __init__(
        self, url: str, *, timeout_s: float, settings: JobSettings, artifacts: ArtifactStore, bell: Bell
    ) -> None:
        self.settings = settings
        self.artifacts = artifacts
        self.bell = bell
        self._redis = connect(url, timeout_s)
        self._scripts = {name: self._redis.register_script(text) for name, text in sources().items()}

    def list(self, *, status: JobStatus | None = None) -> list[Job]:
        """All jobs, or those of a status, the newest first."""
        states = dict.fromkeys(_STATES.values()) if status is None else {_STATES[status]: None}
        found = {}
        for state in states:  # a job that moves meanwhile is seen twice, or not
            for record in self._run("RECORDS", state, MAX_RECORDS):
                job = records.job_from(record)
                if status in (None, job.status):
                    found[job.id] = job
        return sorted(found.values(), key=lambda job: -job.created_at)

    def get(self, job_id: str) -> Job:
        """A job of any owner.

        Raises:
            NotFoundError: there is none.
        """
        reply = self._run("RECORD", job_id)
        if not reply:
            raise _not_found(job_id)
        return records.job_from(reply)

    def cancel(self, job_id: str) -> Job:
        """Cancel: at once while the job is queued, at its worker's next step while it runs.

        Raises:
            NotFoundError: there is none.
            ConflictError: it has ended before.
        """
        job = self.get(job_id)
        reply = self._run("CANCEL", job_id, job.kind, job.owner, microseconds(self.settings.keep_s))
        outcome = bytes(reply[0])
        if outcome == b"gone":
            raise _not_found(job_id)
        job = records.job_from(reply[1])
        if outcome == b"ended":
            raise ConflictError(f"{job_id} is {job.status} and cannot be cancelled any more")
        return job

    def retry(self, job_id: str) -> Job:
        """Let a failed or cancelled job begin again, with all its attempts.

        Raises:
            NotFoundError: there is none.
            ConflictError: it has not ended, or it is completed.
        """
        reply = self._run("RETRY", job_id, microseconds(self.settings.reap_every_s))
        outcome = bytes(reply[0]).decode()
        if outcome == "gone":
            raise _not_found(job_id)
        if outcome != "again":
            raise ConflictError(f"{job_id} is {outcome}; only a failed or cancelled job can begin again")
        job = records.job_from(reply[1])
        try:
            self.bell.ring(job.id, job.queue)
        except UnavailableError as error:
            logger.warning("%s was not rung for (%s); the reaper will", job.id, error.message)
        return job

    def purge(self, job_id: str) -> None:
        """Remove a job in any state, with its files; a worker that has it stops at its next step.

        Raises:
            NotFoundError: there is none.
        """
        job = self.get(job_id)
        if not self._run("DELETE", job_id, job.kind, job.owner):
            raise _not_found(job_id)
        self.artifacts.remove(job_id)

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()

    def _run(self, name: str, *arguments: str | int) -> Any:
        with redis_errors_translated():
            return self._scripts[name](args=list(arguments))


def _not_found(job_id: str) -> NotFoundError:
    return NotFoundError(f"there is no job {job_id!r}")
