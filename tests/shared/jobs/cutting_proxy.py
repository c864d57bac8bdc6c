"""A TCP proxy between a program and a server that does what networks do: cuts, delays, goes silent, cuts half way."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class CuttingProxy:
    """Listens on a port of 127.0.0.1 and passes bytes on, both ways, in threads.

    Args:
        target: a Unix socket's path, or host and port.
    """

    def __init__(self, target: str | tuple[str, int]) -> None:
        self.target = target
        self.delay_s = 0.0
        """How long each piece is held, each way."""
        self.silent = False
        """Half open: connections stay, or are accepted, and nothing passes any more, either way."""
        self.refuses = False
        """New connections are closed at once."""
        self.left: int | None = None
        """So many more bytes go to the server; then the connection that sends them is cut."""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close all connections there are."""
        with self._lock:
            lines = list(self._open)
            self._open.clear()
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses:
                line.close()
                continue
            try:
                server = self._connect()
            except OSError:
                line.close()
                continue
            with self._lock:
                self._open |= {line, server}
            for source, sink, counted in ((line, server, True), (server, line, False)):
                threading.Thread(target=self._pass, args=(source, sink, counted), daemon=True).start()

    def _connect(self) -> socket.socket:
        if isinstance(self.target, str):
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.target)
            return server
        return socket.create_connection(self.target)

    def _pass(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(65536):
                while self.silent and not self._closing.is_set():
                    time.sleep(0.01)
                if self.delay_s:
                    time.sleep(self.delay_s)
                if counted and self.left is not None:
                    data = data[: self.left]
                    self.left -= len(data)
                    if not self.left:
                        with contextlib.suppress(OSError):
                            sink.sendall(data)
                        break
                sink.sendall(data)
        for line in (source, sink):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
        with self._lock:
            self._open -= {source, sink}
