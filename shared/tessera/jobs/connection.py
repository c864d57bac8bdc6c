"""Access to Redis for the job stores: clients, timeouts, the scripts, and the error for a Redis that is down.

Does not know what the scripts do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from tessera.errors import JobStoreFullError, UnavailableError
from tessera.jobs import disk
from tessera.jobs.scripts import (
    admin as admin_scripts,
)
from tessera.jobs.scripts import (
    jobs as scripts,
)
from tessera.jobs.scripts import (
    webhooks as webhook_scripts,
)
from tessera.jobs.scripts import (
    workers as worker_scripts,
)

logger = logging.getLogger(__name__)

RING_PREFIX = "tessera:celery:"
"""Prefix of the lists in which Celery keeps rings."""
SCRIPTS = {
    scripts: ("CREATE", "GET", "EVENTS", "LIST", "CANCEL", "DELETE", "WORKERS"),
    worker_scripts: (
        *("CLAIM", "CLAIM_NEXT", "RENEW", "LOOK", "COMPLETE", "FAIL", "RELEASE"),
        *("REAP", "EXPIRE", "COUNTS", "REGISTER_WORKER", "REMOVE_WORKER"),
    ),
    webhook_scripts: ("WEBHOOKS_DUE", "WEBHOOK_DONE"),
    admin_scripts: ("RECORDS", "RECORD", "RETRY"),
}
REDIS_DOWN = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    OSError,
)
"""Exceptions of the client when Redis does not answer, or answers that it cannot work."""

REFUSAL_PREFIXES = (
    "DENIED",
    "MISCONF",
    "MASTERDOWN",
    "NOREPLICAS",
    "NOAUTH",
    "NOPERM",
    "WRONGPASS",
    "CLUSTERDOWN",
    "TRYAGAIN",
)
"""Beginnings of the errors with which a running Redis refuses to serve; work goes on when an operator has mended it."""


DOWN_RETRY_S = 2.0
"""Seconds after which a client may try again when Redis does not answer. A fixed time: a crash is mended by a restart
within a second or two, anything else by an operator, and nothing here tells the two apart."""


def connect(url: str, timeout_s: float) -> redis.Redis:
    """A client for threads. A pooled connection that a restarted server has closed is opened again once."""
    retry = Retry(NoBackoff(), 1, supported_errors=(redis.exceptions.ConnectionError,))
    return redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=retry)


def connect_async(url: str, timeout_s: float) -> redis.asyncio.Redis:
    """A client for an event loop, which reconnects as `connect` does."""
    retry = AsyncRetry(NoBackoff(), 1, supported_errors=(redis.exceptions.ConnectionError,))
    return redis.asyncio.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=retry)


def sources() -> dict[str, str]:
    """The source of every script by name, each with the functions that all share."""
    return {name: scripts.PRELUDE + getattr(module, name) for module, names in SCRIPTS.items() for name in names}


def microseconds(seconds: float) -> int:
    """Seconds as whole microseconds, the unit of the scripts."""
    return round(seconds * 1e6)


@contextmanager
def redis_errors_translated(disks: disk.JobDisks | None = None) -> Iterator[None]:
    """Turn errors of a Redis that is down, full, read-only or refuses to serve into `UnavailableError`.

    The log has the address; the client's message does not. With `disks` it says whether the disk is the reason.
    """
    try:
        yield
    except REDIS_DOWN as error:
        raise _down(error, disks) from error
    except redis.exceptions.ResponseError as error:
        if not str(error).startswith(REFUSAL_PREFIXES):
            raise
        raise _down(error, disks) from error


def _down(error: Exception, disks: disk.JobDisks | None) -> UnavailableError:
    if disks is not None and (reason := disks.reason()):
        logger.error("%s: %s", reason.message, error)
        return reason
    if str(error).startswith("MISCONF"):
        # Redis says so for its append-only file and for its snapshots; both are on its disk.
        logger.error("the job store cannot write: %s", error)
        return JobStoreFullError(
            "the disk of the job store (Redis) is full, so nothing can be recorded; jobs can still be read. The "
            "operator frees some space in suite.data",
            retry_after=disk.RETRY_S,
        )
    logger.warning("the job store does not answer: %s", error)
    return UnavailableError("the job store (Redis) does not answer; try again in a moment", retry_after=DOWN_RETRY_S)
