"""A worker process without a model: all of the job machinery, and a handler whose steps are naps that it writes down.

Run by `tests.shared.jobs.job_stage`. Everything is as in `tessera_video.worker` but the pipeline.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODEL = "shapes-video"
arguments = argparse.ArgumentParser()
arguments.add_argument("--log", type=Path, required=True)
arguments.add_argument("--step-s", type=float, default=0.05)
arguments.add_argument("--checkpoint-steps", type=int, default=4)
arguments.add_argument("--result-bytes", type=int, default=1000)
arguments.add_argument("--largest-file", type=int, default=0, help="larger ones are refused, as by a full disk")
arguments.add_argument("--clock-skew-s", type=float, default=0)
options = arguments.parse_args()
if options.clock_skew_s:
    _right = time.time
    time.time = lambda: _right() + options.clock_skew_s  # before anybody takes it by name
if options.largest_file:
    resource.setrlimit(resource.RLIMIT_FSIZE, (options.largest_file, options.largest_file))

import msgspec  # noqa: E402
from celery import signals  # noqa: E402

from tessera.errors import TesseraError  # noqa: E402
from tessera.jobs.artifacts.selection import make_artifact_store  # noqa: E402
from tessera.jobs.bell import CeleryBell, listen, make_app  # noqa: E402
from tessera.jobs.queues import queue_of  # noqa: E402
from tessera.jobs.reaper import Reaper  # noqa: E402
from tessera.jobs.records import WorkerInfo  # noqa: E402
from tessera.jobs.worker.registration import WorkerRegistration  # noqa: E402
from tessera.jobs.worker.runner import JobContext, JobRunner, JobStoppedError  # noqa: E402
from tessera.jobs.worker_store import WorkerStore  # noqa: E402
from tessera.settings.load import load  # noqa: E402
from tessera.wire.jobs import Artifact, Job, VideoInput  # noqa: E402
from tessera.wire.models import Card  # noqa: E402


class Napper:
    """A handler. Each thing that it does is one line of the operation log, written before it goes on."""

    def __init__(self, artifacts: Any) -> None:
        self.artifacts = artifacts
        self.log = os.open(options.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, job: Job, context: JobContext) -> Mapping[str, Artifact]:
        steps = msgspec.json.decode(job.input, type=VideoInput).steps
        token = int(context.key("x").rpartition("/")[2].partition("-")[0])
        first = self._checkpoint(job)
        self._write("begin", job, token, index=first)
        try:
            for index in range(first, steps):
                self._write("step", job, token, index=index)
                time.sleep(options.step_s)
                self._write("stepped", job, token, index=index)
                if (index + 1) % options.checkpoint_steps == 0:
                    data = json.dumps({"index": index + 1, "padding": "x" * 100}).encode()
                    context.checkpointed(self.artifacts.put(context.key("checkpoint.json"), data, "x").key)
                context.step(100 * (index + 1) // steps)
            made = self.artifacts.put(context.key("video.mp4"), os.urandom(options.result_bytes), "video/mp4")
        except JobStoppedError as stopped:
            self._write("stopped", job, token, reason=stopped.reason)
            raise
        self._write("stored", job, token, sha256=made.sha256)
        return {"video": made}

    def _checkpoint(self, job: Job) -> int:
        if job.checkpoint is None:
            return 0
        try:
            with self.artifacts.open(job.checkpoint) as file:
                return int(json.loads(file.read())["index"])
        except (TesseraError, OSError, ValueError):
            return 0

    def _write(self, what: str, job: Job, token: int, **more: Any) -> None:
        # The monotonic clock is one for all processes of a machine.
        line = {"at": time.monotonic(), "pid": os.getpid(), "what": what, "job": job.id, "token": token, **more}
        os.write(self.log, json.dumps(line).encode() + b"\n")


def main() -> int:
    """As `tessera_video.worker.work`."""
    settings = load()
    store = WorkerStore(settings.redis_url, timeout_s=settings.redis.timeout_s, settings=settings.jobs)
    artifacts = make_artifact_store(settings)
    app = make_app(settings)
    bell = CeleryBell(app)
    worker, queue = f"nap-{uuid.uuid4().hex[:12]}", queue_of(MODEL)
    napper = Napper(artifacts)
    slots = settings.video.concurrent_jobs
    runner = JobRunner(store, artifacts, bell, {"video": napper}, worker=worker, queue=queue, slots=slots)
    card = Card(id=MODEL, family="x", tasks=["video"], source="test", parameters=1, licence="none", sizes=["64x64"])
    info = WorkerInfo(id=worker, kind="video", queue=queue, card=card, device="cpu", pid=os.getpid(), slots=slots)
    threads = (WorkerRegistration(store, info), Reaper(store, artifacts, bell))
    listen(app, runner.run)

    def drain(**_: Any) -> None:
        runner.drain()

    signals.worker_shutting_down.connect(drain, weak=False)
    for thread in threads:
        thread.start()
    try:
        celery_worker = app.Worker(
            hostname=worker,
            pool="threads",
            concurrency=slots,
            queues=[queue],
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            quiet=True,
        )
        celery_worker.start()
        return int(celery_worker.exitcode or 0)
    finally:
        for thread in threads:
            thread.close()
        bell.close()
        store.close()


if __name__ == "__main__":
    sys.exit(main())
