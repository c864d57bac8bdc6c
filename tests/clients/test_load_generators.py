"""Load generators of the field: guidellm, AIPerf, and SGLang's requests as its benchmark writes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
QUIET = {"HF_HUB_DISABLE_TELEMETRY": "1", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}


def run(command: list[str], directory: Path, seconds: float = 280) -> str:
    """Run a client's command in a directory of its own. Returns what it said; a failure shows it."""
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **QUIET, "HOME": str(directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def tokenizer() -> Path:
    """The directory of the text starter, for clients that count tokens themselves."""
    found = next((ROOT / ".tessera" / "models").glob("smollm2-135m-instruct*/**/tokenizer.json"), None)
    if found is None:
        pytest.skip("the starter's tokenizer is on the machine of the gateway, not here")
    return found.parent


@pytest.mark.parametrize("kind", ["/v1/chat/completions", "/v1/completions"])
def test_guidellm_measures_without_a_failed_request(gateway, tokenizer, tmp_path, kind):
    run(
        [
            str(BIN / "guidellm"),
            "run",
            "--backend",
            f"kind=openai_http,target={gateway.url},model={gateway.text},api_key={gateway.key},request_format={kind}",
            "--profile",
            "kind=concurrent,streams=2",
            "--constraint",
            "kind=max_requests,count=4",
            "--tokenizer",
            f"kind=hf_auto,model={tokenizer}",
            "--data",
            "kind=synthetic_text,prompt_tokens=20,output_tokens=8",
            "--output",
            "kind=json,path=report.json",
            "--disable-console",
        ],
        tmp_path,
    )
    report = json.loads((tmp_path / "report.json").read_text())
    requests = report["benchmarks"][0]["requests"]
    assert not requests["errored"], requests["errored"][0]
    assert requests["successful"]


def test_aiperf_measures_without_a_failed_request(gateway, tokenizer, tmp_path):
    run(
        [
            str(BIN / "aiperf"),
            "profile",
            *("--model", gateway.text, "--url", gateway.url, "--api-key", gateway.key, "--endpoint-type", "chat"),
            *("--streaming", "--tokenizer", str(tokenizer), "--concurrency", "2", "--request-count", "4"),
            *("--synthetic-input-tokens-mean", "20", "--output-tokens-mean", "8"),
            *("--artifact-dir", str(tmp_path / "artifacts"), "--ui", "none"),
            *("--workers-max", "1", "--record-processors", "1", "--no-server-metrics", "--no-gpu-telemetry"),
        ],
        tmp_path,
    )
    report = json.loads((tmp_path / "artifacts" / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == 4
    assert not report.get("error_summary")


def test_the_requests_of_sglangs_benchmark_are_answered(gateway):
    """As `sglang.bench_serving --backend vllm` (completions) and `--backend vllm-chat` write them."""
    common = {
        "model": gateway.text,
        "temperature": 0.0,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    completion = {**common, "prompt": "Count to ten.", "best_of": 1, "max_tokens": 8}
    chat = {**common, "messages": [{"role": "user", "content": "Count to ten."}], "max_completion_tokens": 8}
    headers = {"authorization": f"Bearer {gateway.key}"}
    for route, body in (("completions", completion), ("chat/completions", chat)):
        answer = httpx.post(f"{gateway.v1}/{route}", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        assert events[-1]["usage"]["completion_tokens"] == 8
