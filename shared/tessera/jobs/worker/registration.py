"""Registers a worker as alive in the job store, again and again. Does not know what the worker does."""

from __future__ import annotations

import logging
import threading

from tessera.errors import UnavailableError
from tessera.jobs.records import WorkerInfo
from tessera.jobs.worker_store import WorkerStore

logger = logging.getLogger(__name__)

REGISTER_EVERY_S = 1.0
"""Seconds between two registrations."""
MISSED_REGISTRATIONS = 5
"""Number of registrations in a row that a worker may miss before it counts as gone."""


class WorkerRegistration:
    """A thread that keeps a worker registered.

    Args:
        store: where the worker is registered.
        worker: the worker's description.
    """

    def __init__(self, store: WorkerStore, worker: WorkerInfo) -> None:
        self.store = store
        self.worker = worker
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def start(self) -> None:
        """Begin to register."""
        self._thread.start()

    def close(self) -> None:
        """Stop, and remove the registration."""
        self._closing.set()
        self._thread.join()
        try:
            self.store.remove_worker(self.worker.id)
        except UnavailableError:
            logger.info("the worker's entry will expire by itself")

    def _run(self) -> None:
        while True:
            try:
                self.store.register_worker(self.worker, seconds=REGISTER_EVERY_S * MISSED_REGISTRATIONS)
            except UnavailableError:
                logger.debug("not registered this time: Redis is down")
            if self._closing.wait(REGISTER_EVERY_S):
                return
