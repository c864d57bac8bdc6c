"""Thousands of random requests to one engine, many of them cancelled, late or wrong."""

from __future__ import annotations

import random

import pytest
import torch
import transformers

from tessera.device.hardware import choose
from tessera.errors import TesseraError
from tessera.sequence.engine import SequenceEngine
from tessera.sequence.runner.build import build_runner
from tessera.settings.sequence import SequenceEngineSettings
from tessera.wire.engine import Embed, Embedded, Failed, Generate, GeneratedTokens, Ready, Sampling

VOCABULARY = 61
REQUESTS = 3000


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("soaked")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=96,
        initializer_range=0.4,
    )
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def random_message(dice: random.Random, number: int, stories: list[list[int]]) -> Generate | Embed:
    """Make a random request that begins as others do, or one that is refused."""
    story = dice.choice(stories)
    tokens = story[: dice.randint(1, len(story))] + [dice.randrange(VOCABULARY) for _ in range(dice.randint(0, 6))]
    if dice.random() < 0.02:
        tokens = dice.choice([[], [VOCABULARY], [1] * 97])
    common = {
        "request_id": str(number),
        "token_ids": tokens,
        "priority": dice.choice([0, 0, 0, 5]),
        "tenant": dice.choice("ab"),
        "cache_salt": dice.choice(["", "", "x"]),
        "deadline_s": dice.choice([None, None, None, None, 0.003, 5.0]),
    }
    if dice.random() < 0.1:
        return Embed(**common)
    sampling = Sampling(
        max_tokens=dice.randint(1, 12),
        temperature=dice.choice([0.0, 0.8]),
        top_p=dice.choice([1.0, 0.7]),
        seed=dice.randrange(100),
        stop_ids=[3, 4],
        repetition_penalty=dice.choice([1.0, 1.2]),
        prompt_logprobs=dice.choice([None, None, None, 1]),
    )
    return Generate(**common, sampling=sampling)


@pytest.mark.slow
@pytest.mark.parametrize("speculation", ["off", "ngram"])
def test_thousands_of_requests_leak_no_page_and_each_is_answered_to_its_end(directory, speculation):
    settings = SequenceEngineSettings(
        page_size=4, max_batch_tokens=24, max_running=8, max_waiting=40, speculation=speculation
    )
    page = 4 * 2 * 8 * 4  # slots, keys and values, head dimension, bytes
    runner = build_runner(
        directory, choose("cpu", threads=1), page_size=4, kv_cache_bytes=60 * page, host_cache_bytes=30 * page
    )
    assert (runner.pages, runner.host_pages) == (60, 30)
    engine = SequenceEngine(runner, settings, Ready(device="cpu", cards=[], directories=[], report={}))
    dice = random.Random(7)
    stories = [[dice.randrange(VOCABULARY) for _ in range(dice.randint(5, 60))] for _ in range(6)]
    running: set[str] = set()
    ended = refused = cancelled = made = 0
    while made < REQUESTS or engine.has_work():
        for _ in range(dice.randint(0, 4) if made < REQUESTS else 0):
            message = random_message(dice, made, stories)
            made += 1
            try:
                engine.submit(message)
                running.add(message.request_id)
            except TesseraError:
                refused += 1
        if running and dice.random() < 0.25:
            gone = dice.choice(sorted(running))
            running.discard(gone)
            engine.cancel(gone)
            cancelled += 1
        for answer in engine.step():
            assert isinstance(answer, GeneratedTokens | Embedded | Failed), answer
            assert answer.request_id in running, "an answer after the end"
            if not isinstance(answer, GeneratedTokens) or answer.finish_reason is not None:
                running.discard(answer.request_id)
                ended += 1
    assert running == set()
    assert ended + refused + cancelled == made
    assert min(refused, cancelled) > 20
    metrics = engine.metrics()
    assert metrics["preemptions_total"] > 0
    assert metrics["prefix_cache_hit_tokens_host_total"] > 0
    assert all(metrics[f"step_{stage}_seconds_total"] > 0 for stage in ("schedule", "forward", "sample"))
    engine.scheduler.check_integrity()
    assert engine.integrity_faults == 0
    assert engine.scheduler.cache.available == runner.pages
    assert (metrics["requests_running"], metrics["requests_waiting"]) == (0, 0)
