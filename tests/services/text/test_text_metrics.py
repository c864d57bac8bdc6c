"""What generation takes is told to Prometheus, under the names that the field uses."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.waiting import until

MODEL = "tiny-text"
BODY = {"model": MODEL, "prompt": "abcdef", "temperature": 0, "ignore_eos": True}


README = Path(__file__).parents[3] / "services" / "README.md"
ENGINE = "tessera_text_engine_"


def values(text) -> dict[str, float]:
    page = httpx.get(f"{text.url}/metrics").text
    return {
        sample.name + ("_" + sample.labels["reason"] if "reason" in sample.labels else ""): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.labels.get("model") == MODEL and "le" not in sample.labels
    }


def difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0) for name, value in after.items() if not name.endswith("_created")}


def test_every_sequence_is_timed_and_every_token_counted(text):
    before = values(text)
    httpx.post(f"{text.url}/v1/completions", json=BODY | {"max_tokens": 20, "n": 2}).raise_for_status()
    found = difference(before, values(text))
    assert found["tessera_time_to_first_token_seconds_count"] == 2
    assert found["tessera_inter_token_latency_seconds_count"] == 2 * 19
    assert found["tessera_e2e_request_latency_seconds_count"] == 2
    assert found["tessera_request_prompt_tokens_sum"] == 2 * len("abcdef")
    assert found["tessera_request_generation_tokens_sum"] == 2 * 20
    assert found["tessera_requests_ended_total_length"] == 2
    parts = found["tessera_time_to_first_token_seconds_sum"] + found["tessera_inter_token_latency_seconds_sum"]
    assert parts == pytest.approx(found["tessera_e2e_request_latency_seconds_sum"], rel=0.2)


def test_a_sequence_that_nobody_waits_for_is_counted_as_unfinished(text):
    before = values(text)
    with contextlib.suppress(httpx.ReadTimeout):
        httpx.post(f"{text.url}/v1/completions", json=BODY | {"max_tokens": 4000}, timeout=0.3)
    until(lambda: difference(before, values(text)).get("tessera_requests_ended_total_unfinished"))
    found = difference(before, values(text))
    assert found.get("tessera_e2e_request_latency_seconds_count", 0) == 0


def test_the_engine_tells_what_is_written_down_and_what_only_grows_is_a_counter(text):
    httpx.post(f"{text.url}/v1/completions", json=BODY | {"max_tokens": 4}).raise_for_status()
    families = list(text_string_to_metric_families(httpx.get(f"{text.url}/metrics").text))
    found = {
        sample.name.removeprefix(ENGINE): (family.type, sample.value)
        for family in families
        for sample in family.samples
        if sample.name.startswith(ENGINE) and not sample.name.startswith(f"{ENGINE}start_")
    }
    table = README.read_text().split("## What `/metrics` tells")[1].split("\n## ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    written = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert written == set(found)
    for name, (kind, value) in found.items():
        assert kind == ("counter" if name.endswith("_total") else "gauge"), name
        assert value >= 0, name
    assert all(found[name][1] > 0 for name in ("steps_total", "sampled_tokens_total", "step_forward_seconds_total"))
    assert 0 <= found["kv_cache_usage_ratio"][1] <= 1
