"""The gateway as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

PROBE = """
import sys, threading, time, urllib.request
import tessera_gateway.__main__ as gateway

def look():
    for _ in range(2000):
        try:
            urllib.request.urlopen(sys.argv[1] + "/health").read()
            break
        except OSError:
            time.sleep(0.01)
    found = sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "transformers", "PIL", "av"})
    print("loaded:", *found, flush=True)

threading.Thread(target=look, daemon=True).start()
sys.exit(gateway.main())
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(tmp_path: Path, **values: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    return {**kept, "TESSERA_SUITE__DATA": str(tmp_path), **values}


def test_a_gateway_process_loads_no_torch_and_stops_on_a_signal(tmp_path, upstream):
    fake = upstream("a")
    port = free_port()
    values = {
        "TESSERA_GATEWAY__PORT": str(port),
        "TESSERA_GATEWAY__UPSTREAMS": json.dumps([{"name": "fake", "url": fake.url}]),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", PROBE, f"http://127.0.0.1:{port}"],
        env=environment(tmp_path, **values),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "loaded:"
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json={"model": "a"})
        assert answer.status_code in {200, 503}
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TESSERA_GATEWAY__API_KEYS", "sha256:nothing-secret", "gateway.api_keys[0]"),
        ("TESSERA_GATEWAY__UPSTREAMS", '[{"name": "text", "url": "http://x"}]', "two upstreams are called 'text'"),
        ("TESSERA_GATEWAY__UPSTREAMS", '[{"name": "x", "url": "localhost:8000"}]', "must begin with http://"),
        ("TESSERA_GATEWAY__UPSTREAMS", '[{"name": "x", "url": "http://x/v1"}]', "no /v1 at its end"),
        ("TESSERA_GATEWAY__PORTT", "1", "TESSERA_GATEWAY__PORTT is no setting"),
    ],
)
def test_a_wrong_setting_is_said_in_one_line_before_start(tmp_path, name, value, said):
    done = subprocess.run(
        [sys.executable, "-m", "tessera_gateway"],
        env=environment(tmp_path, **{name: value}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "nothing-secret" not in done.stderr
