"""Runs an app of a test in uvicorn, as `tessera.web.serve` configures it, in a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from litestar import Litestar
from tests.waiting import until

from tessera.settings.http import HttpSettings
from tessera.web.serve import server


@contextlib.contextmanager
def served(app: Litestar, http: HttpSettings | None = None) -> Iterator[int]:
    """The port of a server that answers until the end of the context."""
    running = server(app, host="127.0.0.1", port=0, http=http)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    try:
        until(lambda: running.started, what="the server to start")
        yield running.servers[0].sockets[0].getsockname()[1]
    finally:
        running.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
