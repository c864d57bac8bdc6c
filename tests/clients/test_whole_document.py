"""schemathesis over the gateway's whole API description: whatever it sends, no answer is a 5xx."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).parent
EXAMPLES = 8
"""Requests that are made up for each operation, beside those that cover its schema's bounds."""
SEED = 21


@pytest.fixture(scope="module")
def resources(gateway) -> dict[str, str]:
    """A response, a clip and a transcription that exist, by the parameter of the paths that name them."""
    with httpx.Client(base_url=gateway.v1, headers={"authorization": f"Bearer {gateway.key}"}, timeout=60) as client:

        def made(answer: httpx.Response) -> str:
            assert answer.is_success, answer.text
            return str(answer.json()["id"])

        sound = client.post("/audio/speech", json={"model": "tts-1", "input": "A red circle.", "voice": "alloy"})
        return {
            "response_id": made(client.post("/responses", json={"model": gateway.text, "input": "Hello."})),
            "video_id": made(client.post("/videos", json={"model": gateway.video, "prompt": "a circle", "steps": 1})),
            "job_id": made(
                client.post(
                    "/audio/transcriptions",
                    data={"model": "whisper-1", "background": "true"},
                    files={"file": ("said.wav", sound.content)},
                )
            ),
        }


@pytest.mark.timeout(600)  # some 10,000 requests
def test_no_request_that_the_document_allows_or_forbids_fails_the_server(gateway, resources, tmp_path):
    models = {
        "/": gateway.text,
        "/v2/embed": gateway.embedder,
        "/v1/embeddings": gateway.embedder,
        **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score"), gateway.reranker),
        **dict.fromkeys(("/classify", "/v1/classify"), gateway.classifier),
        "/v1/moderations": gateway.moderator,
        "/v1/audio/speech": "tts-1",
        "/v1/audio/trans": "whisper-1",
        "/v1/videos": gateway.video,
        "/v1/images": gateway.video,
    }
    done = subprocess.run(
        [
            *(str(Path(sys.executable).parent / "schemathesis"), "run", f"{gateway.url}/docs/openapi.json"),
            *("--checks", "not_a_server_error", "--max-examples", str(EXAMPLES), "--seed", str(SEED)),
            *("--workers", "2"),
            *("--phases", "examples,coverage,fuzzing", "--request-timeout", "60"),
            *("--header", f"Authorization: Bearer {gateway.key}"),
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(HERE),
            "SCHEMATHESIS_HOOKS": "document_hooks",
            "DOCUMENT_MODELS": json.dumps(models),
            "DOCUMENT_RESOURCES": json.dumps(resources),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert re.search(r"Selected: (\d+)/\1\s+Tested: \1\b", done.stdout), done.stdout[-6000:]
    statuses = Counter((tmp_path / "statuses.txt").read_text().split())
    assert statuses["200"] > sum(statuses.values()) / 5, f"too few requests reach a model: {statuses}"
