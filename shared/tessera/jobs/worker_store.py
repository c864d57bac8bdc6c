"""The job store as workers and reapers use it: claim, renew, end, reap. HTTP processes use `tessera.jobs.store`.

Every change is one script of `tessera.jobs.scripts`, and only the holder of the newest fencing token changes a job in
progress. Does not know what a job does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.jobs import records
from tessera.jobs.connection import RING_PREFIX, connect, microseconds, redis_errors_translated, sources
from tessera.jobs.records import Counts, Ending, Held, Lease, NotClaimed, Ring, WorkerInfo
from tessera.settings.jobs import JobSettings
from tessera.wire.jobs import Artifact, JobError

SWEEP_BATCH = 100
"""Most jobs that one call of `reap` or `expire` looks at, so that no script blocks Redis for long."""


class WorkerStore:
    """The synchronous side, safe for several threads. Every method raises `UnavailableError` when Redis is down.

    Args:
        url: address of Redis: redis://, rediss:// or unix://.
        timeout_s: seconds after which a Redis that does not answer counts as down.
        settings: limits and times of jobs.
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
        """Take the lease of the next job of a queue, as the fair queue orders them. Counts an attempt.

        Args:
            queue: name of the queue.
            worker: id of the worker that takes the lease.
            short_only: consider only jobs that are expected to take little time (`jobs.short_s`).
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
            lease: the lease to renew.
            progress: 0 to 100.
            checkpoint: key of the artifact from which another attempt can go on; None keeps the last one.
            preview: a small JPEG for the clients that watch the job; empty for none.
            measure: how much is done and how much there is in all, in the unit of the kind of job.
        """
        seconds = microseconds(self.settings.lease_s)
        done, total = map(repr, measure) if measure is not None else ("", "")
        reply = self._run("RENEW", lease.job.id, lease.token, seconds, progress, checkpoint or "", preview, done, total)
        return records.held_from(reply)

    def look(self, lease: Lease) -> Held:
        """The answer that a renewal would have, without writing, so that Redis' append-only file does not grow."""
        return records.held_from(self._run("LOOK", lease.job.id, lease.token))

    def complete(self, lease: Lease, artifacts: Mapping[str, Artifact], *, total: float | None = None) -> Ending:
        """End the job with its results: `completed`, `cancelled` if a cancel came before, or `lost`.

        Args:
            lease: the lease of this attempt.
            artifacts: the result files by name.
            total: how much was done in all, in the unit of the kind of job; None keeps what the last renewal reported.
        """
        encoded = msgspec.json.encode(dict(artifacts))
        keep = microseconds(self.settings.keep_s)
        done = "" if total is None else repr(total)
        return records.ending_from(self._run("COMPLETE", lease.job.id, lease.token, encoded, keep, done))

    def fail(self, lease: Lease, error: JobError, *, again: bool) -> Ending:
        """End the attempt with an error.

        Args:
            lease: the lease of this attempt.
            error: what the client is told; kept as the last error while the job is tried again.
            again: whether another attempt could help. Then the job is queued while it has attempts left, and no worker
                takes it for `backoff_s` seconds, twice as long after the second attempt, and so on.

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
            lease: the lease of this attempt.
            checkpoint: key of the artifact from which another attempt can go on; None keeps the last one.
        """
        keep = microseconds(self.settings.keep_s)
        reply = self._run("RELEASE", lease.job.id, lease.token, keep, checkpoint or "")
        return records.ending_from(reply)

    def reap(self) -> list[Ring]:
        """Queue the jobs whose lease ran out, or end them if they are cancelled or out of attempts.

        Several processes may do this at once: each due ring is given to one of them, and the next for the same job is
        due later.

        Returns:
            The jobs for which to ring.
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
        """Remove the records of ended jobs that were kept long enough. Returns their ids, whose files the caller
        removes."""
        return [bytes(job_id).decode() for job_id in self._run("EXPIRE", SWEEP_BATCH)]

    def exists(self, job_id: str) -> bool:
        """Whether there is a record of this job."""
        with redis_errors_translated():
            return bool(self._redis.exists(f"tessera:job:{job_id}"))

    def rings(self, queue: str) -> int:
        """The number of rings of a queue that no worker has received yet."""
        with redis_errors_translated():
            return int(self._redis.llen(RING_PREFIX + queue))

    def counts(self) -> Counts:
        """The number of jobs in each state."""
        queued, in_progress, ended = self._run("COUNTS")
        return Counts(int(queued), int(in_progress), int(ended))

    def register_worker(self, worker: WorkerInfo, *, seconds: float) -> None:
        """Record that a worker is alive for the next `seconds`."""
        self._run("REGISTER_WORKER", worker.id, round(seconds * 1000), msgspec.json.encode(worker))

    def remove_worker(self, worker_id: str) -> None:
        """Say that a worker is gone."""
        self._run("REMOVE_WORKER", worker_id)

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()

    def _run(self, name: str, *arguments: str | bytes | int) -> Any:
        with redis_errors_translated():
            return self._scripts[name](args=list(arguments))
