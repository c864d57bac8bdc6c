"""The pool of connections to upstreams, for the gateway and for its worker alike."""

from __future__ import annotations

from typing import Any

import aiohttp

POOL_KEEP_ALIVE_S = 4.0
"""Seconds after which an idle connection is closed: before common servers do it (5 s), so that no request is sent over
a closing one."""
DNS_CACHE_S = 5
"""Seconds for which the addresses of an upstream are cached."""


def upstream_session() -> aiohttp.ClientSession:
    """A pool of connections to upstreams, without decompression, cookies or a proxy from the environment."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=POOL_KEEP_ALIVE_S, ttl_dns_cache=DNS_CACHE_S)
    arguments: dict[str, Any] = {"connector": connector, "cookie_jar": aiohttp.DummyCookieJar()}
    return aiohttp.ClientSession(auto_decompress=False, trust_env=False, **arguments)
