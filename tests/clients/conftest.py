"""The real client packages against a running gateway. `make clients` runs them, in an environment of their own.

The suite is started from the project's own environment, with every service, encoders, and a scripted upstream that
speaks chat completions alone; `--address URL` tries a gateway that runs already (it needs a model called `scripted` for
some tests). The main suite's pytest does not collect these files: the packages are not there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OURS = ROOT / ".venv" / "bin" / "python"
NODE = Path(sys.prefix) / "node"
"""Where `make clients` installs the clients that come from npm."""
MAKE_ENCODERS = """
import sys
from pathlib import Path
from tests.services.text.encoder_directories import make_all, settings_of
print(settings_of(make_all(Path(sys.argv[1]))))
"""
"""Run in the project's environment: random encoders of every role, and the setting that names them."""
READY = {"smollm2-135m-instruct", "scenes-vision", "shapes-video", "english-voices", "bi", "cross", "scripted"}
"""Models that are listed when every service and the scripted upstream have started."""
START_S = 240.0
KEY = "a-key-of-the-clients"
collect_ignore_glob = (
    [] if importlib.util.find_spec("anthropic") and importlib.util.find_spec("litellm") else ["test_*"]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--address", default=None, help="a running gateway, instead of a suite of the tests' own")
    parser.addoption("--key", default=KEY, help="key of that gateway")


@dataclass(frozen=True)
class Gateway:
    """A running gateway, its key, and the models that the tests ask for."""

    url: str
    key: str
    text: str = "smollm2-135m-instruct"
    scripted: str = "scripted"
    embedder: str = "bi"
    reranker: str = "cross"
    classifier: str = "moods"
    moderator: str = "guard"
    video: str = "shapes-video"

    @property
    def v1(self) -> str:
        """The address that OpenAI's clients are given."""
        return f"{self.url}/v1"


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def models_of(url: str, key: str) -> set[str]:
    """The models that a server lists; empty while it cannot be reached."""
    asked = urllib.request.Request(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"})
    with (
        contextlib.suppress(urllib.error.URLError, OSError, ValueError),
        urllib.request.urlopen(asked, timeout=5) as answer,
    ):
        return {model["id"] for model in json.load(answer)["data"]}
    return set()


def wait_for(url: str, key: str, names: set[str], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server lists models."""
    deadline = time.monotonic() + START_S
    while not names <= models_of(url, key):
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.1)


def encoders(directory: Path) -> str:
    """The setting `text.encoders` with tiny encoders of random weights."""
    command = [str(OURS), "-c", MAKE_ENCODERS, str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-4000:]
    return made.stdout.splitlines()[-1]


@pytest.fixture(scope="session")
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with one key in front of every service and the scripted upstream."""
    if (address := request.config.getoption("--address")) is not None:
        yield Gateway(address.rstrip("/"), request.config.getoption("--key"))
        return
    directory = tmp_path_factory.mktemp("suite")
    names = ("gateway", "text", "vision", "video", "speech", "scripted")
    ports = {name: free_port() for name in names}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TESSERA_", "PYTEST"))}
    environment.pop("REDIS_URL", None)
    environment |= {f"TESSERA_{name.upper()}__PORT": str(ports[name]) for name in names[:-1]}
    upstream = {"name": "scripted", "url": f"http://127.0.0.1:{ports['scripted']}"}
    environment |= {
        "TESSERA_SUITE__DATA": str(directory / "data"),
        "TESSERA_SUITE__MODELS": str(ROOT / ".tessera" / "models"),
        "TESSERA_GATEWAY__API_KEYS": KEY,
        "TESSERA_GATEWAY__UPSTREAMS": json.dumps([upstream]),
        "TESSERA_TEXT__ENCODERS": encoders(directory / "encoders"),
    }
    upstream_log, log = directory / "scripted.log", directory / "suite.log"
    with upstream_log.open("wb") as stream:
        scripted = subprocess.Popen(
            [sys.executable, str(HERE / "scripted_upstream.py"), "--port", str(ports["scripted"])],
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    with log.open("wb") as stream:
        suite = subprocess.Popen(
            [str(OURS), "-m", "tessera.cli", "up"],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
        )
    url = f"http://127.0.0.1:{ports['gateway']}"
    try:
        wait_for(url, KEY, READY, suite, log)
        yield Gateway(url, KEY)
    finally:
        for process in (suite, scripted):
            process.send_signal(signal.SIGTERM)
        for process in (suite, scripted):
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="session")
def node() -> Path:
    """The directory of the clients that come from npm."""
    if shutil.which("node") is None or not (NODE / "node_modules").is_dir():
        pytest.skip("Node.js or npm is not installed: its clients (AI SDK, Codex, Claude Code) cannot run")
    return NODE
