"""What a request asks for beside its text: a salt, a priority, a deadline; and fair shares between tenants."""

from __future__ import annotations

import concurrent.futures

import httpx
import openai
import pytest
from tests.waiting import until

MODEL = "tiny-text"
HELLO = [{"role": "user", "content": "Hello"}]


def waiting(service) -> float:
    page = httpx.get(f"{service.url}/metrics").text
    found = [line.split()[1] for line in page.splitlines() if line.startswith("tessera_text_engine_requests_waiting ")]
    return float(found[0]) if found else 0.0


def cached(client, text: str, **more) -> int:
    messages = [{"role": "user", "content": text}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=2, extra_body=more)
    return answer.usage.prompt_tokens_details.cached_tokens


def test_tokens_of_a_known_beginning_are_counted_as_cached_among_requests_of_one_salt(client):
    story = "Once upon a time there was a cache that remembered. " * 3
    assert cached(client, story) < 16  # the template begins alike everywhere
    assert cached(client, story + "What then?") >= len(story) - 32
    assert cached(client, story, cache_salt="mine") == 0
    assert cached(client, story, cache_salt="mine") >= len(story) - 32
    streamed = client.completions.create(
        model=MODEL, prompt=["user: " + story] * 2, max_tokens=1, extra_body={"cache_salt": "mine"}
    )
    assert streamed.usage.prompt_tokens_details.cached_tokens >= 2 * (len(story) - 32)


def test_a_request_whose_deadline_is_over_is_stopped(client):
    with pytest.raises(openai.APIStatusError, match="deadline") as caught:
        client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=4000, extra_body={"deadline_s": 0.05, "ignore_eos": True}
        )
    assert caught.value.status_code in {408, 504}
    assert client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1).choices


@pytest.mark.parametrize(
    ("field", "value"), [("priority", -1), ("priority", 101), ("deadline_s", 0), ("cache_salt", ""), ("priority", "1")]
)
def test_terms_out_of_range_are_refused_by_field(text, field, value):
    answer = httpx.post(f"{text.url}/v1/chat/completions", json={"model": MODEL, "messages": HELLO, field: value})
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]


def test_who_asks_less_is_served_before_who_asks_much(start_service, tiny_text_model):
    """One request at a time: while eight of the first tenant wait, one of the second is next."""
    settings = {"text__model": str(tiny_text_model), "text__engine__threads": "1", "text__engine__max_running": "1"}
    ended: list[str] = []
    with start_service("text", **settings) as service, concurrent.futures.ThreadPoolExecutor(16) as pool:

        def ask(tenant: str, tokens: int) -> None:
            body = {"model": MODEL, "messages": HELLO, "max_tokens": tokens, "ignore_eos": True}
            headers = {"x-tessera-tenant": tenant}
            httpx.post(f"{service.url}/v1/chat/completions", json=body, headers=headers, timeout=60).raise_for_status()
            ended.append(tenant)

        many = [pool.submit(ask, "much", 600) for _ in range(8)]
        until(lambda: waiting(service) >= 5)
        asked_at = len(ended)
        pool.submit(ask, "little", 20).result()
        served_before = ended.index("little") - asked_at
        for one in many:
            one.result()
    assert served_before <= 2
