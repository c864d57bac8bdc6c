"""Memory stays flat over many requests, whatever they are: whole, streamed, cut off, refused.

`TESSERA_TEST_SPEECH_REQUESTS=1000` makes it as many as in the issue; the suite's own are fewer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

SPEECH = "tiny-random-speech"
TRANSCRIPTION = "tiny-random-transcription"
REQUESTS = int(os.environ.get("TESSERA_TEST_SPEECH_REQUESTS", "160"))
AT_ONCE = 4
GROWTH_BYTES = 64 << 20
"""Of a process: what is compiled for lengths seen for the first time is kept for as many shapes as
`tessera.settings.load.CHILD_ENVIRONMENT` says. They are reached after some 600 requests; nothing comes after that."""


def resident(pid: int) -> int:
    """Bytes that a process holds for itself; files that it has mapped do not count."""
    pages = (Path("/proc") / str(pid) / "statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_memory_is_flat_over_many_requests(
    serving: Any,
    models_dir: Path,
    tmp_path: Path,
    synthesis_model: Any,
    transcription_model: Any,
    melody: Callable[..., Any],
    recording: Callable[..., bytes],
) -> None:
    sounds = [recording("wav", melody(seconds, 16_000), 16_000) for seconds in (0.5, 1.0, 2.0)]

    def one(number: int) -> None:
        with httpx.Client(base_url=service.url, timeout=60) as http:
            spoken = {"model": SPEECH, "input": f"Request number {number} says a few words. " * (1 + number % 3)}
            match number % 5:
                case 0:
                    assert http.post("/v1/audio/speech", json={**spoken, "response_format": "mp3"}).status_code == 200
                case 1:  # a client that leaves
                    with http.stream("POST", "/v1/audio/speech", json={**spoken, "response_format": "pcm"}) as answer:
                        next(answer.iter_bytes())
                case 2:
                    assert http.post("/v1/audio/speech", json={**spoken, "voice": "nobody"}).status_code == 400
                case _:
                    file = {"file": ("a.wav", sounds[number % 3])}
                    fields = {"model": TRANSCRIPTION, "response_format": ("json", "verbose_json")[number % 2]}
                    assert http.post("/v1/audio/transcriptions", data=fields, files=file).status_code == 200

    with serving(models_dir, tmp_path) as service, ThreadPoolExecutor(AT_ONCE) as pool:
        pids = (service.process.pid, service.engine_pid())
        list(pool.map(one, range(REQUESTS // 2)))
        before = [resident(pid) for pid in pids]
        list(pool.map(one, range(REQUESTS // 2, REQUESTS // 2 + REQUESTS)))
        after = [resident(pid) for pid in pids]
        grown = [late - early for early, late in zip(before, after, strict=True)]
        assert max(grown) < GROWTH_BYTES, f"after {REQUESTS} requests the service and its engine have grown by {grown}"
