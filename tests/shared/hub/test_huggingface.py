"""Models from a hub: only safe files, whole or not at all, against a server that speaks the hub's HTTP."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading

import pytest

from tessera.errors import ModelLoadError
from tessera.hub import huggingface

COMMIT = "a" * 40
SCRIPT = """
import sys
from pathlib import Path
from tessera.errors import ModelLoadError
from tessera.hub import store
try:
    found = store.ensure(sys.argv[1], Path(sys.argv[2]), lambda text: print("told:", text))
    store.check(found)
    print(found.path, found.card.id, found.card.source, found.card.revision, found.card.licence, found.card.parameters)
except ModelLoadError as error:
    print("refused:", error.message)
"""


def safetensors(values: int) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4 * values)


FILES = {
    "config.json": json.dumps({"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 99}).encode(),
    "model.safetensors": safetensors(300_000),
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"a pickle",
    "modeling_evil.py": b"raise SystemExit",
    "README.md": b"words",
}


class Hub(http.server.ThreadingHTTPServer):
    """One repository, `owner/model`; counts what is asked and can cut a file in the middle once."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(FILES)
        self.asked: list[str] = []
        self.ranges: list[str] = []
        self.cut: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self.info("/".join(parts[2:4]))
        elif parts[:2] == ["owner", "model"] and parts[2] == "resolve" and "/".join(parts[4:]) in self.server.files:
            self.file("/".join(parts[4:]), body=body)
        else:
            self.send_error(404)

    def info(self, repository: str) -> None:
        if repository == "owner/gated":
            self.send_response(403)
            self.send_header("X-Error-Code", "GatedRepo")
            self.end_headers()
            return
        if repository != "owner/model":
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
            return
        if "/tree/" in self.path:
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self.server.files.items()
            ]
            self.json(entries)
            return
        siblings = [{"rfilename": name, "size": len(data)} for name, data in self.server.files.items()]
        card = {"license": "mit"}
        self.json({"id": repository, "sha": COMMIT, "siblings": siblings, "cardData": card})

    def json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def file(self, name: str, *, body: bool) -> None:
        data = self.server.files[name]
        if body:
            self.server.asked.append(name)
        start = 0
        if body and (asked := self.headers.get("Range")):
            self.server.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Size", str(len(data)))
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if not body:
            return
        if self.server.cut == name:
            self.server.cut = None
            self.wfile.write(data[start : start + len(data) // 2])
            self.wfile.flush()
            self.connection.close()
            return
        self.wfile.write(data[start:])


@pytest.fixture
def hub():
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def fetch(hub: Hub, model: str, folder) -> str:
    """Run `ensure` in a process of its own: the library reads its address when it is imported."""
    environment = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
    }
    command = [sys.executable, "-c", SCRIPT, model, str(folder / "models")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_files_that_cannot_run_code_come_and_the_card_says_from_where(hub, tmp_path):
    said = fetch(hub, "hf:owner/model", tmp_path)
    assert f"owner/model hf:owner/model {COMMIT} mit 300000" in said
    folder = tmp_path / "models" / "hf--owner--model"
    assert {path.name for path in folder.iterdir()} == {
        ".checked.json",
        "card.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    asked = len(hub.asked)
    assert "told" not in fetch(hub, "hf:owner/model", tmp_path)
    assert len(hub.asked) == asked


def test_a_download_that_was_cut_is_finished_and_whole(hub, tmp_path):
    hub.cut = "model.safetensors"
    said = fetch(hub, "hf:owner/model@main", tmp_path)
    if "refused" in said:
        assert not (tmp_path / "models" / "hf--owner--model@main").exists()
        said = fetch(hub, "hf:owner/model@main", tmp_path)
    assert COMMIT in said
    assert (tmp_path / "models" / "hf--owner--model@main" / "model.safetensors").read_bytes() == FILES[
        "model.safetensors"
    ]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("hf:owner/none", "no such model or revision"),
        ("hf:owner/gated", "HF_TOKEN"),
    ],
)
def test_what_the_hub_refuses_is_said_with_the_cure(hub, tmp_path, model, words):
    assert words in fetch(hub, model, tmp_path)


def test_a_model_with_only_pickles_is_refused_before_anything_is_fetched(hub, tmp_path):
    del hub.files["model.safetensors"]
    assert "no safetensors weights" in fetch(hub, "hf:owner/model", tmp_path)
    assert hub.asked == []


def test_a_hub_that_cannot_be_reached_is_said(hub, tmp_path):
    hub.shutdown()
    hub.server_close()
    assert "cannot fetch owner/model from the hub" in fetch(hub, "hf:owner/model", tmp_path)


@pytest.mark.parametrize("model", ["hf:name", "hf:../x", "hf:a/b/c", "hf:a/b@", "hf:a/..", "hf:a/b@../../x"])
def test_names_that_are_not_of_a_hub_are_refused(model):
    with pytest.raises(ModelLoadError, match="hf:owner/name"):
        huggingface.parse(model)
