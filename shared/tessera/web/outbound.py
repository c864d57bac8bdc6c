"""Addresses that a client names and this server connects to, checked when they are given and when they are resolved.

Public and https, or a host that the operator allows. What is connected to is what was checked: the resolver refuses
addresses that are not public, so a name cannot change between check and use. Does not know what is sent there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

import aiohttp
import aiohttp.abc
from aiohttp.resolver import ThreadedResolver

from tessera.errors import InvalidRequestError

MAX_URL_CHARS = 2048
"""Most characters of an address."""
NAT64_NETWORK = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv6 addresses that stand for IPv4 addresses behind NAT64 (RFC 6052)."""


def checked_url(url: str, *, allow_hosts: Collection[str], param: str) -> str:
    """`url`, if its text allows that something is sent there.

    Raises:
        InvalidRequestError: it is no https address of a public host, or has a user name and password.
    """

    def refused(why: str) -> InvalidRequestError:
        return InvalidRequestError(f"`{param}` {why}", param=param)

    if len(url) > MAX_URL_CHARS:
        raise refused(f"has {len(url)} characters; the limit is {MAX_URL_CHARS}")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise refused(f"is no address: {error}") from error
    if not host or parts.scheme not in ("https", "http") or not url.isascii() or any(c.isspace() for c in url):
        raise refused("is no https address")
    if parts.username or parts.password:
        raise refused("holds a name or password: whoever needs one checks the signature instead")
    if host in allow_hosts:
        return url
    if parts.scheme != "https":
        raise refused("is not https (an operator can allow a host: webhooks.allow_hosts)")
    if not public(host):
        raise refused("is not a public address (an operator can allow a host: webhooks.allow_hosts)")
    return url


def public(host: str) -> bool:
    """Whether a host may be on the public internet: a name, which is resolved later, or a public address."""
    if host == "localhost" or host.endswith((".localhost", ".local", ".internal")):
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # Other notations of an IPv4 address that resolvers understand: 2130706433, 0x7f.1, 127.1
        return not host.rsplit(".", 1)[-1][:1].isdigit() and "." in host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif address.sixtofour or address.teredo or address in NAT64_NETWORK:
            return False  # an IPv4 address within, which may be private
    return address.is_global and not address.is_multicast


class PublicResolver(aiohttp.abc.AbstractResolver):
    """Resolves names to public addresses only, and the names of `allow_hosts` to any address."""

    def __init__(self, allow_hosts: Collection[str]) -> None:
        self.allow_hosts = frozenset(allow_hosts)
        self._resolver = ThreadedResolver()

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[aiohttp.abc.ResolveResult]:
        """Implement `AbstractResolver.resolve`. Raises `OSError` if no address may be used."""
        found = await self._resolver.resolve(host, port, family)  # type: ignore[arg-type]
        if host not in self.allow_hosts:
            found = [one for one in found if public(one["host"].partition("%")[0])]
        if not found:
            raise OSError(None, f"{host} has no public address")
        return found

    async def close(self) -> None:
        """Implement `AbstractResolver.close`."""
        await self._resolver.close()
