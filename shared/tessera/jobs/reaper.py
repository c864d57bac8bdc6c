"""The reaper: no accepted job is forgotten, and none is kept for ever.

Every few seconds it queues again the jobs whose worker was lost, rings for queued jobs that no worker took, and removes
jobs that were kept long enough together with their files. Any number of reapers may run at once: each step is one
script in Redis. One runs as a thread in every worker and in every service of jobs. Does not know what a job does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tessera.errors import UnavailableError
from tessera.jobs.artifacts.store import ArtifactStore
from tessera.jobs.bell import Bell
from tessera.jobs.records import Counts
from tessera.jobs.worker_store import WorkerStore

logger = logging.getLogger(__name__)

STALE_EVERY_ROUNDS = 200
"""Rounds between two searches for files without a record."""
STALE_MARGIN_S = 24 * 3600.0
"""Seconds that such files are older than any record can be before they are removed."""


class Reaper:
    """A thread that reaps.

    Args:
        store: where the records are.
        artifacts: where the files of the records are.
        bell: rung for queued jobs that no worker took.
        on_counts: called with the number of jobs in each state, each round.
    """

    def __init__(
        self,
        store: WorkerStore,
        artifacts: ArtifactStore,
        bell: Bell,
        *,
        on_counts: Callable[[Counts], None] = lambda _: None,
    ) -> None:
        self.store = store
        self.artifacts = artifacts
        self.bell = bell
        self.on_counts = on_counts
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)

    def start(self) -> None:
        """Begin to reap."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the current round, and wait for its end."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def look(self) -> int:
        """Do one round over leases, rings and expired jobs. Returns the number of rings.

        Raises:
            UnavailableError: Redis is down.
        """
        rings = self.store.reap()
        for ring in rings:
            self.bell.ring(ring.job_id, ring.queue)
        for job_id in self.store.expire():
            self.artifacts.remove(job_id)
        self.on_counts(self.store.counts())
        return len(rings)

    def remove_stale(self) -> None:
        """Remove files of jobs without a record, once they are older than any record can be.

        The age protects the files if Redis answers but has lost its data, or if it is another Redis than before.
        """
        for job_id in self.artifacts.stale(self.store.settings.keep_s + STALE_MARGIN_S):
            if not self.store.exists(job_id):
                self.artifacts.remove(job_id)

    def _run(self) -> None:
        settings = self.store.settings
        rounds = 0
        while not self._closing.wait(settings.reap_every_s):
            try:
                self.look()
                if rounds % STALE_EVERY_ROUNDS == 0:
                    self.remove_stale()
                rounds += 1
            except UnavailableError:
                # Workers could not renew meanwhile: they have a lease's time to come back before theirs are taken.
                self._closing.wait(settings.lease_s)
            except Exception:
                logger.exception("a round of the reaper failed")
