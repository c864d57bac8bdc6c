"""What a worker process is but for its handlers: it registers, hears rings, reaps, and drains on SIGTERM.

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
from tessera.jobs.worker.consumer_watchdog import Hearing
from tessera.jobs.worker.presence import Presence
from tessera.jobs.worker.runner import Runner

DEAF_AFTER_S = 90.0
DEAF_STATUS = 3


def serve_jobs(app: celery.Celery, runner: Runner, info: WorkerInfo) -> int:
    """Do jobs until a signal. Returns Celery's exit status; ends the process with `DEAF_STATUS` when it hears no more.

    Args:
        app: Celery's.
        runner: with the handlers.
        info: how the worker is known to others.
    """
    presence, reaper = Presence(runner.store, info), Reaper(runner.store, runner.artifacts, runner.bell)
    hearing = Hearing(
        runner.store, runner.queue, runner, deaf_after_s=DEAF_AFTER_S, on_deaf=lambda: os._exit(DEAF_STATUS)
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
    for thread in (presence, reaper, hearing):
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
        for thread in (hearing, reaper, presence):
            thread.close()
