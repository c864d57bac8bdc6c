"""`python -m tessera_gateway.worker`: a process that makes the responses of `background: true`.

It asks upstreams exactly as the gateway does, so every model that the gateway has can be asked, and it has no model of
its own and no torch. Any number may run. SIGTERM ends it at once: its jobs go back to the queue.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from tessera.errors import TesseraError
from tessera.jobs.artifacts.selection import make_artifact_store
from tessera.jobs.bell import CeleryBell, make_app
from tessera.jobs.records import WorkerInfo
from tessera.jobs.worker.process import serve_jobs
from tessera.jobs.worker.runner import JobRunner
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.load import load
from tessera.settings.tree import Settings
from tessera.telemetry import configure_logging
from tessera.wire.models import Card
from tessera_gateway.aliases import Aliases
from tessera_gateway.configured import configured
from tessera_gateway.metrics import GatewayMetrics
from tessera_gateway.proxy import Proxy
from tessera_gateway.responses.background import QUEUE
from tessera_gateway.responses.forwarding import Forward, forwarding
from tessera_gateway.responses.opening import response_store
from tessera_gateway.responses.response_jobs import ResponseJobs
from tessera_gateway.sessions import upstream_session
from tessera_gateway.translated.translator import Translator
from tessera_gateway.upstreams import Upstreams

logger = logging.getLogger(__name__)


def main() -> int:
    """Register, work until a signal. Returns the exit status."""
    settings = load()
    configure_logging("response-worker", level=settings.suite.log_level, form=settings.suite.log_format)
    try:
        return work(settings)
    except TesseraError as error:
        logger.error("the response worker cannot start: %s", error.message)
        return 1


def work(settings: Settings) -> int:
    """Work on jobs until a signal. Returns Celery's exit status.

    Raises:
        TesseraError: an upstream of the settings is not valid.
    """
    jobs = WorkerStore(settings.redis_url, timeout_s=settings.redis.timeout_s, settings=settings.jobs)
    artifacts = make_artifact_store(settings)
    app = make_app(settings)
    bell = CeleryBell(app)
    worker_id = f"response-{uuid.uuid4().hex[:12]}"
    with _loop() as loop, _upstreams(settings, loop) as forward:
        responses = response_store(settings)
        handler = ResponseJobs(loop, responses, artifacts, forward, max_attempts=settings.jobs.max_attempts)
        slots = settings.gateway.concurrent_responses
        runner = JobRunner(jobs, artifacts, bell, {"response": handler}, worker=worker_id, queue=QUEUE, slots=slots)
        card = Card(
            id="responses", family="upstreams", tasks=["chat"], source="gateway.upstreams", parameters=0, licence="none"
        )
        info = WorkerInfo(
            id=worker_id, kind="response", queue=QUEUE, card=card, device="none", pid=os.getpid(), slots=slots
        )
        try:
            return serve_jobs(app, runner, info)
        finally:
            bell.close()
            jobs.close()
            asyncio.run_coroutine_threadsafe(responses.close(), loop).result()


@contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="upstreams", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@contextmanager
def _upstreams(settings: Settings, loop: asyncio.AbstractEventLoop) -> Iterator[Forward]:
    """The way to the upstreams, which are polled meanwhile."""
    metrics = GatewayMetrics(CollectorRegistry())
    upstreams = Upstreams(
        configured(settings),
        metrics,
        aliases=Aliases(settings.gateway.aliases),
        timeout_s=settings.gateway.connect_timeout_s,
    )
    closing = asyncio.Event()
    opened: asyncio.Future[Forward] = loop.create_future()

    async def serve() -> None:
        async with upstream_session() as session, upstreams.polling(session):
            proxy = Proxy(
                upstreams,
                session,
                metrics,
                connect_timeout_s=settings.gateway.connect_timeout_s,
                idle_timeout_s=settings.gateway.idle_timeout_s,
            )
            opened.set_result(forwarding(Translator(proxy)))
            await closing.wait()

    async def result() -> Forward:
        return await opened

    serving = asyncio.run_coroutine_threadsafe(serve(), loop)
    try:
        yield asyncio.run_coroutine_threadsafe(result(), loop).result()
    finally:
        loop.call_soon_threadsafe(closing.set)
        serving.result()


if __name__ == "__main__":
    sys.exit(main())
