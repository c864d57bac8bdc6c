"""Webhooks over a real Redis and a real receiver, checked by OpenAI's own SDK; and where nothing may be sent."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp.abc
import msgspec
import openai
import pytest
from aiohttp import web

from tessera.errors import InvalidRequestError, SettingsError
from tessera.jobs.records import Lease
from tessera.jobs.store import AsyncJobStore
from tessera.jobs.webhooks import Webhooks, checked_webhook
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.jobs import JobSettings, WebhookSettings
from tessera.settings.load import load
from tessera.web.outbound import PublicResolver, checked_url
from tessera.wire.jobs import Job, JobError

SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()
SETTINGS = WebhookSettings(secret=SECRET, allow_hosts=["127.0.0.1"], attempts=3, timeout_s=2)
JOBS = JobSettings()


class Receiver:
    """Remembers what it is sent, and answers as told."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.heard: list[tuple[dict[str, str], bytes]] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.heard.append((dict(request.headers), await request.read()))
        status = self.answers.pop(0) if self.answers else 200
        return web.Response(status=status, headers={"location": "/elsewhere"} if status == 302 else {})


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 - what is waited for is in Redis
            await asyncio.sleep(0.02)


async def _told(url: str, receiver: Receiver, *, ends: Callable[[WorkerStore, Lease], Any], deliverers: int = 1) -> Job:
    """Have a job with a webhook end, deliver, and look at the record when it is settled."""
    app = web.Application()
    app.router.add_post("/{any:.*}", receiver.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    store = AsyncJobStore(url, timeout_s=2, settings=JOBS)
    worker = WorkerStore(url, timeout_s=2, settings=JOBS)
    hooks = [Webhooks(store, SETTINGS) for _ in range(deliverers)]
    try:
        hook = checked_webhook(f"http://127.0.0.1:{port}/hook", SETTINGS)
        await store.create("a", kind="video", owner="me", queue="q", job_input=msgspec.Struct(), webhook=hook)
        lease = await asyncio.to_thread(worker.claim, "a", worker="w")
        assert isinstance(lease, Lease)
        for one in hooks:
            one.start()
        await asyncio.to_thread(ends, worker, lease)

        async def settled() -> bool:
            # Waits are long; what is not due yet is made due.
            for member in await store._redis.zrange("tessera:jobs:webhooks", 0, -1):
                if (await store.get("a", kind="video", owner="me")).webhook_result is not None:
                    await store._redis.zadd("tessera:jobs:webhooks", {member: 1}, xx=True)
            job = await store.get("a", kind="video", owner="me")
            return job.webhook_result is not None and not await store._redis.zcard("tessera:jobs:webhooks")

        await _until(settled)
        return await store.get("a", kind="video", owner="me")
    finally:
        for one in hooks:
            await one.close()
        await store.close()
        worker.close()
        await runner.cleanup()


def _complete(worker: WorkerStore, lease: Lease) -> None:
    worker.complete(lease, {})


def _fail(worker: WorkerStore, lease: Lease) -> None:
    worker.fail(lease, JobError(code="internal_error", message="x"), again=False)


@pytest.mark.parametrize(("ends", "kind"), [(_complete, "video.completed"), (_fail, "video.failed")])
def test_the_end_of_a_job_is_told_as_openais_sdk_checks_it(redis_server: Any, ends: Any, kind: str) -> None:
    receiver = Receiver()
    job = asyncio.run(_told(redis_server.url, receiver, ends=ends))
    ((headers, body),) = receiver.heard
    client = openai.OpenAI(api_key="none", webhook_secret=SECRET)
    event = client.webhooks.unwrap(body, headers)
    assert (event.type, event.data.id, event.object) == (kind, "a", "event")  # type: ignore[union-attr, comparison-overlap]
    assert headers["webhook-id"] == event.id
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body + b" ", headers)
    assert job.webhook_result == "HTTP 200"


@pytest.mark.slow
def test_what_is_not_heard_is_told_again_with_the_same_id(redis_server: Any) -> None:
    receiver = Receiver(500, 302)
    job = asyncio.run(_told(redis_server.url, receiver, ends=_complete))
    assert job.webhook_result == "HTTP 200"
    assert len(receiver.heard) == 3, "a redirect is not followed, and is no answer"
    assert len({headers["webhook-id"] for headers, _ in receiver.heard}) == 1


@pytest.mark.slow
def test_after_so_many_tries_it_is_given_up_and_the_record_says_so(redis_server: Any) -> None:
    receiver = Receiver(*[503] * 10)
    job = asyncio.run(_told(redis_server.url, receiver, ends=_complete))
    assert len(receiver.heard) == SETTINGS.attempts
    assert job.webhook_result == "HTTP 503"
    assert job.status == "completed"


