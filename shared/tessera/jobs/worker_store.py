"""The job store as workers and reapers see it: claim, renew, end, sweep.

Every change is one script of `tessera.jobs.scripts.jobs`; a job in progress is changed only by who has the newest
fencing token. Does not know what a job does (`tessera.jobs.worker.runner`). The side of the HTTP processes is
`tessera.jobs.store`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.jobs import records
from tessera.jobs.connection import RING_PREFIX, answering, connect, microseconds, sources
from tessera.jobs.records import Counts, Ending, Held, Lease, NotClaimed, Ring, WorkerInfo
from tessera.settings.jobs import JobSettings
from tessera.wire.jobs import Artifact, JobError

SWEEP_BATCH = 100


class WorkerStore:
    """Safe to use from several threads. Raises `UnavailableError` when Redis is down.

    Args:
        url: redis://, rediss:// or unix://.
        timeout_s: how long a silent server is waited for.
        settings: limits and times.
    """

    def __init__(self, url: str, *, timeout_s: float, settings: JobSettings) -> None:
        self.settings = settings
        self._redis = connect(url, timeout_s)
        self._scripts = {name: self._redis.register_script(text) for name, text in sources().items()}

    def claim(self, job_id: str, *, worker: str) -> Lease | NotClaimed:
        """Take the lease of a job that is queued, or whose lease has run out. Counts an attempt."""
        reply = self._run(
            "CLAIM",
            job_id,
            worker,
            microseconds(self.settings.lease_s),
            self.settings.max_attempts,
            microseconds(self.settings.keep_s),
        )
        return records.lease_from(reply)

    def claim_next(self, queue: str, *, worker: str, short_only: bool = False) -> Lease | NotClaimed:
        """Take the lease of the job of a queue whose turn it is. Counts an attempt.

        Args:
            queue: which.
            worker: who.
            short_only: of those that are expected to take little time (`jobs.short_s`).
        """
        settings = self.settings
        lease, keep = microseconds(settings.lease_s), microseconds(settings.keep_s)
        return records.lease_from(self._run("CLAIM_NEXT", queue, worker, lease, keep, int(short_only)))

    def renew(
        self,
        lease: Lease,
        *,
        progress: int,
        checkpoint: str | None = None,
        preview: bytes = b"",
        measure: tuple[float, float] | None = None,
    ) -> Held:
        """Hold the lease for another `lease_s`, and raise the job's progress (it never falls within an attempt).

        Args:
            lease: the holder's.
            progress: 0 to 100.
            checkpoint: key of the artifact from which another attempt can go on; None leaves what is known.
            preview: a small JPEG that those who watch the job are told.
            measure: how much is done, and of how much, in what the kind of job counts in.
        """
        seconds = microseconds(self.settings.lease_s)
        done, total = map(repr, measure) if measure is not None else ("", "")
        reply = self._run("RENEW", lease.job.id, lease.token, seconds, progress, checkpoint or "", preview, done, total)
        return records.held_from(reply)

    def look(self, lease: Lease) -> Held:
        """What a renewal would say, and nothing else: a Redis that keeps every write has none to keep."""
        return records.held_from(self._run("LOOK", lease.job.id, lease.token))

    def complete(self, lease: Lease, artifacts: Mapping[str, Artifact], *, total: float | None = None) -> Ending:
        """End the job with its results: `completed`, `cancelled` when somebody asked for that before, or `lost`.

        Args:
            lease: the holder's.
            artifacts: by name.
            total: how much was done, in what the kind of job counts in; None leaves what a renewal has said.
        """
        encoded = msgspec.json.encode(dict(artifacts))
        keep = microseconds(self.settings.keep_s)
        done = "" if total is None else repr(total)
        return records.ending_from(self._run("COMPLETE", lease.job.id, lease.token, encoded, keep, done))

    def fail(self, lease: Lease, error: JobError, *, again: bool) -> Ending:
        """End the attempt with an error.

        Args:
            lease: the holder's.
            error: what to tell; kept as the last error while the job is tried again.
            again: whether another attempt could help; then the job is queued while it has attempts left, and nobody
                takes it for `backoff_s`, twice that after the second attempt, and so on.

        Returns:
            `failed`, `queued`, `cancelled` or `lost`.
        """
        reply = self._run(
            "FAIL",
            lease.job.id,
            lease.token,
            msgspec.json.encode(error),
            int(again),
            self.settings.max_attempts,
            microseconds(self.settings.keep_s),
            microseconds(self.settings.backoff_s),
        )
        return records.ending_from(reply)

    def release(self, lease: Lease, checkpoint: str | None = None) -> Ending:
        """Give the job back, so that another worker can take it at once; the attempt does not count.

        Args:
            lease: the holder's.
            checkpoint: as in `renew`.
        """
        keep = microseconds(self.settings.keep_s)
        reply = self._run("RELEASE", lease.job.id, lease.token, keep, checkpoint or "")
        return records.ending_from(reply)

    def reap(self) -> list[Ring]:
        """Queue jobs whose lease ran out (or end them: cancelled, or out of attempts), and say for whom to ring.

        Several processes may do this at once: each due ring is answered to one of them, later ones wait longer.
        """
        reply = self._run(
            "REAP",
            self.settings.max_attempts,
            microseconds(self.settings.keep_s),
            microseconds(self.settings.reap_every_s),
            SWEEP_BATCH,
            RING_PREFIX,
        )
        return records.rings_from(reply)

    def expire(self) -> list[str]:
        """Forget ended jobs that were kept long enough. Returns their ids: their files are to be removed."""
        return [bytes(job_id).decode() for job_id in self._run("EXPIRE", SWEEP_BATCH)]

    def exists(self, job_id: str) -> bool:
        """Whether there is a record of this job."""
        with answering():
            return bool(self._redis.exists(f"tessera:job:{job_id}"))

    def rings(self, queue: str) -> int:
        """How many rings of a queue no worker has heard yet."""
        with answering():
            return int(self._redis.llen(RING_PREFIX + queue))

    def counts(self) -> Counts:
        """How many jobs are in which state."""
        queued, in_progress, ended = self._run("COUNTS")
        return Counts(int(queued), int(in_progress), int(ended))

    def register_worker(self, worker: WorkerInfo, *, seconds: float) -> None:
        """Say that a worker is alive for the next `seconds`."""
        self._run("REGISTER_WORKER", worker.id, round(seconds * 1000), msgspec.json.encode(worker))

    def remove_worker(self, worker_id: str) -> None:
        """Say that a worker is gone."""
        self._run("REMOVE_WORKER", worker_id)

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()

    def _run(self, name: str, *arguments: str | bytes | int) -> Any:
        with answering():
            return self._scripts[name](args=list(arguments))
