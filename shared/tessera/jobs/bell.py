"""Celery as the bell: it carries job ids to workers, and nothing depends on a ring arriving exactly once, or at all.

The reaper repeats a lost ring, and a doubled one finds the job taken. So nothing is kept in a result backend, and
Celery's remote control and events are off. Does not know what a job is.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import celery
import redis
from celery.exceptions import Reject
from kombu.exceptions import OperationalError

from tessera.errors import UnavailableError
from tessera.jobs.connection import DOWN_RETRY_S, RING_PREFIX
from tessera.settings.tree import Settings

logger = logging.getLogger(__name__)

TASK = "tessera.job"
VISIBILITY_TIMEOUT_S = 12 * 3600
"""Seconds until kombu's Redis transport gives an unacknowledged ring to another worker. Long, because the job's own
lease notices a worker that died."""


class Bell(Protocol):
    """Tells some worker of a queue that a job waits."""

    def ring(self, job_id: str, queue: str) -> None:
        """Ring once. Blocks for a few seconds at most.

        Raises:
            UnavailableError: the ring was not delivered; the reaper will ring again.
        """
        ...


def make_app(settings: Settings) -> celery.Celery:
    """A Celery app over the suite's Redis, with the same settings for the side that rings and the side that listens."""
    timeout = settings.redis.timeout_s
    transport: dict[str, Any] = {
        "visibility_timeout": VISIBILITY_TIMEOUT_S,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "socket_keepalive": True,
        "retry_on_timeout": False,
        "health_check_interval": 10,
        "global_keyprefix": RING_PREFIX,
    }
    for chatty in ("celery.app.trace", "celery.worker.strategy"):  # the runner says what becomes of each ring
        logging.getLogger(chatty).setLevel(logging.WARNING)
    app = celery.Celery("tessera", broker=broker_url(settings.redis_url), set_as_current=False)
    app.conf.update(
        broker_transport_options=transport,
        result_backend_transport_options=transport,
        visibility_timeout=VISIBILITY_TIMEOUT_S,
        broker_connection_timeout=timeout,
        broker_use_ssl={"ssl_cert_reqs": ssl.CERT_REQUIRED} if settings.redis_url.startswith("rediss://") else None,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
    )
    return app


def broker_url(url: str) -> str:
    """A Redis address in kombu's notation, where a Unix socket is `redis+socket://` and its `db` a `virtual_host`."""
    if not url.startswith("unix://"):
        return url
    parts = urlsplit(url)
    database = dict(parse_qsl(parts.query)).get("db")
    return f"redis+socket://{parts.netloc}{parts.path}" + (f"?virtual_host={database}" if database else "")


def listen(app: celery.Celery, run: Callable[[str], Sequence[object]]) -> None:
    """Call `run(job_id)` for every ring that this process receives. A result that ends in `draining` requeues the
    ring."""

    def job(job_id: str) -> None:
        if "draining" in run(job_id)[-1:]:
            raise Reject("this worker is to end", requeue=True)

    app.task(job, name=TASK, shared=False)


class CeleryBell:
    """Rings over Celery."""

    def __init__(self, app: celery.Celery) -> None:
        self._app = app

    def ring(self, job_id: str, queue: str) -> None:
        """Implement `Bell.ring`."""
        try:
            self._app.send_task(TASK, args=[job_id], queue=queue, ignore_result=True, retry=False)
        except (OperationalError, redis.exceptions.RedisError, OSError) as error:
            logger.warning("the queue does not answer: %s", error)
            raise UnavailableError(
                "the queue (Redis) does not answer; try again in a moment", retry_after=DOWN_RETRY_S
            ) from error

    def close(self) -> None:
        """Close the connections to Redis."""
        self._app.close()


def make_bell(settings: Settings) -> CeleryBell:
    """The bell over the Redis of these settings."""
    return CeleryBell(make_app(settings))
