"""Encoders through the gateway of a suite that `tessera up` started: every route, by name and by a hosted name."""

from __future__ import annotations

import httpx
import pytest
from tests.services.text.encoder_directories import make_all, settings_of

pytestmark = pytest.mark.slow


def test_a_suite_with_encoders_serves_all_their_routes_through_the_gateway(start_suite, tmp_path) -> None:
    paths = make_all(tmp_path / "encoders")
    running = start_suite(
        only="gateway,text",
        extra={"TESSERA_TEXT__ENCODERS": settings_of(paths), "TESSERA_TEXT__ENCODER_ENGINE__THREADS": "1"},
    )
    for name in paths:
        assert name in running.said()
    sdk = running.sdk()
    listed = {model.id for model in sdk.models.list().data}
    assert listed >= {*paths, "smollm2-135m-instruct"}

    own = sdk.embeddings.create(model="bi", input=["red cat", "river"])
    hosted = sdk.embeddings.create(model="text-embedding-3-small", input=["red cat", "river"])
    assert [one.embedding for one in own.data] == [one.embedding for one in hosted.data]
    assert len(own.data[0].embedding) == 32

    judged = sdk.moderations.create(input="red cat")
    assert set(judged.results[0].category_scores.to_dict()) >= {"harassment", "violence"}

    def ask(path: str, **body: object) -> dict:
        answer = httpx.post(f"{running.base_url}{path}", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    ranked = ask("/v2/rerank", model="rerank-v3.5", query="red", documents=["red cat", "river", "dog"], top_n=2)
    assert len(ranked["results"]) == 2
    assert ranked["results"][0]["relevance_score"] >= ranked["results"][1]["relevance_score"]
    assert len(ask("/score", model="cross", text_1="red", text_2=["cat", "dog"])["data"]) == 2
    assert ask("/classify", model="moods", input="red")["data"][0]["num_classes"] == 3
    assert len(ask("/v2/embed", model="bi", texts=["red"], input_type="search_query")["embeddings"]["float"]) == 1
    refused = httpx.post(f"{running.base_url}/v1/chat/completions", json={"model": "bi", "messages": []})
    assert refused.json()["error"]["code"] == "model_not_capable"
