"""Which names this server goes by, and which web pages may use it: a check in front of every route and WebSocket.

A browser lets any page send requests to any address. Two headers say who asks, and no page can forge them:

- `Host` is the name by which the page found the server. A page whose own name was pointed at this server's address
  after it was loaded (DNS rebinding) would be of the server's own origin, so names that strangers can register are
  refused. An IP address, `localhost`, a name without a dot and names of local networks cannot be registered.
- `Origin` is the page. A request that changes something (not GET, HEAD or OPTIONS) and every WebSocket must come from a
  page of this server, or from a program, which sends no `Origin`.

Where keys are required a foreign page has none, so nothing is refused. Origins that the operator allows are answered
CORS headers and preflight requests, with keys or without. Does not know keys or routes.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import urlsplit

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from tessera.errors import MisdirectedError, PermissionDeniedError, TesseraError
from tessera.settings.tree import Settings
from tessera.web.errors import shape_in

LOCAL_ENDS = (".localhost", ".local", ".internal", ".home.arpa", ".lan")
"""Ends of names that nobody can register on the internet: Kubernetes' (`.cluster.local`), Docker's, home networks'."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing here."""
PROBES = frozenset({"/health", "/ready"})
"""Paths that load balancers ask for with any `Host`; they tell nothing of a user's."""
PREFLIGHT_S = 600
"""Seconds that a browser may keep the answer to a preflight request."""
SHOWN_HEADERS = b"x-request-id, retry-after, retry-after-ms, x-should-retry, content-disposition"
"""Headers of an answer that an allowed page may read beside the usual ones."""
MAX_KNOWN = 1024
"""Most `Host` values whose verdict is remembered."""


class Sites:
    """The names of a server, and the origins of pages that may use it.

    Args:
        names: host names of this server; `*` stands for any name, `*.example.com` for all below `example.com`.
        origins: origins of pages beside the server's own; `*` stands for all pages.
        checked: whether anything is refused; False where every request needs a key.
    """

    def __init__(self, names: Iterable[str] = (), origins: Iterable[str] = (), *, checked: bool = True) -> None:
        self.names = frozenset(name.lower() for name in names)
        self.origins = frozenset(origin.lower() for origin in origins)
        self.checked = checked
        self._known: dict[bytes, bool] = {}

    def is_host(self, host: bytes) -> bool:
        """Whether the value of a `Host` header is a name of this server."""
        verdict = self._known.get(host)
        if verdict is None:
            verdict = self._is_host(host.decode("latin-1"))
            if len(self._known) < MAX_KNOWN:
                self._known[host] = verdict
        return verdict

    def _is_host(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        name = name.removesuffix(".")
        if "*" in self.names or name in self.names or "." not in name or name.endswith(LOCAL_ENDS):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return any(f"*.{parent}" in self.names for parent in _parents(name))
        return True

    def allows(self, origin: str) -> bool:
        """Whether the operator allows pages of `origin`."""
        return bool(self.origins) and ("*" in self.origins or origin.lower() in self.origins)

    def check(self, method: str, hosts: list[bytes], origin: str | None) -> None:
        """Let a request pass, or a WebSocket, whose method counts as changing.

        Args:
            method: method of the request.
            hosts: values of all its `Host` headers.
            origin: value of its `Origin` header; None without one.

        Raises:
            MisdirectedError: a `Host` is no name of this server.
            PermissionDeniedError: it changes something and comes from a page of another origin.
        """
        for host in hosts:
            if not self.is_host(host):
                shown = host[:200].decode("latin-1")
                raise MisdirectedError(
                    f"{shown!r} is not a name of this server; the operator can add it to http.allow_hosts, or set "
                    f"gateway.api_keys"
                )
        if origin is None or method in READING or self.allows(origin):
            return
        if not hosts or not _same_origin(origin, hosts[0].decode("latin-1")):
            raise PermissionDeniedError(
                f"a page of {origin[:200]!r} may not do this here; the operator can add it to http.allow_origins, or "
                f"set gateway.api_keys"
            )


def sites_of(settings: Settings, *, checked: bool = True) -> Sites:
    """The names of this machine and those by which the suite's parts call each other, and what the operator adds."""
    addresses = [settings.service_url(service) for service in ("text", "vision", "video", "speech")]
    hosts = [urlsplit(address).hostname or "" for address in (*addresses, f"//{settings.gateway.host}")]
    return Sites(
        [*hosts, socket.gethostname(), *settings.http.allow_hosts], settings.http.allow_origins, checked=checked
    )


class GuardedApp:
    """Wraps an ASGI app: refuses what `Sites` refuses, and answers pages of allowed origins what browsers ask for."""

    def __init__(self, app: ASGIApp, sites: Sites) -> None:
        self.app = app
        self.sites = sites

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts: list[bytes] = []
        origin: bytes | None = None
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origin = value
        is_http = scope["type"] == ScopeType.HTTP
        asks = cast("HTTPScope", scope)["method"] if is_http else "CONNECT"
        if self.sites.checked and not (asks in READING and scope["path"] in PROBES):
            try:
                self.sites.check(asks, hosts, None if origin is None else origin.decode("latin-1"))
            except TesseraError as error:
                await _refuse(error, scope, receive, send)
                return
        if is_http and origin is not None and self.sites.allows(origin.decode("latin-1")):
            if asks == "OPTIONS" and any(name == b"access-control-request-method" for name, _ in scope["headers"]):
                await send({"type": "http.response.start", "status": 204, "headers": _preflight(origin, scope)})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            await self.app(scope, receive, _with_cors(origin, send))
            return
        await self.app(scope, receive, send)


def _parents(name: str) -> list[str]:
    labels = name.split(".")
    return [".".join(labels[at:]) for at in range(1, len(labels))]


def _same_origin(origin: str, host: str) -> bool:
    """Whether a page's origin is the server that `Host` names. Ports that browsers leave out are the same as none."""
    try:
        page, server = urlsplit(origin), urlsplit(f"{urlsplit(origin).scheme}://{host}")
        default = {"http": 80, "https": 443}.get(page.scheme)
        return bool(page.hostname) and (page.hostname, page.port or default) == (
            server.hostname,
            server.port or default,
        )
    except ValueError:
        return False


def _preflight(origin: bytes, scope: Scope) -> list[tuple[bytes, bytes]]:
    asked = {name: value for name, value in scope["headers"] if name.startswith(b"access-control-request-")}
    headers = [
        *_cors(origin),
        (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE"),
        (b"access-control-max-age", str(PREFLIGHT_S).encode()),
    ]
    if names := asked.get(b"access-control-request-headers"):
        headers.append((b"access-control-allow-headers", names))
    if b"access-control-request-private-network" in asked:
        headers.append((b"access-control-allow-private-network", b"true"))
    return headers


def _cors(origin: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", SHOWN_HEADERS),
        (b"vary", b"Origin"),
    ]


def _with_cors(origin: bytes, send: Send) -> Send:
    async def send_with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *_cors(origin)]
        await send(message)

    return send_with_cors


async def _refuse(error: TesseraError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, or the handshake of a WebSocket, with an error."""
    reply = shape_in(scope).reply(error)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(reply.body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in reply.headers.items()]
    kind = "http.response"
    if scope["type"] == ScopeType.WEBSOCKET:
        kind = "websocket.http.response"
        await receive()  # the handshake
    start: Any = {"type": f"{kind}.start", "status": reply.status, "headers": headers}
    answer: Any = {"type": f"{kind}.body", "body": reply.body, "more_body": False}
    await send(start)
    await send(answer)
