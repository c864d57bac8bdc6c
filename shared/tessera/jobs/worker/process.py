"""A worker process apart from its handlers: it registers itself, receives rings, reaps, and drains on SIGTERM.

Celery runs threads, never a forked pool: CUDA does not survive a fork. Does not know what a job does.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import celery
from celery import signals
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning

from tessera.jobs.bell import listen
from tessera.jobs.reaper import Reaper
from tessera.jobs.records import WorkerInfo
from tessera.jobs.worker.consumer_watchdog import ConsumerWatchdog
from tessera.jobs.worker.registration import WorkerRegistration
from tessera.jobs.worker.runner import JobRunner

STALLED_AFTER_S = 90.0
"""Seconds that rings may wait while the worker is idle before its consumer counts as stalled."""
STALLED_EXIT_STATUS = 3
"""Exit status of a worker whose consumer has stalled."""


def serve_jobs(app: celery.Celery, runner: JobRunner, info: WorkerInfo) -> int:
    """Do jobs until a signal. Returns Celery's exit status; ends the process with `STALLED_EXIT_STATUS` when its
    consumer receives no rings any more.

    Args:
        app: the Celery app that receives rings.
        runner: does the jobs, with the handlers of this worker.
        info: the description under which the worker is registered.
    """
    registration, reaper = WorkerRegistration(runner.store, info), Reaper(runner.store, runner.artifacts, runner.bell)
    watchdog = ConsumerWatchdog(
        runner.store,
        runner.queue,
        runner,
        stalled_after_s=STALLED_AFTER_S,
        on_stalled=lambda: os._exit(STALLED_EXIT_STATUS),
    )

    def drain(**_: Any) -> None:
        runner.drain()

    def keep_our_logging(**_: Any) -> None:
        """Being connected is what keeps Celery from configuring logging."""

    warnings.filterwarnings("ignore", category=SecurityWarning)  # about root and pickle: messages are JSON only
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)
    listen(app, runner.run)
    signals.setup_logging.connect(keep_our_logging, weak=False)
    signals.worker_shutting_down.connect(drain, weak=False)
    for thread in (registration, reaper, watchdog):
        thread.start()
    try:
        celery_worker = app.Worker(
            hostname=runner.worker,
            pool="threads",
            concurrency=runner.slots,
            queues=[runner.queue],
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            quiet=True,
        )
        celery_worker.start()
        return int(celery_worker.exitcode or 0)
    finally:
        for thread in (watchdog, reaper, registration):
            thread.close()
