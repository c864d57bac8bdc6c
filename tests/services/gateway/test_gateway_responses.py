"""Responses behind the gateway: kept under the key's owner, gone on with, read, deleted; as OpenAI's SDK sees it."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pydantic
import pytest
import redis
from tests.response_streams import check_order, parsed
from tests.scripted_model import MODEL, ScriptedModel
from tests.waiting import until

from tessera.errors import JobStoreFullError
from tessera.protocols.responses.translation import ResponseTranslation
from tessera.settings.gateway import GatewaySettings, UpstreamSettings
from tessera.settings.jobs import JobSettings
from tessera.settings.suite import RedisSettings, SuiteSettings
from tessera.settings.tree import Settings
from tessera.wire.responses.request import ResponseRequest
from tessera_gateway.responses.opening import response_store
from tessera_gateway.translated.foreign import ForeignReader

KEYS = ["one", "two"]
WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


@pytest.fixture
def scripted(request):
    server = ScriptedModel(responses=getattr(request, "param", True)).start()
    yield server
    server.close()


@pytest.fixture
def running(gateway_of, redis_server, scripted, tmp_path):
    """`running(**settings of the gateway)`: a gateway before the scripted model, with a Redis of its own."""

    def start(url: str = "", **values):
        upstreams = [UpstreamSettings(name="scripted", url=scripted.url)]
        settings = Settings(
            gateway=GatewaySettings(
                **{"services": [], "upstreams": upstreams, "aliases": {}, "api_keys": KEYS, **values}
            ),
            redis=RedisSettings(url=url or redis_server.url, timeout_s=0.5),
            suite=SuiteSettings(data=str(tmp_path)),
        )
        return gateway_of(settings).knows(MODEL)

    return start


@pytest.fixture
def gateway(running):
    return running()


def sdk(gateway, key: str = "one") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0, timeout=20)


@pytest.fixture
def client(gateway):
    return sdk(gateway)


def texts(items) -> list[str]:
    return [item.content[0].text for item in items]


def test_a_conversation_goes_on_from_the_response_before_it(client, scripted) -> None:
    first = client.responses.create(model=MODEL, input="one", instructions="be short")
    assert first.output_text == "2: one"
    second = client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    # Instructions are not carried over: one, its answer, two.
    assert second.output_text == "3: two"
    assert second.previous_response_id == first.id
    third = client.responses.create(model=MODEL, input="three", previous_response_id=second.id)
    assert third.output_text == "5: three"
    sent = scripted.requests[-1][2]
    assert sent["store"] is False
    assert "previous_response_id" not in sent


def test_a_kept_response_is_read_and_deleted_by_its_owner_alone(gateway, client) -> None:
    made = client.responses.create(model=MODEL, input="hi", metadata={"k": "v"})
    assert made.to_dict()["store"] is True
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()
    other = sdk(gateway, "two")
    for call in (
        lambda: other.responses.retrieve(made.id),
        lambda: other.responses.delete(made.id),
        lambda: other.responses.cancel(made.id),
        lambda: other.responses.input_items.list(made.id),
        lambda: other.responses.create(model=MODEL, input="x", previous_response_id=made.id),
        lambda: other.responses.create(model=MODEL, input=[{"type": "item_reference", "id": made.output[0].id}]),
    ):
        with pytest.raises(openai.NotFoundError):
            call()
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_stream_is_kept_before_its_last_event_arrives(client, scripted) -> None:
    with client.responses.stream(model=MODEL, input="hello", text_format=openai.omit) as stream:
        for event in stream:
            if event.type == "response.completed":
                assert client.responses.retrieve(event.response.id).output_text == "1: hello"
        final = stream.get_final_response()
    assert final.to_dict()["store"] is True
    follow = client.responses.create(model=MODEL, input="more", previous_response_id=final.id)
    assert follow.output_text == "3: more"


@pytest.mark.parametrize("store", [True, False])
def test_a_stream_through_the_gateway_is_in_openais_order(gateway, store: bool) -> None:
    body = {"model": MODEL, "input": "think hard", "stream": True, "store": store, "reasoning": {"summary": "auto"}}
    answer = httpx.post(f"{gateway.url}/v1/responses", json=body, headers={"authorization": "Bearer one"})
    final = check_order(parsed(answer.content))
    assert final["store"] is store
    assert [item["type"] for item in final["output"]] == ["reasoning", "message"]


def test_what_is_not_kept_is_passed_on_as_its_bytes_came(gateway, scripted) -> None:
    body = b'{"store":false, "model":"%s",  "input":"hi"}' % MODEL.encode()
    headers = {"authorization": "Bearer one", "content-type": "application/json"}
    answer = httpx.post(f"{gateway.url}/v1/responses", content=body, headers=headers)
    assert answer.json()["store"] is False
    assert scripted.requests[-1][2] == json.loads(body)
    found = httpx.get(f"{gateway.url}/v1/responses/{answer.json()['id']}", headers=headers)
    assert found.status_code == 404


def test_tools_go_round_over_kept_responses(client) -> None:
    first = client.responses.create(model=MODEL, input='call weather {"city": "x"}', tools=[WEATHER])
    (call,) = first.output
    assert (call.type, call.arguments) == ("function_call", '{"city": "x"}')
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    second = client.responses.create(model=MODEL, input=[result], tools=[WEATHER], previous_response_id=first.id)
    assert second.output_text == "the tool said sun"


def test_items_are_referred_to_by_their_ids(client, scripted) -> None:
    first = client.responses.create(model=MODEL, input="one")
    items = [
        {"role": "user", "content": "one"},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "two"},
    ]
    assert client.responses.create(model=MODEL, input=items).output_text == "3: two"
    with pytest.raises(openai.NotFoundError, match="item itself"):
        client.responses.create(model=MODEL, input=[{"type": "item_reference", "id": "msg_none"}])


def test_a_structured_answer_is_parsed(client) -> None:
    class Out(pydantic.BaseModel):
        """What the model is asked for."""

        a: int

    assert client.responses.parse(model=MODEL, input='json {"a": 3}', text_format=Out).output_parsed.a == 3


def test_input_items_are_paged(client) -> None:
    first = client.responses.create(model=MODEL, input="one")
    items = [{"role": "user", "content": "two"}, {"role": "user", "content": "three"}]
    second = client.responses.create(model=MODEL, input=items, previous_response_id=first.id)
    everything = list(client.responses.input_items.list(second.id, limit=1, order="asc"))
    assert texts(everything) == ["one", "1: one", "two", "three"]
    assert texts(client.responses.input_items.list(second.id)) == ["three", "two", "1: one", "one"]
    page = client.responses.input_items.list(second.id, limit=2, order="asc")
    assert page.has_more
    assert (page.first_id, page.last_id) == (everything[0].id, everything[1].id)
    with pytest.raises(openai.BadRequestError, match="after"):
        client.responses.input_items.list(second.id, after="nothing")


def test_a_response_of_a_request_cannot_be_cancelled(client) -> None:
    made = client.responses.create(model=MODEL, input="hi")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(made.id)


def test_a_conversation_with_a_deleted_response_is_refused(client) -> None:
    first = client.responses.create(model=MODEL, input="one")
    second = client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=first.id) as caught:
        client.responses.create(model=MODEL, input="three", previous_response_id=second.id)
    assert caught.value.param == "previous_response_id"


def test_a_conversation_that_is_too_long_is_refused(running) -> None:
    client = sdk(running(max_json_bytes=8192))
    identity = client.responses.create(model=MODEL, input="x" * 3000).id
    # Each response is about 4 kB with its input and its output.
    with pytest.raises(openai.BadRequestError, match=r"longer than|over 8192"):
        client.responses.create(model=MODEL, input="y" * 5000, previous_response_id=identity)


def test_the_oldest_responses_make_room_for_new_ones(running, redis_server) -> None:
    client = sdk(running(responses_max_bytes=20_000))
    made = [client.responses.create(model=MODEL, input="x" * 3000).id for _ in range(6)]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made[0])
    assert client.responses.retrieve(made[-1]).id == made[-1]
    line = redis.Redis.from_url(redis_server.url)
    (sizes,) = [key for key in line.keys("tessera:responses:*:sizes") if line.hget(key, made[-1])]
    kept = {name: int(size) for name, size in line.hgetall(sizes).items()}
    total = kept.pop(b"*")
    assert total == sum(kept.values()) <= 20_000
    items = {value.decode() for value in line.hvals(sizes.replace(b":sizes", b":items"))}
    assert items == {name.decode() for name in kept}


def test_a_response_that_is_too_large_is_answered_and_not_kept(running) -> None:
    client = sdk(running(responses_max_bytes=2000))
    made = client.responses.create(model=MODEL, input="x" * 3000)
    assert made.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_response_goes_when_its_time_is_over(running) -> None:
    client = sdk(running(responses_ttl_s=1))
    made = client.responses.create(model=MODEL, input="hi")

    def gone() -> bool:
        try:
            client.responses.retrieve(made.id)
        except openai.NotFoundError:
            return True
        return False

    until(gone, what="the end of its time")


def test_without_redis_an_answer_is_not_kept_and_says_so(running, tmp_path) -> None:
    client = sdk(running(url=f"unix://{tmp_path}/nothing.sock"))
    assert client.responses.create(model=MODEL, input="hi").to_dict()["store"] is False
    with pytest.raises(openai.InternalServerError) as caught:
        client.responses.create(model=MODEL, input="hi", store=True)
    assert caught.value.status_code == 503
    for call in (
        lambda: client.responses.create(model=MODEL, input="hi", previous_response_id="resp_1"),
        lambda: client.responses.retrieve("resp_1"),
        lambda: client.responses.create(model=MODEL, input="hi", background=True),
    ):
        with pytest.raises(openai.InternalServerError) as caught:
            call()
        assert caught.value.status_code == 503


def test_what_is_kept_on_a_full_disk_cannot_be_read_because_of_the_disk(tmp_path) -> None:
    suite, jobs = SuiteSettings(data=str(tmp_path)), JobSettings(least_free_bytes=1 << 62)

    async def read() -> None:
        store = response_store(Settings(suite=suite, jobs=jobs))  # of the embedded Redis, which does not run
        try:
            await store.get("me", "resp_1")
        finally:
            await store.close()

    with pytest.raises(JobStoreFullError, match=f"the disk of {tmp_path}/redis has"):
        asyncio.run(read())


def test_a_redis_that_dies_within_a_stream_costs_the_keeping_and_not_the_answer(gateway, client, scripted) -> None:
    """The last event says that the response is not kept."""
    store = gateway.collaborator("responses").store

    async def dies(*_: object, **__: object) -> None:
        from tessera.errors import UnavailableError

        raise UnavailableError("Redis is down")

    with client.responses.stream(model=MODEL, input="slow") as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                store.keep = dies
                scripted.go_on.set()
        final = stream.get_final_response()
    assert final.to_dict()["store"] is False
    assert final.status == "completed"


@pytest.mark.parametrize("store", [True, False])
def test_an_upstream_that_cuts_its_stream_ends_it_with_response_failed(gateway, store: bool) -> None:
    body = {"model": MODEL, "input": "cut", "stream": True, "store": store}
    answer = httpx.post(f"{gateway.url}/v1/responses", json=body, headers={"authorization": "Bearer one"})
    events = parsed(answer.content)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.failed"
    assert "cut the connection" in events[-1]["response"]["error"]["message"]


def test_a_client_that_leaves_cancels_the_upstream(gateway, scripted) -> None:
    body = {"model": MODEL, "input": "slow", "stream": True}
    headers = {"authorization": "Bearer one"}
    with httpx.stream("POST", f"{gateway.url}/v1/responses", json=body, headers=headers) as answer:
        next(answer.iter_bytes())
    assert scripted.left.wait(20)


def test_an_error_of_the_upstream_keeps_its_status(client) -> None:
    with pytest.raises(openai.RateLimitError, match="refused as asked"):
        client.responses.create(model=MODEL, input="refuse 429")


def test_a_response_that_failed_is_not_gone_on_with(gateway, client) -> None:
    body = {"model": MODEL, "input": "cut", "stream": True}
    answer = httpx.post(f"{gateway.url}/v1/responses", json=body, headers={"authorization": "Bearer one"})
    identity = parsed(answer.content)[-1]["response"]["id"]
    assert client.responses.retrieve(identity).status == "failed"
    with pytest.raises(openai.BadRequestError, match="is failed"):
        client.responses.create(model=MODEL, input="x", previous_response_id=identity)


@pytest.mark.parametrize("identity", ["sizes", "items", "%s:events", "x" * 200, "resp_\u00e9", " "])
def test_an_id_that_is_none_is_not_found(client, identity: str) -> None:
    made = client.responses.create(model=MODEL, input=[{"role": "user", "content": "hi", "id": "response"}])
    identity = identity.replace("%s", made.id)
    for call in (
        lambda: client.responses.retrieve(identity),
        lambda: client.responses.delete(identity),
        lambda: client.responses.cancel(identity),
        lambda: client.responses.input_items.list(identity),
        lambda: client.responses.create(model=MODEL, input="x", previous_response_id=identity),
    ):
        with pytest.raises(openai.NotFoundError):
            call()
    assert client.responses.retrieve(made.id).id == made.id


@pytest.mark.parametrize(
    "value", [b"[" * 100_000, b'"\xff"', b"[1]", b"{}", b"7"], ids=["deep", "bytes", "list", "object", "number"]
)
def test_an_input_that_is_none_is_refused(gateway, value: bytes) -> None:
    headers = {"authorization": "Bearer one", "content-type": "application/json"}
    body = b'{"model": "%s", "input": %s}' % (MODEL.encode(), value)
    answer = httpx.post(f"{gateway.url}/v1/responses", content=body, headers=headers)
    assert answer.status_code == 400, answer.text


def test_wrong_requests_name_what_is_wrong(client) -> None:
    with pytest.raises(openai.BadRequestError, match="input"):
        client.responses.create(model=MODEL, input=[3])
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.create(model=MODEL, input="x", background=True, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="nothing", input="x")


@pytest.mark.parametrize("scripted", [False], indirect=True, ids=["chat alone"])
def test_an_upstream_that_speaks_chat_alone_is_translated_to(gateway, client, scripted) -> None:
    first = client.responses.create(model=MODEL, input='call weather {"city": "x"}', tools=[WEATHER])
    (call,) = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    body = {"model": MODEL, "input": [result], "tools": [WEATHER], "previous_response_id": first.id, "stream": True}
    answer = httpx.post(f"{gateway.url}/v1/responses", json=body, headers={"authorization": "Bearer one"})
    final = check_order(parsed(answer.content))
    assert final["output"][0]["content"][0]["text"] == "the tool said sun"
    assert (final["store"], final["previous_response_id"]) == (True, first.id)
    assert scripted.requests[-1][0] == "/v1/chat/completions"
    cut = httpx.post(
        f"{gateway.url}/v1/responses", json={**body, "input": "cut"}, headers={"authorization": "Bearer one"}
    )
    assert parsed(cut.content)[-1]["type"] == "response.failed"


@pytest.mark.parametrize("scripted", [True, False], indirect=True, ids=["responses", "chat alone"])
def test_the_tokens_of_a_whole_conversation_are_counted(gateway, client, scripted) -> None:
    """The scripted model counts each message as a token."""
    first = client.responses.create(model=MODEL, input="one")
    assert client.responses.input_tokens.count(model=MODEL, input="two").input_tokens == 1
    counted = client.responses.input_tokens.count(model=MODEL, input="two", previous_response_id=first.id)
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", 3)
    items = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "two"}]
    assert client.responses.input_tokens.count(model=MODEL, input=items).input_tokens == 2
    with pytest.raises(openai.NotFoundError):
        sdk(gateway, "two").responses.input_tokens.count(model=MODEL, input="x", previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError, match="stream"):
        client.responses.input_tokens.count(model=MODEL, input="x", extra_body={"stream": True})


def test_thoughts_that_an_upstream_counts_are_shown() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 7, "x": 1}}
    answer = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": usage}
    read = ForeignReader("other", "m").completion(json.dumps(answer).encode())
    asked = ResponseTranslation(ResponseRequest(model="m", input="x"))
    assert asked.answer(read).usage.output_tokens_details.reasoning_tokens == 7
