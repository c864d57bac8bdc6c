"""One key's crowd beside another key's few tokens, through the real gateway: the newcomer hardly notices the crowd."""

from __future__ import annotations

import concurrent.futures
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator

import openai
import pytest
from tests.e2e.conftest import KEYS, RunningSuite
from tests.waiting import until

MODEL = "smollm2-135m-instruct"
STREAMS, TOKENS = 60, 4000
ROUNDS = 7
MOST_TIMES = 3.0
"""A newcomer's first token takes at most so many times as long as alone, in the median: what the issue asks for."""


ENVIRONMENT = {
    "TESSERA_GATEWAY__API_KEYS": ",".join(KEYS),
    "TESSERA_TEXT__ENGINE__THREADS": "2",
    "TESSERA_TEXT__MAX_OUTPUT_TOKENS": str(TOKENS),
}


def time_to_first_token(client: openai.OpenAI, number: int) -> float:
    """Seconds until the first token of five, for a prompt that no cache has."""
    began = time.perf_counter()
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"{number} times {number + 7}, please: what is it, and why so?"}],
        max_tokens=5,
        stream=True,
    )
    first = 0.0
    for chunk in stream:
        if not first and chunk.choices and chunk.choices[0].delta.content:
            first = time.perf_counter() - began
    assert first, "it said something"
    return first


@contextlib.contextmanager
def crowd(client: openai.OpenAI) -> Iterator[None]:
    """Sixty streams of one key, each of four thousand tokens, until the block is left."""
    streams: list[openai.Stream[openai.types.chat.ChatCompletionChunk]] = []

    def stream(number: int) -> None:
        with contextlib.suppress(Exception):  # it is closed when the block is left
            made = client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"Tell story number {number}."}],
                max_tokens=TOKENS,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            streams.append(made)
            for _ in made:
                pass

    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        for number in range(STREAMS):
            pool.submit(stream, number)
        try:
            yield
        finally:
            for made in streams:
                made.close()
            client.close()


@pytest.mark.slow
def test_five_tokens_of_one_key_do_not_wait_for_sixty_streams_of_another(
    start_suite: Callable[..., RunningSuite],
) -> None:
    keyed_suite = start_suite(only="text,gateway", extra=ENVIRONMENT)
    newcomer, greedy = keyed_suite.sdk(KEYS[0]), keyed_suite.sdk(KEYS[1])
    for number in range(3):
        time_to_first_token(newcomer, number)
    alone = statistics.median(time_to_first_token(newcomer, 100 + number) for number in range(ROUNDS))
    with crowd(greedy):
        until(lambda: keyed_suite.metric("text", "tessera_text_engine_requests_running") >= 30, 120, what="the crowd")
        beside = [time_to_first_token(newcomer, 200 + number) for number in range(ROUNDS)]
    ratio = statistics.median(beside) / alone
    print(
        f"\nfirst token alone {alone * 1000:.0f} ms, beside {STREAMS} streams of another key "
        f"{statistics.median(beside) * 1000:.0f} ms (most {max(beside) * 1000:.0f} ms): {ratio:.2f} x"
    )
    assert ratio <= MOST_TIMES
    assert keyed_suite.metric("text", "tessera_text_engine_fair_preemptions_total") >= 1
