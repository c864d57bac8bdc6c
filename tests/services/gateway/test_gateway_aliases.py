"""Aliases: clients ask for names that they know, upstreams get the names that they have."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import connect

from tessera.errors import SettingsError
from tessera.settings.gateway import GatewaySettings
from tessera.settings.speech import SpeechSettings
from tessera.settings.text import TextSettings
from tessera.settings.tree import Settings
from tessera_gateway.aliases import Aliases
from tessera_gateway.app import create_app
from tessera_gateway.renaming import renamed_form, renamed_json

DEFAULTS = GatewaySettings().aliases


def asked(running: Any, path: str, body: Any) -> httpx.Response:
    return httpx.post(f"{running.url}{path}", json=body)


@pytest.fixture
def suite(gateway, upstream, model):
    """A gateway with the default aliases, before models for everything."""
    fake = upstream(
        model("writer", "chat", "completions"),
        model("looker", "chat", "vision"),
        model("vectors", "embeddings"),
        model("voice", "speech"),
        model("ears", "transcription"),
    )
    running = gateway(fake, aliases=DEFAULTS)
    running.fake = fake
    return running


@pytest.mark.parametrize(
    ("path", "name", "own"),
    [
        ("/v1/chat/completions", "gpt-4o", "writer"),
        ("/v1/chat/completions", "gpt-4o-mini-2024-07-18", "writer"),
        ("/v1/chat/completions", "claude-sonnet-4-5-20250929", "writer"),
        ("/v1/chat/completions", "o3", "writer"),
        ("/v1/completions", "gpt-3.5-turbo-instruct", "writer"),
        ("/tokenize", "gpt-4o", "writer"),
        ("/v1/embeddings", "text-embedding-3-small", "vectors"),
        ("/v1/embeddings", "text-embedding-ada-002", "vectors"),
        ("/v1/audio/speech", "tts-1", "voice"),
        ("/v1/audio/speech", "gpt-4o-mini-tts", "voice"),
    ],
)
def test_hosted_models_names_lead_to_the_first_model_of_the_task(suite, path, name, own):
    assert asked(suite, path, {"model": name, "input": "x"}).status_code == 200
    ((reached, _, sent),) = suite.fake.requests
    assert (reached, json.loads(sent)) == (path, {"model": own, "input": "x"})


@pytest.mark.parametrize("name", ["whisper-1", "gpt-4o-transcribe"])
@pytest.mark.parametrize("route", ["transcriptions", "translations"])
def test_the_model_of_a_form_is_an_alias_too(suite, name, route):
    file = bytes(range(256)) * 2048 + b"\r\n\r\n--model"
    client = openai.OpenAI(base_url=suite.url + "/v1", api_key="x", max_retries=0)
    create = getattr(client.audio, route).create
    create(model=name, file=("a.wav", file, "audio/wav"), prompt='name="model"')
    ((_, headers, sent),) = suite.fake.requests
    boundary = headers["content-type"].partition("boundary=")[2].encode()
    assert b'name="model"\r\n\r\nears\r\n--' + boundary in sent
    assert name.encode() not in sent
    assert file in sent


def test_a_name_that_is_listed_is_no_alias(gateway, upstream, model):
    hosted, ours = upstream("gpt-4o", name="hosted"), upstream(model("writer", "chat"), name="ours")
    running = gateway(ours, hosted, aliases={"gpt-4o": "writer", "*": "writer"})
    assert asked(running, "/v1/chat/completions", {"model": "gpt-4o"}).json() == {"from": "hosted"}
    assert asked(running, "/v1/chat/completions", {"model": "anything"}).json() == {"from": "ours"}
    assert [entry["id"] for entry in httpx.get(running.url + "/v1/models").json()["data"]] == ["writer", "gpt-4o"]


def test_the_narrowest_alias_counts(gateway, upstream, model):
    fake = upstream(model("small", "chat"), model("large", "chat"), model("largest", "chat"))
    running = gateway(fake, aliases={"claude-*": "small", "claude-opus-*": "large", "claude-opus-5": "largest"})
    for name in ("claude-haiku", "claude-opus-4", "claude-opus-5"):
        asked(running, "/v1/chat/completions", {"model": name})
    assert [json.loads(sent)["model"] for _, _, sent in fake.requests] == ["small", "large", "largest"]


def test_aliases_are_listed_with_the_model_that_they_stand_for(suite):
    listed = {entry["id"]: entry for entry in httpx.get(suite.url + "/v1/models").json()["data"]}
    assert list(listed)[:5] == ["writer", "looker", "vectors", "voice", "ears"]
    roots = {name: entry["root"] for name, entry in listed.items() if entry["root"]}
    assert roots == {
        "gpt-4o": "writer",
        "whisper-1": "ears",
        "tts-1": "voice",
        "text-embedding-3-small": "vectors",
    }
    assert listed["gpt-4o"]["card"] == listed["writer"]["card"]
    one = httpx.get(suite.url + "/v1/models/claude-opus-5").json()
    assert (one["id"], one["root"]) == ("claude-opus-5", "writer"), "a pattern is not listed, its names are found"


def test_an_alias_whose_model_is_missing_says_what_it_stands_for(gateway, upstream, model):
    running = gateway(upstream(model("writer", "chat")), aliases={"fast": "absent", "whisper-1": "@transcription"})
    answer = asked(running, "/v1/chat/completions", {"model": "fast"})
    assert answer.status_code == 404
    message = answer.json()["error"]["message"]
    assert message == "'fast' stands for 'absent' (gateway.aliases), which is not here; there are: writer"
    answer = asked(running, "/v1/chat/completions", {"model": "whisper-1"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "the first model here that does transcription" in answer.json()["error"]["message"]
    assert [entry["id"] for entry in httpx.get(running.url + "/v1/models").json()["data"]] == ["writer"]


def test_an_alias_for_a_model_of_another_task_is_refused_as_that_model_is(suite):
    answer = asked(suite, "/v1/chat/completions", {"model": "tts-1"})
    assert answer.status_code == 400
    assert "the model 'voice' does speech, not chat" in answer.json()["error"]["message"]


def test_an_alias_of_a_model_that_appears_later_is_found_on_a_miss(gateway, upstream, model, wait):
    fake = upstream("a")
    running = gateway(fake, aliases={"fast": "b"})
    fake.models.append(model("b", "chat"))
    wait(lambda: asked(running, "/v1/chat/completions", {"model": "fast"}).status_code == 200, "the new model")
    assert json.loads(fake.requests[-1][2])["model"] == "b"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"a": "@chatting"}, "'a' = '@chatting': there is no such task; there are @chat, "),
        ({"a": ""}, "must not be empty"),
        ({" ": "b"}, "must not be empty"),
        ({"a": "b", "b": "c"}, "'a' = 'b': this is an alias too"),
        ({"a": "a"}, "this is an alias too"),
    ],
)
def test_a_wrong_alias_is_refused_before_start_by_its_name(table, said):
    with pytest.raises(SettingsError, match=r"gateway\.aliases") as refused:
        create_app(Settings(gateway=GatewaySettings(aliases=table)))
    assert said in refused.value.message


@given(st.text(max_size=8), st.text(alphabet="ab*.", max_size=6))
def test_a_star_stands_for_any_characters_and_nothing_else_is_special(name, pattern):
    import fnmatch

    target = Aliases({pattern: "m"} if pattern.strip() else {"x": "m"}).target(name)
    if pattern.strip():
        assert (target is not None) == fnmatch.fnmatchcase(name, pattern)


def test_a_session_names_its_models_by_aliases(gateway_of, upstream, model):
    speech = upstream(model("ears", "transcription"), model("voice", "speech"), name="speech")
    text = upstream(model("writer", "chat"), name="text")
    settings = Settings(
        gateway=GatewaySettings(services=["text", "speech"]),
        speech=SpeechSettings(url=speech.url),
        text=TextSettings(url=text.url),
    )
    running = gateway_of(settings).knows("ears", "writer")
    update = {
        "type": "session.update",
        "session": {"audio": {"input": {"transcription": {"model": "whisper-1", "language": "en"}}}},
    }

    async def query_of(query: str) -> dict[str, str]:
        async with connect(running.url.replace("http", "ws") + f"/v1/realtime?{query}") as line:
            hello = json.loads(await line.recv())
            await line.send(json.dumps(update))
            update["session"]["audio"]["input"]["transcription"]["model"] = "ears"  # type: ignore[index]
            assert json.loads(await line.recv()) == update
            untouched = '{"type": "response.create",  "response": {"instructions": "session.update gpt-4o"}}'
            await line.send(untouched)
            assert await line.recv() == untouched
        return dict(hello["query"])

    for query, reached in {
        "model=gpt-realtime": {"model": "writer"},
        "model=gpt-4o-realtime-preview": {"model": "writer"},
        "model=writer": {"model": "writer"},
        "model=voice": {},
        "model=tts-1": {},
        "model=ears": {},
        "intent=transcription&model=gpt-4o-transcribe": {"intent": "transcription"},
    }.items():
        assert asyncio.run(query_of(query)) == reached, query


@given(
    st.dictionaries(
        st.text(max_size=5), st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5)
    ),
    st.text(min_size=1, max_size=8),
)
def test_a_renamed_body_differs_in_its_model_alone(values, name):
    body = json.dumps({**values, "model": "before"}).encode()
    assert json.loads(renamed_json(body, name)) == {**values, "model": name}


def test_values_of_a_renamed_body_keep_their_bytes():
    body = b'{ "a" : [1.10, 1e400, "\\u00e9", {"model" : "x"} ],"model":"before", "text": "\\"model\\": \\"before\\"" }'
    assert renamed_json(body, "after") == (
        b'{"a":[1.10, 1e400, "\\u00e9", {"model" : "x"} ],"model":"after","text":"\\"model\\": \\"before\\""}'
    )


def test_a_form_keeps_every_byte_but_the_models():
    form = (
        b'preamble\r\n--x y\r\ncontent-disposition: form-data; name="file"; filename="name=\\"model\\""\r\n\r\n'
        b"\r\n--x\r\n"
        b'\r\n--x y\r\nContent-Disposition: form-data; name="model"\r\n\r\nbefore\r\n--x y--\r\n'
    )
    renamed = renamed_form(form, 'multipart/form-data; boundary="x y"', "after")
    assert renamed == form.replace(b"before", b"after")


def test_settings_take_a_table_from_the_environment_and_the_file(tmp_path):
    from tessera.settings.load import load

    file = tmp_path / "tessera.toml"
    file.write_text('[gateway.aliases]\n"gpt-*" = "writer"\n')
    assert load(file, environment={}).gateway.aliases == {"gpt-*": "writer"}
    file.write_text("[gateway]\naliases = {}\n")
    assert load(file, environment={}).gateway.aliases == {}
    set_there = {"TESSERA_GATEWAY__ALIASES": '{"fast": "@chat"}'}
    assert load(None, environment=set_there).gateway.aliases == {"fast": "@chat"}
    with pytest.raises(SettingsError, match=r"TESSERA_GATEWAY__ALIASES.*as JSON"):
        load(None, environment={"TESSERA_GATEWAY__ALIASES": "fast"})
    assert msgspec.to_builtins(load(None, environment={}).gateway.aliases) == DEFAULTS
