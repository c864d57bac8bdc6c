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
from litestar.handlers import BaseRouteHandler

from tessera.errors import AuthenticationError, SettingsError

ANONYMOUS = "anonymous"
OWNER_HEX_DIGITS = 16
"""Hex digits of a key's digest that name its owner."""
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

    def owner_of(self, authorization: str | None) -> str:
        """The owner of a request, from its `Authorization` header.

        Raises:
            AuthenticationError: a key is required, and the header is missing or has no accepted key.
        """
        if not self._digests:
            return ANONYMOUS
        if authorization is None:
            raise AuthenticationError("an API key is required; send the header `Authorization: Bearer <key>`")
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise AuthenticationError("the Authorization header is not of the form `Bearer <key>`")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        # Every digest is compared, so the time does not reveal which one matched.
        if sum([hmac.compare_digest(digest, accepted) for accepted in self._digests]) == 0:
            raise AuthenticationError("this API key is not accepted here")
        return digest.hex()[:OWNER_HEX_DIGITS]

    def guard(self, connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        """A guard for routes: refuses a request without an accepted key before its body is read, and names its
        owner."""
        connection.scope["tessera.owner"] = self.owner_of(  # type: ignore[typeddict-unknown-key]
            connection.headers.get("authorization")
        )


def _digest_of(entry: str, place: int) -> bytes:
    if hashed := _HASHED.match(entry):
        return bytes.fromhex(hashed["digest"])
    if entry.startswith("sha256:"):
        raise SettingsError(f"gateway.api_keys[{place}] begins with sha256: but is not followed by 64 hex digits")
    if not entry.strip():
        raise SettingsError(f"gateway.api_keys[{place}] is empty; remove it, or everybody may use the gateway")
    return hashlib.sha256(entry.strip().encode()).digest()
