"""Whether a WebSocket comes from a web page of somebody else: browsers let any page open one anywhere.

Does not know keys: where one is asked for, a page that has none gets nowhere.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection

from tessera.errors import PermissionDeniedError


def refuse_foreign_pages(connection: ASGIConnection[Any, Any, Any, Any], *, advice: str) -> None:
    """Let programs and our own pages pass. Programs send no `Origin`; browsers always do.

    Args:
        connection: as it wishes to connect.
        advice: what to do instead.

    Raises:
        PermissionDeniedError: a page of another origin.
    """
    origin = connection.headers.get("origin")
    if origin and urlsplit(origin).netloc != connection.headers.get("host"):
        raise PermissionDeniedError(f"a page of {origin[:200]} may not connect here; {advice}")
