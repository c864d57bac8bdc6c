"""One key's crowd beside another key's few tokens, through the real gateway: the newcomer waits for a few steps.

How long that takes beside a newcomer that is alone is measured by `make bench ARGS=fairness`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import statistics
from collections.abc import Callable, Iterator

import openai
import pytest
from tests.e2e.conftest import KEYS, RunningSuite
from tests.waiting import until

MODEL = "smollm2-135m-instruct"
STREAMS, TOKENS = 60, 4000
ROUNDS = 7
MOST_TOKENS = 8
"""Tokens that each running stream of the crowd gets between a newcomer's request and its first token, in the median:
the step that runs, those that the gateway, the template and the tokenizer take, its prompt's, and those until the
client has read it. Without turns it would be the thousands that are left of them."""


ENVIRONMENT = {
    "TESSERA_GATEWAY__API_KEYS": ",".join(KEYS),
    "TESSERA_TEXT__ENGINE__THREADS": "2",
    "TESSERA_TEXT__MAX_OUTPUT_TOKENS": str(TOKENS),
}


def read_first_token(client: openai.OpenAI, number: int) -> None:
    """Ask for five tokens, for a prompt that no cache has, and return when there is one."""
    with client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"{number} times {number + 7}, please: what is it, and why so?"}],
        max_tokens=5,
        stream=True,
    ) as stream:
        assert any(chunk.choices and chunk.choices[0].delta.content for chunk in stream), "it says something"


@contextlib.contextmanager
def crowd(client: openai.OpenAI) -> Iterator[list[int]]:
    """Sixty streams of one key, each of four thousand tokens, until the block is left: the chunks that each got."""
    got = [0] * STREAMS
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
                got[number] += 1

    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        for number in range(STREAMS):
            pool.submit(stream, number)
        try:
            yield got
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
    meanwhile = []
    with crowd(greedy) as got:
        until(lambda: keyed_suite.metric("text", "tessera_text_engine_requests_running") >= 30, 120, what="the crowd")
        running = keyed_suite.metric("text", "tessera_text_engine_requests_running")
        for number in range(ROUNDS):
            before = sum(got)
            read_first_token(newcomer, number)
            meanwhile.append((sum(got) - before) / running)
        until(lambda: sum(got) > before + 2 * running, 60, what="the crowd to go on")
    print(f"\ntokens of each of {running:.0f} streams of another key until the first of a newcomer: {meanwhile}")
    assert statistics.median(meanwhile) <= MOST_TOKENS
    until(lambda: keyed_suite.metric("text", "tessera_text_engine_fair_preemptions_total") >= 1, what="a preemption")
