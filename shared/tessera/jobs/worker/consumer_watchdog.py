"""Notices a worker that is idle although rings wait in its queue: its Celery consumer has stalled.

Nothing else notices it: the worker's other threads still register it as alive, and the rings are where they belong. The
owner decides what to do; ending the process is right, because an idle worker holds no lease and a supervisor starts
another.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tessera.errors import UnavailableError
from tessera.jobs.worker.runner import JobRunner
from tessera.jobs.worker_store import WorkerStore

logger = logging.getLogger(__name__)


class ConsumerWatchdog:
    """A thread that compares the rings that wait with those that the worker receives.

    Args:
        store: where the rings are counted.
        queue: name of the queue that the worker listens to.
        runner: counts the rings that the worker receives, and knows whether it is busy.
        stalled_after_s: seconds that rings may wait while the worker is idle; well above the time that the consumer
            needs to reconnect.
        on_stalled: called once, from the thread.
    """

    def __init__(
        self,
        store: WorkerStore,
        queue: str,
        runner: JobRunner,
        *,
        stalled_after_s: float,
        on_stalled: Callable[[], None],
    ) -> None:
        self.store = store
        self.queue = queue
        self.runner = runner
        self.stalled_after_s = stalled_after_s
        self.on_stalled = on_stalled
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="consumer watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        silent_since: float | None = None
        received = self.runner.rings_received
        while not self._closing.wait(self.stalled_after_s / 10):
            now = time.monotonic()
            if self.runner.rings_received != received or self.runner.busy or not self._rings_wait():
                received, silent_since = self.runner.rings_received, None
            elif silent_since is None:
                silent_since = now
            elif now - silent_since >= self.stalled_after_s:
                logger.error("rings wait in %s and this idle worker receives none of them", self.queue)
                self.on_stalled()
                return

    def _rings_wait(self) -> bool:
        try:
            return self.store.rings(self.queue) > 0
        except UnavailableError:
            return False
