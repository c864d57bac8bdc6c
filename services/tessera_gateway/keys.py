"""API keys: who may use the gateway, and who owns a request.

Keys are held as SHA-256 digests, compared in constant time and never logged; an owner is the beginning of the digest.
Knows no route: `app` puts the guard in front of everything under `/v1`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import Any

from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.handlers import BaseRouteHandler

from tessera.errors import AuthenticationError, SettingsError

ANONYMOUS = "anonymous"
OWNER_HEX_DIGITS = 16
"""Hex digits of a key's digest that name its owner."""
KEY_HEADERS = ("x-api-key", "api-key")
"""Headers whose whole value is a key: Anthropic's clients send the first, Azure's the second."""
_HASHED = re.compile(r"^sha256:(?P<digest>[0-9a-fA-F]{64})$")


class Keys:
    """The accepted keys.

    Args:
        accepted: plain keys, or `sha256:<64 hex digits>` of keys. An empty list accepts everybody as `anonymous`.

    Raises:
        SettingsError: a key is empty or a digest is damaged. The message names its place in the list, never the key.
    """

    def __init__(self, accepted: Sequence[str]) -> None:
        self._digests = [_digest_of(entry, place) for place, entry in enumerate(accepted)]

    @property
    def required(self) -> bool:
        """Whether a request needs a key."""
        return bool(self._digests)

    def owner_of(self, authorization: str | None, *others: str | None) -> str:
        """The owner of a request, from the headers by which clients send keys; the first accepted key names the owner.

        Args:
            authorization: the `Authorization` header: `Bearer <key>`.
            others: headers whose whole value is a key (`KEY_HEADERS`).

        Raises:
            AuthenticationError: a key is required, and no header has an accepted one.
        """
        if not self._digests:
            return ANONYMOUS
        wrong = "an API key is required; send the header `Authorization: Bearer <key>` or `x-api-key: <key>`"
        if authorization is not None:
            scheme, _, key = authorization.partition(" ")
            if scheme.lower() == "bearer" and key.strip():
                if owner := self._owner(key):
                    return owner
                wrong = "this API key is not accepted here"
            else:
                wrong = "the Authorization header is not of the form `Bearer <key>`"
        for key in filter(None, others):
            if owner := self._owner(key):
                return owner
            wrong = "this API key is not accepted here"
        raise AuthenticationError(wrong)

    def owner_in(self, headers: Headers, *others: str) -> str:
        """The owner of a request, from its headers or from keys that came another way. Raises what `owner_of`
        raises."""
        return self.owner_of(headers.get("authorization"), *[headers.get(name) for name in KEY_HEADERS], *others)

    async def guard(self, connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        """A guard for routes: refuses a request without an accepted key before its body is read, and names its owner.

        It is asynchronous although it waits for nothing, because Litestar runs other guards in a thread.
        """
        connection.scope["tessera.owner"] = self.owner_in(connection.headers)  # type: ignore[typeddict-unknown-key]

    def _owner(self, key: str) -> str | None:
        """The owner of a key; None if the key is not accepted."""
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        # Every digest is compared, so the time does not reveal which one matched.
        if sum([hmac.compare_digest(digest, accepted) for accepted in self._digests]) == 0:
            return None
        return digest.hex()[:OWNER_HEX_DIGITS]


def _digest_of(entry: str, place: int) -> bytes:
    if hashed := _HASHED.match(entry):
        return bytes.fromhex(hashed["digest"])
    if entry.startswith("sha256:"):
        raise SettingsError(f"gateway.api_keys[{place}] begins with sha256: but is not followed by 64 hex digits")
    if not entry.strip():
        raise SettingsError(f"gateway.api_keys[{place}] is empty; remove it, or everybody may use the gateway")
    return hashlib.sha256(entry.strip().encode()).digest()
