"""Runs an app: one uvicorn server in this process, stopped by SIGTERM or SIGINT, which gives streams time to end."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import cast

import uvicorn
from litestar import Litestar

from tessera.settings.http import HttpSettings
from tessera.web.bodies.memory import keep_large_allocations_apart
from tessera.web.protocol import BodyPace, BoundedProtocol

GRACE_S = 5
"""Seconds that open connections have to end after a signal."""
MOST_FRAME_BYTES = 16 * 1024 * 1024
"""Most bytes of a WebSocket message; a larger one ends its connection."""


def server(app: Litestar, *, host: str, port: int, http: HttpSettings | None = None) -> uvicorn.Server:
    """A server that is not running yet. Port 0 stands for a free port."""
    http = http or HttpSettings()
    pace = BodyPace(idle_s=http.body_idle_s, bytes_per_s=http.body_bytes_per_s)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http=cast("type[asyncio.Protocol]", partial(BoundedProtocol, pace=pace)),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=65,
        ws_max_size=MOST_FRAME_BYTES,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    return uvicorn.Server(config)


def serve(app: Litestar, *, host: str, port: int, http: HttpSettings | None = None) -> None:
    """Serve until a signal. Returns when all connections are closed, at most `GRACE_S` seconds after the signal."""
    keep_large_allocations_apart()
    for sign in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again when it has stopped. The signal has been obeyed by then: exit with success.
        signal.signal(sign, lambda *_: None)
    server(app, host=host, port=port, http=http).run()