def test_closing_ends_though_a_cancel_is_not_heard() -> None:
    class Deaf:
        """A store whose command swallows a cancel, as Redis' client may."""

        def __init__(self) -> None:
            self.swallowed = 0
            self.begun = asyncio.Event()

        async def webhooks_due(self, *_: Any) -> list[Any]:
            self.begun.set()
            try:
                await asyncio.sleep(60)  # a command that does not end; a cancel ends it early
            except asyncio.CancelledError:
                self.swallowed += 1
            return []

    async def close() -> int:
        store = Deaf()
        hooks = Webhooks(store, SETTINGS)  # type: ignore[arg-type]
        hooks.start()
        await store.begun.wait()
        async with asyncio.timeout(10):
            await hooks.close()
        return store.swallowed

    assert asyncio.run(close()) == 1


def test_many_deliverers_tell_it_once(redis_server: Any) -> None:
    receiver = Receiver()
    asyncio.run(_told(redis_server.url, receiver, ends=_complete, deliverers=4))
    assert len(receiver.heard) == 1


def test_a_deliverer_that_dies_under_way_leaves_it_to_another(redis_server: Any) -> None:
    async def scenario() -> tuple[int, int]:
        store = AsyncJobStore(redis_server.url, timeout_s=2, settings=JOBS)
        worker = WorkerStore(redis_server.url, timeout_s=2, settings=JOBS)
        await store.create("a", kind="video", owner="me", queue="q", job_input=msgspec.Struct(), webhook="https://x.io")
        lease = worker.claim("a", worker="w")
        assert isinstance(lease, Lease)
        worker.complete(lease, {})
        ((first, _),) = await store.webhooks_due(0.2, 10)
        assert not await store.webhooks_due(0.2, 10), "it is left alone meanwhile"
        while not (due := await store.webhooks_due(0.2, 10)):  # noqa: ASYNC110 - due by Redis' clock
            await asyncio.sleep(0.02)
        ((second, _),) = due
        await store.close()
        worker.close()
        return first, second

    assert asyncio.run(scenario()) == (1, 2)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/x",
        "https://127.0.0.1/x",
        "https://10.0.0.8/x",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/x",
        "https://[::ffff:10.0.0.1]/x",
        "https://[fe80::1%25eth0]/x",
        "https://[64:ff9b::a00:1]/x",
        "https://[2002:a00:1::1]/x",
        "https://2130706433/x",
        "https://0x7f.1/x",
        "https://127.1/x",
        "https://localhost/x",
        "https://redis/x",
        "https://api.internal/x",
        "https://user:word@example.com/x",
        "ftp://example.com/x",
        "https:///x",
        "https://example.com:99999/x",
        "https://exa mple.com/x",
        "https://example.com/" + "x" * 3000,
        "javascript:alert(1)",
        "",
    ],
)
def test_nothing_is_sent_inside_or_in_the_clear(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="webhook_url"):
        checked_url(url, allow_hosts=["allowed"], param="webhook_url")


def test_public_https_and_what_the_operator_allows_pass() -> None:
    for url in ("https://example.com/hook?a=b", "https://1.1.1.1:8443/x", "http://allowed:8000/x"):
        assert checked_url(url, allow_hosts=["allowed"], param="webhook_url") == url


def test_a_name_that_turns_out_to_be_private_is_not_connected_to() -> None:
    def found(host: str) -> aiohttp.abc.ResolveResult:
        return aiohttp.abc.ResolveResult(hostname="h", host=host, port=443, family=2, proto=0, flags=0)

    class Rebound:
        async def resolve(self, *_: Any) -> list[aiohttp.abc.ResolveResult]:
            return [found("10.0.0.1"), found("93.184.216.34"), found("::1")]

    async def resolve(host: str) -> list[str]:
        resolver = PublicResolver(["inside"])
        resolver._resolver = Rebound()  # type: ignore[assignment]
        return [one["host"] for one in await resolver.resolve(host, 443)]

    assert asyncio.run(resolve("example.com")) == ["93.184.216.34"]
    assert len(asyncio.run(resolve("inside"))) == 3


def test_without_a_secret_a_webhook_is_refused_by_name() -> None:
    assert checked_webhook(None, WebhookSettings()) is None
    with pytest.raises(InvalidRequestError, match=r"webhooks\.secret"):
        checked_webhook("https://example.com/x", WebhookSettings())


@pytest.mark.parametrize("secret", ["word", "whsec_", "whsec_not base64!", "whsec_abc"])
def test_a_secret_that_no_receiver_could_check_is_refused_at_the_start_and_not_shown(secret: str) -> None:
    with pytest.raises(SettingsError, match=r"webhooks\.secret") as refused:
        load(environment={}, overrides={"webhooks": {"secret": secret}})
    assert secret == "whsec_" or secret not in refused.value.message.replace("`whsec_`", "")
