"""What operators rely on: models with their cards, an API description without the internet, ids, metrics, logs."""

from __future__ import annotations

import io
import json
import re
import uuid
import wave
from typing import Any

import httpx
import pytest

TEXT = "smollm2-135m-instruct"
TASKS = {
    TEXT: {"chat", "completions", "embeddings"},
    "scenes-vision": {"chat", "vision"},
    "shapes-video": {"video"},
    "english-voices": {"speech"},
    "english-transcription": {"transcription"},
}
ROUTES = {
    "/v1/models",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/videos",
    "/v1/videos/{video_id}",
    "/v1/videos/{video_id}/content",
    "/health",
    "/ready",
    "/metrics",
}


def silence() -> bytes:
    """Half a second of it as WAV."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(bytes(16_000))
    return file.getvalue()


def test_every_model_has_a_card_that_says_how_good_it_is(suite: Any) -> None:
    listed = {model.id: model for model in suite.sdk().models.list() if not model.root}
    assert set(TASKS) == set(listed)
    for name, tasks in TASKS.items():
        card = listed[name].card
        assert tasks <= set(card["tasks"])
        if name != TEXT:
            assert card["quality"], "what was trained here says how well"
        assert card["licence"]
        assert card["parameters"] > 0
        assert listed[name].device.startswith("cpu")
        assert suite.sdk().models.retrieve(name) == listed[name]
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in listed[TEXT].card["sha256"].values())


def test_each_service_lists_its_own_models_as_the_gateway_does(suite: Any) -> None:
    listed = {model.id: model for model in suite.sdk().models.list() if not model.root}
    own = {name: {model.id: model for model in suite.sdk(service=name).models.list()} for name in suite.urls}
    assert {name for models in own.values() for name in models} == set(listed)
    for models in own.values():
        for name, model in models.items():
            assert model.card == listed[name].card


@pytest.mark.parametrize("part", ["gateway", "text", "vision", "video", "speech"])
def test_the_api_description_needs_no_internet(suite: Any, part: str) -> None:
    url = suite.base_url if part == "gateway" else suite.urls[part]
    page = httpx.get(f"{url}/docs")
    assert page.headers["content-type"].startswith("text/html")
    loaded = re.findall(r"""(?:src|href|url\()\s*=?\s*["']?([^"'\s>)]+)""", page.text.partition("spec:")[0])
    assert {name.rpartition(".")[2] for name in loaded} == {"css", "js"}
    for name in loaded:
        assert name.startswith("/docs/assets/"), f"{name} is elsewhere"
        assert len(httpx.get(url + name).raise_for_status().content) > 1000
    hosts = set(re.findall(r"https?://([^/\s\"'\\]+)", page.text))
    assert hosts <= {"www.w3.org"}, "the page names a server of somebody else"


def test_the_api_description_has_every_route_and_its_errors_shape(suite: Any) -> None:
    document = httpx.get(f"{suite.base_url}/docs/openapi.json").json()
    assert set(document["paths"]) >= ROUTES
    text = json.dumps(document)
    for name in set(re.findall(r"#/components/schemas/(\w+)", text)):
        assert name in document["components"]["schemas"], f"{name} is not described"
    body = document["paths"]["/v1/videos"]["post"]["requestBody"]["content"]
    assert set(body) == {"multipart/form-data", "application/json"}
    errors = {
        json.dumps(response["content"]["application/json"]["schema"])
        for route in document["paths"].values()
        for operation in route.values()
        for status, response in operation["responses"].items()
        if status >= "4"
    }
    assert errors == {'{"$ref": "#/components/schemas/ErrorEnvelope"}'}


@pytest.mark.parametrize(
    ("service", "path", "body"),
    [
        ("text", "/v1/completions", {"model": TEXT, "prompt": "hi", "max_tokens": 1}),
        ("text", "/v1/completions", {"model": TEXT, "prompt": "hi", "max_tokens": 2, "stream": True}),
        ("vision", "/v1/chat/completions", {"model": "scenes-vision", "messages": [], "max_tokens": 1}),
        ("speech", "/v1/audio/speech", {"model": "english-voices", "input": "Hi."}),
    ],
    ids=["text", "stream", "refused", "speech"],
)
def test_one_request_id_runs_through_gateway_and_service(
    suite: Any, wait: Any, service: str, path: str, body: dict[str, Any]
) -> None:
    mine = f"e2e-{uuid.uuid4().hex}"
    answer = httpx.post(suite.base_url + path, json=body, headers={"x-request-id": mine}, timeout=60)
    assert answer.headers.get_list("x-request-id") == [mine]
    for part in ("gateway", service):
        wait(lambda part=part: re.search(rf"POST {path} {answer.status_code} .*{mine}", suite.log(part)), part)


def test_a_video_keeps_its_request_id_into_the_worker(suite: Any, wait: Any) -> None:
    mine = f"e2e-{uuid.uuid4().hex}"
    body = {"prompt": "ids", "steps": 1, "seconds": "1"}
    answer = httpx.post(f"{suite.base_url}/v1/videos", json=body, headers={"x-request-id": mine})
    assert answer.headers["x-request-id"] == mine
    wait(lambda: mine in suite.log("gateway"), "the gateway's log")
    wait(lambda: re.search(rf"{answer.json()['id']}.*{mine}", suite.log("video-worker")), "the worker's log")


def test_ids_that_could_forge_log_lines_are_replaced(suite: Any) -> None:
    for bad in ("two words", "x" * 200, 'a"b', "ключ".encode()):
        answer = httpx.get(f"{suite.base_url}/v1/models", headers={"x-request-id": bad})
        assert re.fullmatch(r"req_[0-9a-f]{32}", answer.headers["x-request-id"])
    assert httpx.get(f"{suite.base_url}/nowhere").headers["x-request-id"].startswith("req_")


def test_metrics_count_what_was_asked_by_route_not_by_path(suite: Any) -> None:
    def count(status: str) -> float:
        return suite.metric(
            "gateway", "tessera_http_requests_total", method="GET", route="/v1/videos/{video_id}", status=status
        )

    before = count("404")
    for number in range(3):
        httpx.get(f"{suite.base_url}/v1/videos/video_{number:032x}")
    assert count("404") - before == 3
    text = httpx.get(f"{suite.base_url}/metrics").text
    assert "video_0000" not in text
    for part, metric in {
        "text": "tessera_text_engine_kv_pages_capacity",
        "vision": "tessera_vision_engine_kv_pages_capacity",
        "speech": "tessera_speech_engine_synthesized_audio_seconds_total",
    }.items():
        assert suite.metric(part, metric) > 0, part
    assert all(suite.metric("gateway", "tessera_gateway_upstream_up", upstream=name) == 1 for name in suite.urls)


def test_prompts_are_in_no_log(suite: Any) -> None:
    secret = "a-prompt-that-nobody-else-writes"
    suite.sdk().completions.create(model=TEXT, prompt=secret, max_tokens=1)
    suite.sdk().audio.speech.create(model="english-voices", voice="alloy", input=secret)
    httpx.post(f"{suite.base_url}/v1/completions", json={"model": TEXT, "prompt": secret, "n": 0})
    for path in (suite.data / "logs").glob("*.log"):
        assert secret not in path.read_text(), path.name


def test_the_services_answer_the_same_routes_without_the_gateway(suite: Any, wait: Any, counted: Any) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "temperature": 0}
    for service, model in {"text": TEXT, "vision": "scenes-vision"}.items():
        direct, through = (
            client.chat.completions.create(model=model, **asked) for client in (suite.sdk(service=service), suite.sdk())
        )
        assert direct.choices == through.choices
        assert counted(direct.usage) == counted(through.usage)
    text = suite.sdk(service="text")
    assert text.completions.create(model=TEXT, prompt="hi", max_tokens=1).choices
    assert text.embeddings.create(model=TEXT, input="hi").data
    speech = suite.sdk(service="speech")
    wav = speech.audio.speech.create(model="english-voices", voice="alloy", input="Hi.", response_format="wav")
    assert wav.content.startswith(b"RIFF")
    transcript = speech.audio.transcriptions.create(model="english-transcription", file=("silence.wav", silence()))
    assert transcript.usage.seconds == 0.5
    url = suite.urls["video"]
    made = httpx.post(f"{url}/v1/videos", json={"prompt": "alone", "steps": 1, "seconds": 1}).raise_for_status().json()
    wait(lambda: httpx.get(f"{url}/v1/videos/{made['id']}").json()["status"] == "completed", "the video")
    content = httpx.get(f"{url}/v1/videos/{made['id']}/content").content
    assert content == httpx.get(f"{suite.base_url}/v1/videos/{made['id']}/content").content
    assert made["id"] in [video["id"] for video in httpx.get(f"{url}/v1/videos").json()["data"]]
    assert httpx.delete(f"{url}/v1/videos/{made['id']}").json()["deleted"] is True


@pytest.mark.parametrize("part", ["gateway", "text", "vision", "video", "speech"])
def test_every_server_answers_errors_in_openais_envelope(suite: Any, part: str) -> None:
    url = suite.base_url if part == "gateway" else suite.urls[part]
    for answer, status, code in (
        (httpx.get(f"{url}/v1/nothing"), 404, "not_found"),
        (httpx.get(f"{url}/v1/models/nobody"), 404, "model_not_found"),
        (httpx.put(f"{url}/v1/models"), 405, "method_not_allowed"),
    ):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (status, code, "invalid_request_error")
        assert set(error) == {"message", "type", "param", "code"}
        assert answer.headers["x-should-retry"] == "false"
