"""Refuses WebSockets of web pages of other origins: browsers let any page open one to any address.

For servers without keys. Where a key is required, a page without one is refused anyway.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection

from tessera.errors import PermissionDeniedError


def refuse_foreign_pages(connection: ASGIConnection[Any, Any, Any, Any], *, advice: str) -> None:
    """Let programs and pages of this server pass. Programs send no `Origin`; browsers always do.

    Args:
        connection: the connection that is asked for.
        advice: what the operator can do instead, for the message.

    Raises:
        PermissionDeniedError: the connection comes from a page of another origin.
    """
    origin = connection.headers.get("origin")
    if origin and urlsplit(origin).netloc != connection.headers.get("host"):
        raise PermissionDeniedError(f"a page of {origin[:200]} may not connect here; {advice}")
