"""The engine's own process: an inbox thread, the stepping loop, an outbox thread.

A service's `worker` module calls `run`. The loop does not know which requests run together or what a step computes: the
`Engine` does.
"""

from __future__ import annotations

import logging
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from tessera.engine.connection import frame, receive
from tessera.errors import ErrorBody, InternalError, TesseraError
from tessera.wire.engine import (
    Cancel,
    Failed,
    FromEngine,
    Metrics,
    Ready,
    Shutdown,
    Stopped,
    ToEngine,
)

logger = logging.getLogger(__name__)

METRICS_EVERY_S = 1.0
"""Seconds between two `Metrics` messages while the engine has work."""


class Engine(Protocol):
    """The interface between the loop and an engine. All methods are called from one thread."""

    def ready(self) -> Ready:
        """Describe what was loaded. Called once."""
        ...

    def submit(self, message: ToEngine) -> None:
        """Queue a request. An exception fails this request alone."""
        ...

    def cancel(self, request_id: str) -> None:
        """Forget a request and free what it holds. An unknown id is no error."""
        ...

    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        ...

    def step(self) -> Iterable[FromEngine]:
        """Do one step of work for the requests that are due, and return their answers.

        An error of one request is answered with `Failed`; an exception ends the process.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Values for the service's `/metrics`."""
        ...


def run(build: Callable[[], Engine]) -> None:
    """Serve the socket whose descriptor is `argv[1]` until it closes, then exit.

    Args:
        build: loads the models. An exception is sent as `Stopped`, a `TesseraError` with its own message, and ends the
            process with status 1.
    """
    # Ctrl-C goes to the whole process group; only the service decides when its engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    outbox: queue.SimpleQueue[FromEngine | None] = queue.SimpleQueue()
    writer = threading.Thread(target=_write, args=(connection, outbox), name="outbox", daemon=True)
    writer.start()
    try:
        engine = build()
    except Exception as error:
        logger.exception("the engine cannot start")
        known = error if isinstance(error, TesseraError) else InternalError(f"the engine cannot start: {error!r}")
        outbox.put(Stopped(error=known.body()))
        outbox.put(None)
        writer.join(timeout=5)
        sys.exit(1)
    outbox.put(engine.ready())
    # Sent at once, so that the values of a process that died do not stay until the first request.
    outbox.put(Metrics(values=engine.metrics()))
    inbox: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), name="inbox", daemon=True).start()
    loop(engine, inbox, outbox)
    outbox.put(None)
    writer.join(timeout=5)


def loop(
    engine: Engine, inbox: queue.SimpleQueue[ToEngine | None], outbox: queue.SimpleQueue[FromEngine | None]
) -> None:
    """Take messages, do a step, send the answers, until the service closes the connection."""
    metrics_sent = 0.0
    while True:
        for message in _take(inbox, block=not engine.has_work()):
            if message is None or isinstance(message, Shutdown):
                return
            _dispatch(engine, message, outbox)
        if engine.has_work():
            for answer in engine.step():
                outbox.put(answer)
        now = time.monotonic()
        if now - metrics_sent >= METRICS_EVERY_S or not engine.has_work():
            outbox.put(Metrics(values=engine.metrics()))
            metrics_sent = now


def _take(inbox: queue.SimpleQueue[ToEngine | None], *, block: bool) -> Iterable[ToEngine | None]:
    if block:
        yield inbox.get()
    while True:
        try:
            yield inbox.get_nowait()
        except queue.Empty:
            return


def _dispatch(engine: Engine, message: ToEngine, outbox: queue.SimpleQueue[FromEngine | None]) -> None:
    if isinstance(message, Cancel):
        engine.cancel(message.request_id)
        return
    try:
        engine.submit(message)
    except Exception as error:  # noqa: BLE001 - `failed` logs it; one request's error does not end the others
        outbox.put(failed(getattr(message, "request_id", ""), error))


def _read(connection: socket.socket, inbox: queue.SimpleQueue[ToEngine | None]) -> None:
    try:
        while (message := receive(connection)) is not None:
            inbox.put(message)
    except OSError:
        logger.exception("the connection to the service broke")
    inbox.put(None)


def _write(connection: socket.socket, outbox: queue.SimpleQueue[FromEngine | None]) -> None:
    try:
        message = outbox.get()
        while message is not None:
            # The answers of one step to all requests are sent at once, so that the service wakes once.
            frames = bytearray(frame(message))
            try:
                while (message := outbox.get_nowait()) is not None:
                    frames += frame(message)
                connection.sendall(frames)
            except queue.Empty:
                connection.sendall(frames)
                message = outbox.get()
    except OSError:
        logger.info("the service has closed the connection")


def failed(request_id: str, error: Exception) -> Failed:
    """The answer to a request that raised `error`."""
    if isinstance(error, TesseraError):
        return Failed(request_id=request_id, error=error.body(), retry_after=error.retry_after)
    logger.error("request %s failed", request_id, exc_info=error)
    return Failed(
        request_id=request_id,
        error=ErrorBody(message="the engine failed on this request; its log says why", code=InternalError.code),
    )
