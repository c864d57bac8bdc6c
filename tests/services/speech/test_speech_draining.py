"""Live sessions of a service that is told to stop: they may finish, and one that does not is told why it ends."""

from __future__ import annotations

import base64
import json
import time
from collections import deque
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.waiting import until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
WAIT_S = 60.0


def live(service: Any, query: str = "") -> ClientConnection:
    return connect(service.url.replace("http", "ws") + "/v1/realtime" + query)


def heard(line: ClientConnection, kind: str) -> dict[str, Any]:
    """The next event of a kind."""
    deadline = time.monotonic() + WAIT_S
    while (event := json.loads(line.recv(deadline - time.monotonic())))["type"] != kind:
        assert event["type"] != "error", event
    return event


def closes(line: ClientConnection) -> int:
    """The code with which the server closes, after what it still says."""
    with pytest.raises(ConnectionClosed) as closed:
        deque(line, maxlen=0)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def refuses(service: Any) -> bool:
    try:
        httpx.get(service.url + "/ready")
    except httpx.TransportError:
        return True
    return False


def test_a_session_finishes_what_it_began(
    serving: Any, models_dir: Path, synthesis_model: Any, transcription_model: Any, tmp_path: Path, melody: Any
) -> None:
    samples = (np.clip(melody(2.0, 24_000), -1, 1) * 32767).astype("<i2").tobytes()
    manual = {"type": "transcription", "audio": {"input": {"transcription": {}, "turn_detection": None}}}
    with serving(models_dir, tmp_path, drain_s=WAIT_S) as service:
        with live(service, "?intent=transcription") as line:
            line.send(json.dumps({"type": "session.update", "session": manual}))
            heard(line, "session.updated")
            service.process.terminate()
            until(lambda: refuses(service), what="the service to accept nobody any more")
            audio = base64.b64encode(samples).decode()
            line.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
            line.send(json.dumps({"type": "input_audio_buffer.commit"}))
            assert heard(line, "conversation.item.input_audio_transcription.completed")["transcript"]
            assert service.process.poll() is None
        assert service.process.wait(WAIT_S) == 0


def test_a_session_that_does_not_finish_is_told(
    serving: Any,
    models_dir: Path,
    synthesis_model: Any,
    transcription_model: Any,
    tmp_path: Path,
    chat: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat, "behave", "endless")
    with serving(models_dir, tmp_path, drain_s=0.5, conversation_url=chat.url) as service:
        with live(service) as speaks, live(service) as waits:
            speaks.send(json.dumps({"type": "response.create", "response": {"output_modalities": ["audio"]}}))
            heard(speaks, "response.output_audio.delta")
            heard(waits, "session.created")
            service.process.terminate()
            for line in (speaks, waits):
                event: dict[str, Any] = {}
                while event.get("type") != "error":
                    event = json.loads(line.recv(WAIT_S))
                assert event["error"]["code"] == "unavailable"
                assert "stopping" in event["error"]["message"]
                assert closes(line) == 1012
        assert service.process.wait(WAIT_S) == 0
