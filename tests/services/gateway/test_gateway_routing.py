"""Who gets a request: by model, by what the model can do, by load; and what goes with it."""

from __future__ import annotations

import json
import threading

import httpx
import openai
import pytest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def client(gateway, **options) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.url + "/v1", api_key="client-key", max_retries=0, **options)


def test_models_of_all_upstreams_are_listed_once_with_card_and_device(gateway, upstream, model):
    first = upstream(model("a", "chat"), "shared", name="first")
    second = upstream("org/b", "shared", name="second")
    running = gateway(first, second)
    assert [entry.id for entry in client(running).models.list()] == ["a", "shared", "org/b"]
    listed = httpx.get(running.url + "/v1/models").json()["data"]
    assert listed[0]["card"]["tasks"] == ["chat"]
    assert listed[0]["device"] == "cpu"
    assert listed[2]["card"] is None


def test_a_model_id_may_contain_slashes(gateway, upstream):
    running = gateway(upstream("org/family/b"))
    assert client(running).models.retrieve("org/family/b").id == "org/family/b"
    assert httpx.get(running.url + "/v1/models/org/family/b").json()["id"] == "org/family/b"
    with pytest.raises(openai.NotFoundError, match="there are: org/family/b"):
        client(running).models.retrieve("org/family/c")


@pytest.mark.parametrize(
    "listing",
    [
        b'{"data": [{"id": "m"}]}',
        b'{"object": "list", "data": [{"id": "m", "created": 1.5, "owned_by": null, "max_model_len": 9}]}',
        b'{"data": [{"id": "m", "created": "yesterday", "card": {"not": "ours"}, "device": 3}]}',
    ],
)
def test_other_servers_may_list_their_models_in_their_own_way(gateway, upstream, listing):
    fake = upstream("m")
    fake.listing = listing
    running = gateway(fake)
    assert httpx.get(running.url + "/v1/models/m").json()["owned_by"] == "fake"
    assert httpx.post(running.url + "/v1/chat/completions", json={"model": "m", **CHAT}).status_code == 200


@pytest.mark.parametrize(
    "listing",
    [b"<html>", b'{"data": [{"id": "\xff"}]}', b'{"data": "' + b"x" * (9 << 20)],
    ids=["html", "bytes", "huge"],
)
def test_a_listing_that_is_none_makes_the_upstream_unavailable(gateway, upstream, wait, listing):
    good, bad = upstream("m", name="good"), upstream("n", name="bad")
    running = gateway(good, bad)
    bad.listing = listing
    wait(lambda: running.metric("tessera_gateway_upstream_up", upstream="bad") == 0, "the gateway to notice")
    assert httpx.post(running.url + "/v1/chat/completions", json={"model": "n", **CHAT}).status_code == 503
    assert httpx.post(running.url + "/v1/chat/completions", json={"model": "m", **CHAT}).status_code == 200


@pytest.mark.parametrize("route", ["chat/completions", "completions", "embeddings"])
def test_the_body_reaches_the_models_upstream_byte_for_byte(gateway, upstream, route):
    first, second = upstream("a", name="first"), upstream("b", name="second")
    running = gateway(first, second)
    body = b' { "messages": [],\n"temperature":0.70, "unknown": {"x": [1, null]}, "model" :"b" } '
    answer = httpx.post(running.url + f"/v1/{route}", content=body, headers={"content-type": "application/json"})
    assert answer.json() == {"from": "second"}
    assert [(path, sent) for path, _, sent in second.requests] == [(f"/v1/{route}", body)]
    assert first.requests == []


def test_a_form_reaches_the_models_upstream_byte_for_byte(gateway, upstream, model):
    fake = upstream(model("ears", "transcription"))
    running = gateway(fake)
    request = httpx.Request(
        "POST",
        running.url + "/v1/audio/transcriptions",
        data={"model": "ears", "timestamp_granularities[]": ["word", "segment"]},
        files={"file": ("a.wav", bytes(range(256)) * 4096, "audio/wav")},
    )
    body = request.read()
    with httpx.Client() as http:
        assert http.send(request).status_code == 200
    path, headers, sent = fake.requests[0]
    assert (path, sent) == ("/v1/audio/transcriptions", body)
    assert headers["content-type"] == request.headers["content-type"]


def test_an_unknown_model_is_not_found_and_the_answer_names_those_there_are(gateway, upstream):
    running = gateway(upstream("a", "b"))
    with pytest.raises(openai.NotFoundError) as caught:
        client(running).chat.completions.create(model="zzz", **CHAT)
    assert caught.value.code == "model_not_found"
    assert "there are: a, b" in caught.value.message


def test_a_model_that_appears_later_is_found_on_a_miss(gateway, upstream, model, wait):
    fake = upstream("a")
    running = gateway(fake)
    fake.models.append(model("b", "chat"))
    wait(
        lambda: httpx.post(running.url + "/v1/chat/completions", json={"model": "b", **CHAT}).status_code == 200,
        "the new model",
    )


def test_a_model_is_not_asked_for_what_it_cannot_do(gateway, upstream, model):
    fake = upstream(model("voice", "speech"), model("writer", "chat"), "foreign")
    running = gateway(fake)
    with pytest.raises(openai.BadRequestError) as caught:
        client(running).chat.completions.create(model="voice", **CHAT)
    assert caught.value.param == "model"
    assert "does speech, not chat; for chat there is: writer, foreign" in caught.value.message
    speech = httpx.post(running.url + "/v1/audio/speech", json={"model": "foreign", "input": "x"})
    assert speech.status_code == 400
    assert fake.requests == []


