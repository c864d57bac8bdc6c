"""Runs an app: one uvicorn server in this process, which a signal stops without breaking what it is answering.

After SIGTERM or SIGINT: `/ready` answers 503 at once; new connections are accepted for `http.unready_s` seconds more;
answers and live sessions have `http.drain_s` seconds to end; what has not ended then is told so and ended. The app's
own parts (its engine) close after that. A second signal ends everything at once.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import cast

import uvicorn
from litestar import Litestar
from litestar.types import ASGIApp

from tessera.settings.http import HttpSettings
from tessera.web.bodies.memory import keep_large_allocations_apart
from tessera.web.bodies.pace import BodyPace
from tessera.web.draining import DrainedApp, Draining
from tessera.web.protocol import BoundedProtocol

MOST_FRAME_BYTES = 16 * 1024 * 1024
"""Most bytes of a WebSocket message; a larger one ends its connection."""
LAST_WORDS_S = 1.0
"""Seconds that streams have to send their error event, and cancelled requests their answer."""
LOOK_EVERY_S = 0.05
"""Seconds between two looks at what is still open."""
SAME_SIGNAL_S = 0.5
"""Seconds within which several signals count as one: `timeout` and `make` send SIGTERM to a process and its group."""


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which drains before it shuts down.

    Args:
        config: uvicorn's settings of the server.
        state: what its requests are told.
        unready_s: seconds for which it accepts connections although it is not ready.
        drain_s: seconds that open answers have to end.
    """

    def __init__(self, config: uvicorn.Config, state: Draining, *, unready_s: float, drain_s: float) -> None:
        super().__init__(config)
        self.state = state
        self.unready_s = unready_s
        self.drain_s = drain_s
        self._asked_at = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - whichever signal it is
        """Take a signal: the first begins to stop, another one ends at once."""
        if self.should_exit and time.monotonic() - self._asked_at > SAME_SIGNAL_S:
            self.force_exit = True
        elif not self.should_exit:
            self._asked_at = time.monotonic()
        super().handle_exit(signal.SIGTERM, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, end what is left, and shut down."""
        self.state.begin()
        await self._wait(lambda: False, self.unready_s)
        for listener in self.servers:
            listener.close()
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedProtocol):  # closes it when it is idle; a live session goes on
                connection.shutdown()
        tasks = self.server_state.tasks

        def is_done() -> bool:
            return not tasks and not self.state.has_open

        if not await self._wait(is_done, self.drain_s):
            self.state.end_all()
            if not await self._wait(is_done, LAST_WORDS_S):
                for task in list(tasks):
                    task.cancel()
                await self._wait(is_done, LAST_WORDS_S)
        await super().shutdown(sockets)

    async def _wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until `done`, for so many seconds at most and not after a second signal. Returns whether it is done."""
        until = time.monotonic() + seconds
        while not done() and time.monotonic() < until and not self.force_exit:  # noqa: ASYNC110 - uvicorn's
            await asyncio.sleep(LOOK_EVERY_S)
        return done()


def server(app: Litestar, *, host: str, port: int, http: HttpSettings | None = None) -> DrainingServer:
    """A server that is not running yet. Port 0 stands for a free port."""
    http = http or HttpSettings()
    pace = BodyPace(idle_s=http.body_idle_s, bytes_per_s=http.body_bytes_per_s)
    state = Draining()
    protocol = partial(BoundedProtocol, pace=pace, early=app.state.get("early"), draining=state)
    config = uvicorn.Config(
        DrainedApp(cast("ASGIApp", app), state),
        host=host,
        port=port,
        loop="uvloop",
        lifespan="on",
        http=cast("type[asyncio.Protocol]", protocol),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=65,
        ws_max_size=MOST_FRAME_BYTES,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
    )
    return DrainingServer(config, state, unready_s=http.unready_s, drain_s=http.drain_s)


def serve(app: Litestar, *, host: str, port: int, http: HttpSettings | None = None) -> None:
    """Serve until a signal. Returns when all connections are closed, at most `http.unready_s` and `http.drain_s` and
    some seconds after the signal."""
    keep_large_allocations_apart()
    for sign in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again when it has stopped. The signal has been obeyed by then: exit with success.
        signal.signal(sign, lambda *_: None)
    server(app, host=host, port=port, http=http).run()
