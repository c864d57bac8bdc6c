"""`tessera up` as a user knows it: it comes up, says what to do, stops, and leaves nothing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

Start = Callable[..., Any]


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


def test_the_table_names_every_service_and_nothing_is_noise(suite: Any) -> None:
    lines = suite.said().splitlines()
    for name in (
        "gateway",
        "text",
        "vision",
        "video",
        "speech",
        "video-worker",
        "speech-worker",
        "response-worker",
        "redis",
    ):
        assert any(re.match(rf"{name}  +.*ready", line) for line in lines), name
    assert "random weights" not in suite.said(), "all that starts by itself has learned something"
    assert "where the time went: text: " in suite.said()


def test_the_printed_curl_works_as_printed(suite: Any) -> None:
    (command,) = [line for line in suite.said().splitlines() if line.startswith("curl ")]
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert "Tokyo" in json.loads(answer.stdout)["choices"][0]["message"]["content"]


def test_every_part_answers_on_its_own_port(suite: Any) -> None:
    for name, url in {"gateway": suite.base_url, **suite.urls}.items():
        assert get(f"{url}/health")["service"] == name
        assert get(f"{url}/ready")["status"] == "ok"
        assert get(f"{url}/v1/models")["data"]


def test_the_doctor_is_content_while_the_suite_runs(suite: Any) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "tessera.cli", "doctor"],
        capture_output=True,
        text=True,
        env=suite.environment,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stdout
    assert f"a suite runs on this data (process {suite.process.pid})" in answer.stdout


def test_the_gateway_and_the_torch_free_services_map_no_torch(suite: Any) -> None:
    for module in ("tessera_gateway ", "tessera_text ", "tessera_video "):
        (pid,) = suite.pids(f"-m {module}")
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text(), module


def test_kill_9_of_the_supervisor_leaves_no_engine_and_no_redis(start_suite: Start) -> None:
    running = start_suite()
    for words in (
        "tessera_gateway ",
        "tessera_gateway.worker",
        "tessera_text.worker",
        "tessera_speech.worker",
        "tessera_video.worker",
        "valkey",
    ):
        assert running.pids(words), words
    assert running.stop(signal.SIGKILL) == -signal.SIGKILL
    assert running.left_behind() == []


def test_two_parts_have_redis_for_responses_and_stop_within_seconds(start_suite: Start) -> None:
    running = start_suite(only="text,gateway")
    assert len(running.pids("valkey")) == 1
    assert len(running.pids("tessera_gateway.worker")) == 1
    assert running.pids("tessera_video") == []
    listed = get(f"{running.base_url}/v1/models")["data"]
    assert [model["id"] for model in listed if not model["root"]] == ["smollm2-135m-instruct"]
    began = time.monotonic()
    assert running.stop(signal.SIGINT) == 0
    assert time.monotonic() - began < 15
    assert running.left_behind() == []


def test_a_configured_key_is_asked_for_and_the_curl_says_where_it_goes(start_suite: Start) -> None:
    running = start_suite(only="text,gateway", extra={"TESSERA_GATEWAY__API_KEYS": "a-key-of-mine"})
    (command,) = [line for line in running.said().splitlines() if line.startswith("curl ")]
    assert "a-key-of-mine" not in running.said()
    refused = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert json.loads(refused.stdout)["error"]["code"] == "invalid_api_key"
    allowed = command.replace("YOUR_KEY", "a-key-of-mine")
    answer = subprocess.run(["bash", "-c", allowed], capture_output=True, text=True, timeout=60)
    assert json.loads(answer.stdout)["object"] == "chat.completion"


def test_a_taken_port_is_found_before_anything_starts(tmp_path: Path, suite: Any) -> None:
    environment = suite.environment | {"TESSERA_SUITE__DATA": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, "-m", "tessera.cli", "up"], capture_output=True, text=True, env=environment, timeout=60
    )
    assert answer.returncode == 1
    assert "taken by process" in answer.stdout
    assert "TESSERA_GATEWAY__PORT=" in answer.stdout
    assert "nothing was started" in answer.stderr
    assert not (tmp_path / "logs" / "gateway.log").exists()
