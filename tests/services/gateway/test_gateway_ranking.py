"""The gateway's routes of encoders: by task and by name, with the path that the upstream knows."""

from __future__ import annotations

import json

import httpx
import pytest

from tessera.settings.gateway import WELL_KNOWN


@pytest.mark.parametrize(
    ("path", "sent", "task", "body"),
    [
        ("/v1/rerank", "/v1/rerank", "rerank", {"query": "a", "documents": ["b"]}),
        ("/v2/rerank", "/v2/rerank", "rerank", {"query": "a", "documents": ["b"]}),
        ("/rerank", "/rerank", "rerank", {"query": "a", "documents": ["b"]}),
        ("/score", "/score", "score", {"text_1": "a", "text_2": "b"}),
        ("/v1/score", "/score", "score", {"text_1": "a", "text_2": "b"}),
        ("/classify", "/classify", "classify", {"input": "a"}),
        ("/v1/classify", "/classify", "classify", {"input": "a"}),
        ("/v1/moderations", "/v1/moderations", "moderations", {"input": "a"}),
        ("/v2/embed", "/v2/embed", "embeddings", {"texts": ["a"]}),
        ("/v1/embeddings", "/v1/embeddings", "embeddings", {"input": "a"}),
    ],
)
def test_a_route_goes_to_the_model_that_does_its_task(upstream, gateway, model, path, sent, task, body) -> None:
    able, other = upstream(model("able", task), name="able"), upstream(model("other", "chat"), name="other")
    running = gateway(other, able)
    assert httpx.post(running.url + path, json={"model": "able", **body}).json() == {"from": "able"}
    (path_sent, _, data), *_ = able.requests
    assert (path_sent, json.loads(data)) == (sent, {"model": "able", **body})
    refused = httpx.post(running.url + path, json={"model": "other", **body})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "model_not_capable")
    assert f"for {task} there is: able" in refused.json()["error"]["message"]


def test_moderations_need_no_model(upstream, gateway, model) -> None:
    guard = upstream(model("guard", "classify", "moderations"), name="guard")
    running = gateway(upstream("elsewhere", name="elsewhere"), guard, aliases=dict(WELL_KNOWN))
    assert httpx.post(f"{running.url}/v1/moderations", json={"input": "a"}).json() == {"from": "guard"}
    for name in ("omni-moderation-latest", "guard"):
        answer = httpx.post(f"{running.url}/v1/moderations", json={"input": "a", "model": name})
        assert answer.json() == {"from": "guard"}


def test_without_a_classifier_moderations_say_what_to_configure(upstream, gateway, model) -> None:
    running = gateway(upstream(model("chat", "chat")))
    answer = httpx.post(f"{running.url}/v1/moderations", json={"input": "a"})
    assert answer.status_code == 404
    assert 'role = "moderation"' in answer.json()["error"]["message"]


def test_hosted_names_of_embeddings_and_rerankers_stand_for_encoders(upstream, gateway, model) -> None:
    chat = upstream(model("chat", "chat", "embeddings"), name="chat")
    encoders = upstream(model("bi", "embeddings", "score"), model("cross", "rerank", "score"), name="encoders")
    running = gateway(chat, encoders, aliases=dict(WELL_KNOWN))
    for name, path, body in (
        ("text-embedding-3-small", "/v1/embeddings", {"input": "a"}),
        ("embed-v4.0", "/v2/embed", {"texts": ["a"]}),
        ("rerank-v3.5", "/v2/rerank", {"query": "a", "documents": ["b"]}),
        ("jina-reranker-v2-base-multilingual", "/v1/rerank", {"query": "a", "documents": ["b"]}),
    ):
        assert httpx.post(running.url + path, json={"model": name, **body}).json() == {"from": "encoders"}
    assert [json.loads(data)["model"] for _, _, data in encoders.requests] == ["bi", "bi", "cross", "cross"]


def test_a_server_without_cards_may_rerank(upstream, gateway) -> None:
    running = gateway(upstream("some-reranker", name="vllm"))
    answer = httpx.post(f"{running.url}/rerank", json={"model": "some-reranker", "query": "a", "documents": ["b"]})
    assert answer.json() == {"from": "vllm"}


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/score", "/classify", "/v1/moderations", "/v2/embed"])
def test_keys_are_needed_on_every_route(upstream, gateway, model, path) -> None:
    running = gateway(
        upstream(model("all", "rerank", "score", "classify", "moderations", "embeddings")), api_keys=["k"]
    )
    assert httpx.post(running.url + path, json={"model": "all"}).status_code == 401
    headers = {"authorization": "Bearer k"}
    assert httpx.post(running.url + path, json={"model": "all"}, headers=headers).status_code == 200
