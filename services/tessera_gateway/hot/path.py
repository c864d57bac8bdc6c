"""The hot path: common requests of language models, answered below ASGI.

A POST of small JSON with an accepted key goes from the server's protocol (`tessera.web.early`) to an upstream, and the
response back (`exchange`), by callbacks: without an app, a handler or a task. Whatever is uncommon goes to the app:
another method or content type, a large body, no key, a page of a browser, an unknown model. So its errors are said in
one place.

Knows the routes that pass a body through unchanged, and nothing about what is in a body but its model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from litestar import Litestar

from tessera.errors import TesseraError
from tessera.web.early import ClientConnection, FrontDoor
from tessera.web.errors import CLIENT_CLOSED_REQUEST, ErrorShape
from tessera.web.middleware import new_request_id, safe_request_id
from tessera.wire.decoding import decode_json
from tessera_gateway.exchange import SENT_HEADERS
from tessera_gateway.hot.exchange import Exchange
from tessera_gateway.hot.requests import Head, HotRoute, Sender
from tessera_gateway.keys import KEY_HEADERS, Keys
from tessera_gateway.limits import Routed
from tessera_gateway.proxy import Proxy
from tessera_gateway.renaming import renamed_json

MOST_BYTES = 256 * 1024
"""Largest body that takes the hot path."""
MOST_OWNERS = 1024
"""Most values of `Authorization` headers whose owner is remembered. They are accepted keys, which are held anyway."""


class HotPath:
    """Answers what is common, and leaves the rest to the app. It is the gateway's `EarlyAnswers`.

    Args:
        routes: the hot routes by path.
        keys: the accepted keys.
        proxy: gives the proxy; only called while the app serves.
        most_bytes: largest JSON body that the routes take; larger ones are refused by the router.
        connect_timeout_s: most seconds to connect to an upstream.
    """

    door: FrontDoor

    def __init__(
        self,
        routes: Mapping[str, HotRoute],
        keys: Keys,
        proxy: Callable[[], Proxy],
        *,
        most_bytes: int,
        connect_timeout_s: float,
    ) -> None:
        self.urls = {path.encode(): route for path, route in routes.items()}
        self.keys = keys
        self.sender = Sender(proxy, connect_timeout_s)
        self.most_bytes = min(MOST_BYTES, most_bytes)
        self._owners: dict[bytes, str] = {}

    @asynccontextmanager
    async def lifespan(self, _: Litestar) -> AsyncIterator[None]:
        """Close idle connections when the app ends."""
        try:
            yield
        finally:
            self.sender.close()

    def behind(self, door: FrontDoor) -> None:
        """Implement `EarlyAnswers.behind`."""
        self.door = door
        self.budget = door.budget

    def head(self, url: bytes, headers: list[tuple[bytes, bytes]]) -> Head | None:
        """Implement `EarlyAnswers.head`."""
        length, content_type, request_id = -1, b"", ""
        sent: list[bytes] = []
        keys: dict[bytes, bytes] = {}
        for name, value in headers:
            meaning = _MEANING.get(name)
            if meaning is None:
                continue
            if meaning == "sent":
                sent += [name, b": ", value, b"\r\n"]
            elif meaning == "key":
                keys.setdefault(name, value)
            elif meaning == "length":
                length = int(value)
            elif meaning == "type":
                content_type = value
            elif meaning == "host":
                if self.door.sites.checked and not self.door.sites.is_host(value):
                    return None
            elif meaning == "id":
                request_id = request_id or safe_request_id(value)
            else:
                return None
        if not 0 < length <= self.most_bytes or not _is_json(content_type):
            return None
        try:
            owner = self._owner(keys)
        except TesseraError:
            return None
        return Head(url, owner, request_id or new_request_id(), sent)

    def left(self, head: Head) -> None:
        """Implement `EarlyAnswers.left`."""
        self.door.count(head.url.decode(), CLIENT_CLOSED_REQUEST, 0.0, head.request_id)

    def shape(self, head: Head) -> ErrorShape:
        """Implement `EarlyAnswers.shape`."""
        return self.urls[head.url].shape

    def answer(self, client: ClientConnection, head: Head, body: bytes) -> Exchange | None:
        """Implement `EarlyAnswers.answer`."""
        upstreams = self.sender.proxy.upstreams
        try:
            routed = decode_json(body, Routed)
        except TesseraError:
            return None
        route = self.urls[head.url]
        own, candidates = upstreams.known(routed.model, route.task, routed.prompt_cache_key or "")
        if not candidates or not self.budget.has_room(len(body)) or not route.takes(body):
            return None
        if route.ours_only and not all(upstream.ours for upstream in candidates):
            return None
        data = body if own == routed.model else renamed_json(body, own)
        return Exchange(client, self.door, self.sender, route, head, own, data, candidates)

    def _owner(self, keys: dict[bytes, bytes]) -> str:
        """The owner of a request. A header that was accepted is remembered, up to some: its digest takes longer to
        compute than all else that is checked.

        Raises:
            AuthenticationError: a key is required, and none is accepted.
        """
        authorization = keys.get(b"authorization", b"")
        owner = self._owners.get(authorization)
        if owner is None:
            owner = self.keys.owner_of(*[_text(keys.get(name)) for name in _KEYS])
            if self.keys.required and len(keys) == 1 and authorization and len(self._owners) < MOST_OWNERS:
                self._owners[authorization] = owner
        return owner


_KEYS = (b"authorization", *(name.encode() for name in KEY_HEADERS))
_MEANING = {
    b"content-length": "length",
    b"content-type": "type",
    b"host": "host",
    b"x-request-id": "id",
    b"origin": "a browser's page",
    b"transfer-encoding": "a body of unknown length",
    b"expect": "a client that waits before it sends the body",
    **dict.fromkeys(_KEYS, "key"),
    **dict.fromkeys([name.encode() for name in SENT_HEADERS], "sent"),
}
"""What a header is read for; what is not common is for the app. All other headers are not looked at."""


def _is_json(content_type: bytes) -> bool:
    return content_type == b"application/json" or content_type.partition(b";")[0].strip().lower() == b"application/json"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