def test_an_upstream_gets_its_own_key_and_never_the_clients(gateway, upstream):
    fake, open_one = upstream("a", name="foreign"), upstream("b", name="open")
    running = gateway(fake, open_one, keys={"foreign": "upstream-key"}, api_keys=["client-key"])
    for name in ("a", "b"):
        client(running).with_options(default_headers={"cookie": "secret=1", "x-api-key": "k"}).chat.completions.create(
            model=name, **CHAT
        )
    headers = fake.requests[0][1]
    assert headers["authorization"] == "Bearer upstream-key"
    assert fake.polls[0]["Authorization"] == "Bearer upstream-key"
    assert "authorization" not in open_one.requests[0][1]
    for _, sent, _ in fake.requests + open_one.requests:
        assert "client-key" not in json.dumps(sent)
        assert not {"cookie", "x-api-key"} & sent.keys()


def test_an_upstream_that_refuses_the_gateways_key_is_the_operators_fault_not_the_clients(gateway, upstream):
    running = gateway(upstream("a"))
    answer = httpx.post(running.url + "/v1/chat/completions", json={"model": "a", "status": 401})
    assert answer.status_code == 502
    assert "refuses the gateway's key" in answer.json()["error"]["message"]


def test_a_request_id_travels_to_the_upstream_and_back(gateway, upstream):
    fake = upstream("a")
    running = gateway(fake)
    url, body = running.url + "/v1/chat/completions", {"model": "a", **CHAT}
    given = httpx.post(url, json=body, headers={"x-request-id": "my-id.1"})
    made = httpx.post(url, json=body)
    assert given.headers.get_list("x-request-id") == ["my-id.1"]
    assert made.headers["x-request-id"].startswith("req_")
    assert [sent["x-request-id"] for _, sent, _ in fake.requests] == ["my-id.1", made.headers["x-request-id"]]


def test_a_request_goes_to_the_replica_with_the_least_in_flight(gateway, upstream, wait):
    first, second = upstream("a", name="first"), upstream("a", name="second")
    running = gateway(first, second)
    url = running.url + "/v1/chat/completions"
    held = threading.Thread(target=httpx.post, args=(url,), kwargs={"json": {"model": "a", "behave": "silent"}})
    held.start()
    busy, idle = wait(
        lambda: (first.began.is_set() and (first, second)) or (second.began.is_set() and (second, first)), "the hold"
    )
    assert running.metric("tessera_gateway_upstream_in_flight", upstream=busy.name) == 1
    for _ in range(4):
        assert httpx.post(url, json={"model": "a"}).json() == {"from": idle.name}
    busy.go_on.set()
    held.join(20)
    wait(lambda: running.metric("tessera_gateway_upstream_in_flight", upstream=busy.name) == 0, "an idle upstream")


def test_replicas_without_load_take_turns(gateway, upstream):
    first, second = upstream("a", name="first"), upstream("a", name="second")
    running = gateway(first, second)
    for _ in range(6):
        httpx.post(running.url + "/v1/chat/completions", json={"model": "a"})
    assert (len(first.requests), len(second.requests)) == (3, 3)


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_an_upstreams_errors_come_back_as_they_are(gateway, upstream, status):
    running = gateway(upstream("a"))
    told = {
        "retry-after": "7",
        "retry-after-ms": "7000",
        "x-should-retry": "false",
        "set-cookie": "a=b",
        "x-inner": "1",
    }
    answer = httpx.post(running.url + "/v1/chat/completions", json={"model": "a", "status": status, "headers": told})
    assert answer.status_code == status
    assert answer.json() == {"from": "fake"}
    assert answer.headers["retry-after"] == "7"
    assert answer.headers["retry-after-ms"] == "7000"
    assert answer.headers["x-should-retry"] == "false"
    assert not {"set-cookie", "x-inner"} & answer.headers.keys()


def test_readiness_has_a_part_for_each_upstream(gateway, upstream, wait):
    first, second = upstream("a", name="first"), upstream("b", name="second")
    running = gateway(first, second)
    assert httpx.get(running.url + "/ready").json()["parts"] == {"first": "ok", "second": "ok"}
    second.stop()
    answer = wait(
        lambda: (got := httpx.get(running.url + "/ready")).status_code == 503 and got, "the gateway to notice"
    )
    assert answer.json()["parts"] == {"first": "ok", "second": "failed"}
    assert running.metric("tessera_gateway_upstream_up", upstream="second") == 0
    second.start()
    wait(lambda: httpx.get(running.url + "/ready").status_code == 200, "the gateway to recover")


def test_the_api_description_works_offline_and_declares_the_key(gateway, upstream):
    running = gateway(upstream("a"), api_keys=["k"])
    document = httpx.get(running.url + "/docs/openapi.json").json()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert document["paths"]["/v1/chat/completions"]["post"]["security"] == [{"key": []}, {"x-api-key": []}]
    assert "security" not in document["paths"]["/health"]["get"]
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["$ref"].endswith("ChatCompletionRequest")
    page = httpx.get(running.url + "/docs").text
    assert "http://" not in page
    assert "https://" not in page
    home = httpx.get(running.url + "/")
    assert 'href="/docs"' in home.text
    assert httpx.get(running.url + "/docs/assets/swagger-ui.css").status_code == 200


@pytest.mark.parametrize("path", ["tokenize", "detokenize"])
def test_token_routes_go_where_the_model_is(gateway, upstream, path):
    first, second = upstream("a", name="first"), upstream("b", name="second")
    running = gateway(first, second)
    answer = httpx.post(f"{running.url}/{path}", json={"model": "b", "prompt": "x"})
    assert answer.status_code == 200
    assert [asked for asked, _, _ in second.requests] == [f"/{path}"]
    assert first.requests == []
    unknown = httpx.post(f"{running.url}/{path}", json={"model": "c"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
