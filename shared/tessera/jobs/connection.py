"""How the job stores reach Redis: addresses, timeouts, the scripts, and what a Redis that is down becomes.

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

from tessera.errors import UnavailableError
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
"""Before the name of each list in which Celery keeps rings."""
SCRIPTS = {
    scripts: ("CREATE", "GET", "EVENTS", "LIST", "CANCEL", "DELETE", "WORKERS"),
    worker_scripts: (
        *("CLAIM", "CLAIM_NEXT", "RENEW", "LOOK", "COMPLETE", "FAIL", "RELEASE"),
        *("REAP", "EXPIRE", "COUNTS", "REGISTER_WORKER", "REMOVE_WORKER"),
    ),
    webhook_scripts: ("WEBHOOKS_DUE", "WEBHOOK_DONE"),
    admin_scripts: ("RECORDS", "RECORD", "RETRY"),
}
DOWN = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    OSError,
)
"""What the client raises when a Redis does not answer, or answers that it cannot work."""


REFUSALS = ("DENIED", "MISCONF", "MASTERDOWN", "NOREPLICAS", "NOAUTH", "NOPERM", "WRONGPASS", "CLUSTERDOWN", "TRYAGAIN")
"""How answers begin with which a Redis that is there does not serve now: an operator mends it, and work goes on."""


def connect(url: str, timeout_s: float) -> redis.Redis:
    """A client for threads. A pooled connection that a restarted server has closed is opened again, once."""
    retry = Retry(NoBackoff(), 1, supported_errors=(redis.exceptions.ConnectionError,))
    return redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=retry)


def connect_async(url: str, timeout_s: float) -> redis.asyncio.Redis:
    """A client for an event loop; see `connect`."""
    retry = AsyncRetry(NoBackoff(), 1, supported_errors=(redis.exceptions.ConnectionError,))
    return redis.asyncio.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=retry)


def sources() -> dict[str, str]:
    """All scripts by name."""
    return {name: scripts.PRELUDE + getattr(module, name) for module, names in SCRIPTS.items() for name in names}


def microseconds(seconds: float) -> int:
    """A time span as the scripts take it."""
    return round(seconds * 1e6)


@contextmanager
def answering() -> Iterator[None]:
    """Around a command: a Redis that is down, full, read-only or refuses to serve becomes an `UnavailableError`.

    The address is for the log, not for clients.
    """
    try:
        yield
    except DOWN as error:
        raise _down(error) from error
    except redis.exceptions.ResponseError as error:
        if not str(error).startswith(REFUSALS):
            raise
        raise _down(error) from error


def _down(error: Exception) -> UnavailableError:
    logger.warning("the job store does not answer: %s", error)
    return UnavailableError("the job store (Redis) does not answer; try again in a moment", retry_after=2)
