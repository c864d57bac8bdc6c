"""Delivers webhooks: an address of the client's choice is told that its job has ended, until it answers with success.

An event has OpenAI's form, an id and a type, and is signed after the Standard Webhooks specification
(https://www.standardwebhooks.com), so the SDK's `client.webhooks.unwrap` checks it. Redis has what is due, so a
delivery outlives processes; one that is under way when its process dies is made again. Does not know what a job made.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import time

import aiohttp
import msgspec

from tessera.errors import InvalidRequestError, UnavailableError
from tessera.jobs.store import AsyncJobStore
from tessera.settings.jobs import WebhookSettings
from tessera.web.outbound import PublicConnector, checked_url
from tessera.wire.jobs import Job

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""Seconds between two looks for deliveries that are due, when the last found none."""
MAX_DELIVERIES = 16
"""Deliveries that one process makes at once."""
CANCEL_S = 1.0
"""Seconds that a cancelled delivery has to end before it is cancelled again."""
FIRST_RETRY_S, RETRY_GROWTH = 5.0, 4.0
"""Seconds before the second attempt, and the factor by which each further wait is longer."""
PARAM = "webhook_url"


class WebhookEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a delivery."""

    id: str
    object: str = "event"
    created_at: int
    type: str
    data: dict[str, str]


def checked_webhook(url: str | None, settings: WebhookSettings) -> str | None:
    """`url`, if webhooks may be delivered to it.

    Raises:
        InvalidRequestError: there is no secret to sign with, or nothing may be sent to this address.
    """
    if url is None:
        return None
    if not settings.secret:
        raise InvalidRequestError(f"`{PARAM}` needs the operator to set webhooks.secret; poll instead", param=PARAM)
    return checked_url(url, allow_hosts=settings.allow_hosts, param=PARAM)


def event_of(job: Job) -> WebhookEvent:
    """The event of an ended job; the same at every attempt, so a receiver recognizes a repetition by its id."""
    assert job.ended_at is not None
    status = "completed" if job.status == "completed" else "failed"
    identity = hashlib.sha256(f"{job.id} {job.ended_at}".encode()).hexdigest()[:32]
    return WebhookEvent(
        id=f"evt_{identity}", created_at=int(job.ended_at), type=f"{job.kind}.{status}", data={"id": job.id}
    )


def signed(key: bytes, identity: str, body: bytes, *, at: int) -> dict[str, str]:
    """The headers of a delivery, with its signature.

    Args:
        key: the bytes that the configured secret stands for.
        identity: id of the event.
        body: the body of the delivery.
        at: time of the delivery in Unix seconds.
    """
    digest = hmac.digest(key, f"{identity}.{at}.".encode() + body, hashlib.sha256)
    return {
        "content-type": "application/json",
        "user-agent": "tessera-webhooks",
        "webhook-id": identity,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


class Webhooks:
    """Delivers what is due, until it is closed. Any number of them may run at once.

    Args:
        store: has the deliveries that are due.
        settings: secret, time limits and attempts of webhooks.
    """

    def __init__(self, store: AsyncJobStore, settings: WebhookSettings) -> None:
        self.store = store
        self.settings = settings
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    def start(self) -> None:
        """Begin to deliver, if there is a secret to sign with."""
        if self.settings.secret:
            self._task = asyncio.create_task(self._run(), name="webhooks")

    async def close(self) -> None:
        """Stop; a delivery that is under way is made again by another process."""
        self._closing = True
        while self._task is not None and not self._task.done():
            # Cancelled more than once: Redis' client may swallow a cancel in the middle of a command.
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CANCEL_S)

    async def _run(self) -> None:
        connector = PublicConnector(self.settings.allow_hosts)
        limit = aiohttp.ClientTimeout(total=self.settings.timeout_s)
        async with aiohttp.ClientSession(
            connector=connector, timeout=limit, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        ) as session:
            while not self._closing:
                try:
                    due = await self.store.webhooks_due(3 * self.settings.timeout_s, MAX_DELIVERIES)
                    await asyncio.gather(*(self._deliver(session, tries, job) for tries, job in due))
                except UnavailableError:
                    due = []
                except Exception:
                    logger.exception("a round of webhooks failed")
                    due = []
                if not due:
                    await asyncio.sleep(LOOK_EVERY_S)

    async def _deliver(self, session: aiohttp.ClientSession, tries: int, job: Job) -> None:
        assert job.webhook is not None
        event = event_of(job)
        body = msgspec.json.encode(event)
        headers = signed(self.settings.key, event.id, body, at=int(time.time()))
        try:
            # Checked again: settings may have changed since the job was made.
            url = checked_url(job.webhook, allow_hosts=self.settings.allow_hosts, param=PARAM)
            async with session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                result = f"HTTP {answer.status}"
                delivered = answer.ok and answer.status < 300
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            result, delivered = f"{type(error).__name__}: {error}"[:200], False
        except InvalidRequestError as error:
            result, delivered, tries = error.message, False, self.settings.attempts
        again_s = None
        if not delivered and tries < self.settings.attempts:
            again_s = FIRST_RETRY_S * RETRY_GROWTH ** (tries - 1)
        if not delivered:
            logger.warning("the webhook of %s was not delivered (attempt %d): %s", job.id, tries, result)
        await self.store.webhook_done(job.id, result, again_s=again_s)
