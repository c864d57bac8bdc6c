"""Addresses that a client names and this server connects to, checked when they are given and when they are used.

Public and https, or a host that the operator allows. A host is written in one way only: a name of plain labels, a
dotted IPv4 address, or an IPv6 address in brackets. Other notations (octal, hexadecimal, one number, percent-encoded)
mean different hosts to different parsers, so they are refused, as are IPv6 addresses that stand for IPv4 ones.

What is connected to is what was checked: the connector checks literals and the resolver what a name turns out to be, so
a name cannot change between check and use. Does not know what is sent there.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import aiohttp.abc
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from tessera.errors import InvalidRequestError

MAX_URL_CHARS = 2048
"""Most characters of an address."""
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""The only IPv6 addresses that are assigned to hosts of the internet. Outside of it are all others that hold an IPv4
address: mapped, compatible, translated, and those of NAT64 (`64:ff9b::/96`, `64:ff9b:1::/48`)."""
ISATAP_MARKS = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")
"""Bytes 8 to 12 of an IPv6 address that ends with the IPv4 address of a tunnel (RFC 5214)."""
INSIDE = ("localhost", "local", "internal", "localdomain", "home.arpa", "lan", "intranet", "corp", "private")
"""Ends of names that are never on the public internet."""
_NAME = re.compile(r"^(?=.{1,253}$)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)+[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?$")


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
        client_host = URL(url).raw_host or ""
    except ValueError as error:
        raise refused(f"is no address: {error}") from error
    if not host or parts.scheme not in ("https", "http") or not url.isascii() or not url.isprintable() or " " in url:
        raise refused("is no https address")
    if "@" in parts.netloc:
        raise refused("holds a name or password: whoever needs one checks the signature instead")
    if _compressed(host) != client_host.lower():
        raise refused("writes its host in a way that not everybody reads alike; write a plain name or address")
    if host in allow_hosts:
        return url
    if parts.scheme != "https":
        raise refused("is not https (an operator can allow a host: webhooks.allow_hosts)")
    if not public(host):
        raise refused("is not a public address (an operator can allow a host: webhooks.allow_hosts)")
    return url


def public(host: str) -> bool:
    """Whether a host may be on the public internet: a name, which is resolved later, or a public address.

    Args:
        host: a name or an address in lower case, without brackets.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # One dot at the end is how a name is written in full. A last label that begins with a digit is no name, but
        # an address in a notation that resolvers understand: 2130706433, 0x7f.1, 127.1, 10.0.0.1.
        name = host.removesuffix(".")
        return bool(_NAME.match(name)) and not any(name == end or name.endswith(f".{end}") for end in INSIDE)
    if isinstance(address, ipaddress.IPv6Address):
        tunnel = address.sixtofour or address.teredo or address.packed[8:12] in ISATAP_MARKS
        if tunnel or address not in GLOBAL_UNICAST or address.scope_id:
            return False
    return address.is_global and not address.is_multicast


def _compressed(host: str) -> str:
    """An IPv6 address in its shortest form; any other host as it is."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


class PublicConnector(aiohttp.TCPConnector):
    """Connects to public addresses, and to the hosts of `allow_hosts` whatever their addresses are."""

    def __init__(self, allow_hosts: Collection[str]) -> None:
        super().__init__(resolver=PublicResolver(allow_hosts), use_dns_cache=False)
        self.allow_hosts = frozenset(allow_hosts)

    async def connect(self, req: aiohttp.ClientRequest, *arguments: Any, **options: Any) -> Any:
        """Implement `BaseConnector.connect`. A literal address never comes to the resolver, so it is checked here.

        Raises:
            OSError: the host of the request is not public.
        """
        host = req.url.host or ""
        if host not in self.allow_hosts and not public(host):
            raise OSError(None, f"{host} is not a public address")
        return await super().connect(req, *arguments, **options)


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
