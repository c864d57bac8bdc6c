"""Running an app: one uvicorn server in this process, stopped by SIGTERM or SIGINT, streams given time to end.

Does not know which app.
"""

from __future__ import annotations

import uvicorn
from litestar import Litestar

GRACE_S = 5


def serve(app: Litestar, *, host: str, port: int) -> None:
    """Serve until a signal. Returns when all connections are closed, at most `GRACE_S` seconds after the signal."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http="httptools",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=65,
        timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=64 * 1024,
    )
    uvicorn.Server(config).run()
