"""Notices a worker that is idle and yet does not hear the rings that wait in its queue: its consumer has died inside.

Nothing else would: its other threads still register it as alive, and the rings are where they belong. What to do then
is its owner's to say. Ending the process is right: an idle worker holds nothing, and a supervisor starts another.
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
    """A thread that looks.

    Args:
        store: where the rings are.
        queue: that the worker listens to.
        runner: what the worker does with them.
        stalled_after_s: how long rings may wait while the worker is idle. Well above the consumer's own reconnecting.
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
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        silent_since: float | None = None
        heard = self.runner.rings_received
        while not self._closing.wait(self.stalled_after_s / 10):
            now = time.monotonic()
            if self.runner.rings_received != heard or self.runner.busy or not self._rings_wait():
                heard, silent_since = self.runner.rings_received, None
            elif silent_since is None:
                silent_since = now
            elif now - silent_since >= self.stalled_after_s:
                logger.error("rings wait in %s and this idle worker hears none of them", self.queue)
                self.on_stalled()
                return

    def _rings_wait(self) -> bool:
        try:
            return self.store.rings(self.queue) > 0
        except UnavailableError:
            return False
