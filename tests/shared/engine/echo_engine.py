"""An engine without a model, run as a process by the tests: says a request's tokens back, one a step.

A token of 66 makes the process exit, as a crash would; 77 makes it wait for a file's appearance before it goes on.
88 is refused, 99 is a fault.
In the environment, `ECHO_BROKEN` makes it fail to load, `ECHO_NONSENSE` makes the first one say what is no message, and
`ECHO_LINGERS` is how many seconds it takes to end once its line is cut.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from pathlib import Path

from tessera.engine.process import run
from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.wire.engine import Generate, GeneratedTokens, Ready

CRASH, WAIT, REFUSE, STUMBLE = 66, 77, 88, 99


class EchoEngine:
    """Implements `tessera.engine.process.Engine`."""

    def __init__(self) -> None:
        if os.environ.get("ECHO_BROKEN"):
            raise ModelLoadError("the echo is broken; mend it")
        self.queue: deque[tuple[str, deque[int]]] = deque()
        self.cancelled = 0

    def ready(self) -> Ready:
        return Ready(device="echo", cards=[], directories=["/nowhere"], report={"total_s": 0.0})

    def submit(self, message: Generate) -> None:
        if REFUSE in message.token_ids:
            raise InvalidRequestError("88 is not to be said", param="prompt")
        if STUMBLE in message.token_ids:
            raise RuntimeError("nobody thought of this")
        self.queue.append((message.request_id, deque(message.token_ids)))

    def cancel(self, request_id: str) -> None:
        kept = [item for item in self.queue if item[0] != request_id]
        self.cancelled += len(self.queue) - len(kept)
        self.queue = deque(kept)

    def has_work(self) -> bool:
        return bool(self.queue)

    def step(self) -> list[GeneratedTokens]:
        request_id, tokens = self.queue.popleft()
        token = tokens.popleft()
        if token == CRASH:
            marker = Path(os.environ["ECHO_FOLDER"]) / "crashed"
            if not marker.exists():
                marker.touch()
                os._exit(3)
        if token == WAIT:
            deadline = time.monotonic() + 30
            while not (Path(os.environ["ECHO_FOLDER"]) / "go").exists() and time.monotonic() < deadline:
                time.sleep(0.01)  # a script of its own, which cannot import `tests.waiting`
        if tokens:
            self.queue.append((request_id, tokens))
        return [GeneratedTokens(request_id=request_id, token_ids=[token], finish_reason=None if tokens else "stop")]

    def metrics(self) -> dict[str, float]:
        return {"cancelled": self.cancelled, "queued": len(self.queue)}


if __name__ == "__main__":
    if os.environ.get("ECHO_NONSENSE") and not (folder := Path(os.environ["ECHO_FOLDER"]) / "said").exists():
        folder.touch()
        os.write(int(sys.argv[1]), b"\x00\x00\x00\x05hello")
        time.sleep(30)  # until its client ends it
    run(EchoEngine)
    if lingers := os.environ.get("ECHO_LINGERS"):
        os.close(int(sys.argv[1]))
        time.sleep(float(lingers))  # a process that stays behind its closed line is what is tested
