"""Requests with the same `prompt_cache_key` go to the same upstream, as long as it has no much longer queue."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import httpx
import pytest

from tessera_gateway.affinity import by_affinity

KEYS = [f"conversation-{number}" for number in range(300)]


@dataclass
class Server:
    name: str
    in_flight: int = 0


def first(servers: list[Server], key: str) -> str:
    return by_affinity(servers, key)[0].name


def test_a_key_keeps_its_upstream_whatever_the_order_of_the_others():
    servers = [Server("a"), Server("b"), Server("c")]
    for key in KEYS:
        assert first(servers, key) == first(servers[::-1], key)
    assert min(Counter(first(servers, key) for key in KEYS).values()) > 60


def test_an_upstream_that_goes_moves_its_own_keys_and_no_others():
    servers = [Server("a"), Server("b"), Server("c")]
    for key in KEYS:
        if first(servers, key) != "b":
            assert first([servers[0], servers[2]], key) == first(servers, key)


def test_no_upstream_keeps_its_keys_when_it_has_much_more_to_do():
    servers = [Server("a"), Server("b"), Server("c")]
    for _ in range(90):
        chosen = by_affinity(servers, "the one key of all")[0]
        chosen.in_flight += 1
    loads = sorted(server.in_flight for server in servers)
    assert loads[-1] <= max(loads[0] + 4, 1.25 * 91 / 3 + 1)


def test_the_others_stay_in_their_order_and_nobody_is_lost():
    servers = [Server("a", 1), Server("b", 2), Server("c", 3)]
    for key in KEYS[:20]:
        chosen, *others = by_affinity(servers, key)
        assert others == [server for server in servers if server is not chosen]
    assert by_affinity(servers[:1], "k") == servers[:1]
    assert by_affinity([], "k") == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/responses", {"input": "hi", "store": False}),
    ],
)
def test_the_gateway_sends_a_key_to_one_upstream_and_keyless_requests_to_all(gateway, upstream, path, body):
    fakes = {name: upstream("m", name=name) for name in ("one", "two", "three")}
    running = gateway(*fakes.values())

    def sent_to(count: int = 6, **fields: str | None) -> Counter[str]:
        before = {name: len(fake.requests) for name, fake in fakes.items()}
        for _ in range(count):
            answer = httpx.post(running.url + path, json={"model": "m", **body, **fields})
            assert answer.status_code == 200, answer.text
        return Counter({name: len(fake.requests) - before[name] for name, fake in fakes.items()})

    used = {next(name for name, count in sent_to(prompt_cache_key=key).items() if count == 6) for key in KEYS[:5]}
    assert len(used) > 1
    sent_to(60)  # the least used upstream first, until all are even
    assert set(sent_to().values()) == {2}
    assert set(sent_to(prompt_cache_key=None).values()) == {2}


def test_a_key_of_an_upstream_that_is_away_is_answered_by_another(gateway, upstream):
    fakes = {name: upstream("m", name=name) for name in ("one", "two")}
    running = gateway(*fakes.values())
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "prompt_cache_key": "k"}
    ask = lambda: httpx.post(running.url + "/v1/chat/completions", json=body)  # noqa: E731
    assert ask().status_code == 200
    own = next(fake for fake in fakes.values() if fake.requests)
    own.stop()
    assert ask().status_code == 200
    assert json.loads(ask().content)


def test_a_key_that_is_no_text_is_refused_by_name(gateway, upstream):
    running = gateway(upstream("m"))
    answer = httpx.post(running.url + "/v1/chat/completions", json={"model": "m", "prompt_cache_key": 5})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt_cache_key")
