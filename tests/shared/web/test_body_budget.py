"""The bodies of all requests together hold no more memory than the budget; what goes over it is refused for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from litestar import post
from litestar.concurrency import sync_to_thread
from prometheus_client import CollectorRegistry
from tests.shared.web.served import served
from tests.waiting import until

from tessera.errors import OverloadedError
from tessera.settings.http import HttpSettings
from tessera.web.app import build_app
from tessera.web.bodies.budget import BodyBudget, HeldBody
from tessera.web.dependencies import HTTPRequest
from tessera.web.uploads import arriving

LIMIT = 1_000_000


class Holding:
    """An app whose route holds bodies until it is told to answer."""

    def __init__(self) -> None:
        self.holds = 0
        self.go_on = threading.Event()
        self.registry = CollectorRegistry()

        @post("/v1/hold", status_code=200)
        async def hold(request: HTTPRequest) -> dict[str, int]:
            body = await request.body()
            self.holds += 1
            await sync_to_thread(self.go_on.wait, 20)
            return {"bytes": len(body)}

        @post("/v1/stream", status_code=200)
        async def stream(request: HTTPRequest) -> dict[str, int]:
            return {"bytes": sum([len(piece) async for piece in arriving(request)])}

        async def ready() -> dict[str, str]:
            return {}

        self.app = build_app(
            "test",
            [hold, stream],
            ready=ready,
            registry=self.registry,
            description="",
            http=HttpSettings(body_memory_bytes=LIMIT),
            max_body_bytes=100 * LIMIT,
        )

    @property
    def used(self) -> float:
        return self.registry.get_sample_value("tessera_http_body_memory_bytes") or 0.0


@pytest.fixture
def holding() -> Iterator[tuple[Holding, str]]:
    app = Holding()
    with served(app.app) as port:
        try:
            yield app, f"http://127.0.0.1:{port}/v1"
        finally:
            app.go_on.set()


def test_a_body_over_the_budget_is_answered_429_until_others_have_ended(holding: tuple[Holding, str]) -> None:
    app, url = holding
    with ThreadPoolExecutor() as clients:
        first = clients.submit(httpx.post, f"{url}/hold", content=b"x" * 700_000, timeout=30)
        until(lambda: app.holds == 1, what="the first body to be held")
        assert app.used == 700_000
        refused = httpx.post(f"{url}/hold", content=b"x" * 400_000)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "overloaded"
        assert "http.body_memory_bytes" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) >= 1
        small = clients.submit(httpx.post, f"{url}/hold", content=b"x" * 1000, timeout=30)
        until(lambda: app.holds == 2, what="a body within the budget to be held")
        app.go_on.set()
        assert [one.result().status_code for one in (first, small)] == [200, 200]
    until(lambda: app.used == 0, what="the memory to be given back")
    assert httpx.post(f"{url}/hold", content=b"x" * 400_000).status_code == 200


def test_a_body_larger_than_the_budget_passes_alone(holding: tuple[Holding, str]) -> None:
    app, url = holding
    app.go_on.set()
    assert httpx.post(f"{url}/hold", content=b"x" * 3 * LIMIT).json() == {"bytes": 3 * LIMIT}


def test_what_is_put_away_as_it_arrives_does_not_count(holding: tuple[Holding, str]) -> None:
    app, url = holding
    with ThreadPoolExecutor() as clients:
        held = clients.submit(httpx.post, f"{url}/hold", content=b"x" * 500_000, timeout=30)
        until(lambda: app.holds == 1, what="a body to be held")
        assert httpx.post(f"{url}/stream", content=b"x" * 20 * LIMIT, timeout=60).json() == {"bytes": 20 * LIMIT}
        assert app.used == 500_000
        app.go_on.set()
        held.result()


def test_a_client_that_leaves_gives_its_memory_back(holding: tuple[Holding, str]) -> None:
    app, url = holding
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/hold", content=b"x" * 500_000, timeout=0.5)
    app.go_on.set()
    until(lambda: app.used == 0, what="the memory to be given back")


def test_the_wait_that_is_told_is_the_time_for_which_bodies_are_held() -> None:
    budget = BodyBudget(LIMIT, CollectorRegistry())

    async def never() -> Any:
        raise AssertionError

    first = HeldBody(budget, never)
    first._take(LIMIT)
    for _ in range(40):
        budget.used += 100_000
        budget.end(100_000, 12.0)
    with pytest.raises(OverloadedError, match="bodies in flight hold") as refused:
        HeldBody(budget, never)._take(1)
    assert refused.value.retry_after == pytest.approx(12.0, rel=0.05)
