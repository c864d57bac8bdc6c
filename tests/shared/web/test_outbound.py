"""Nothing is sent to a private address, however it is written. The notations are checked against the C library's own
reading of them (`inet_aton`), which is what a resolver does with them."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from urllib.parse import urlsplit

import aiohttp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tessera.errors import InvalidRequestError
from tessera.web.outbound import PublicConnector, checked_url, public

PRIVATE = st.sampled_from(["10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"]).flatmap(
    lambda network: st.ip_addresses(v=4, network=network)
)


def accepted(url: str) -> bool:
    try:
        return checked_url(url, allow_hosts=[], param="webhook_url") == url
    except InvalidRequestError:
        return False


def number(value: int, form: str) -> str:
    return {"decimal": f"{value}", "octal": f"0{value:o}", "hex": f"0x{value:x}", "padded": f"{value:04d}"}[form]


@st.composite
def notations(draw: st.DrawFn) -> str:
    """A private IPv4 address in one of the ways in which some program understands it."""
    address = draw(PRIVATE)
    parts = draw(st.integers(1, 4))
    values = [*address.packed[: parts - 1], int.from_bytes(address.packed[parts - 1 :], "big")]
    forms = [draw(st.sampled_from(["decimal", "octal", "hex"])) for _ in values]
    host = ".".join(map(number, values, forms)) + draw(st.sampled_from(["", ".", ".."]))
    assert socket.inet_aton(host.rstrip(".")) == address.packed
    disguise = draw(st.sampled_from(["none", "percent", "fullwidth", "upper"]))
    if disguise == "percent":
        return "".join(f"%{ord(each):02x}" for each in host)
    if disguise == "fullwidth":
        return "".join(chr(ord(each) + 0xFEE0) if each.isdigit() else each for each in host)
    return host.upper() if disguise == "upper" else host


@given(notations())
def test_a_private_ipv4_address_is_refused_in_every_notation(host: str) -> None:
    assert not accepted(f"https://{host}/hook")
    assert not accepted(f"https://{host}:8443/hook")


def within(address: ipaddress.IPv4Address) -> list[str]:
    """IPv6 addresses that stand for an IPv4 address, by their RFC."""
    tail = f"{address.packed[:2].hex()}:{address.packed[2:].hex()}"
    flipped = bytes(byte ^ 0xFF for byte in address.packed)
    return [
        f"::ffff:{address}",  # mapped, RFC 4291
        f"::ffff:{tail}",
        f"::{tail}",  # compatible, RFC 4291
        f"::ffff:0:{tail}",  # translated, RFC 2765
        f"64:ff9b::{tail}",  # NAT64, RFC 6052
        f"64:ff9b:1::{tail}",  # NAT64 of a network, RFC 8215
        f"2002:{tail}::1",  # 6to4, RFC 3056
        f"2001:0:{tail}:0:ffff:{flipped[:2].hex()}:{flipped[2:].hex()}",  # Teredo, RFC 4380
        f"2606:4700::5efe:{tail}",  # ISATAP, RFC 5214
    ]


@given(PRIVATE, st.sampled_from(range(9)))
def test_an_ipv6_address_that_stands_for_a_private_one_is_refused(address: ipaddress.IPv4Address, which: int) -> None:
    host = within(address)[which]
    assert not accepted(f"https://[{host}]/hook")
    assert not accepted(f"https://[{ipaddress.ip_address(host).exploded}]/hook")
    assert not public(host), "what a name resolves to is judged alike"


@given(st.ip_addresses(v=6))
@example(ipaddress.ip_address("2606:4700:4700::1111"))
def test_an_ipv6_address_passes_only_if_it_is_a_global_unicast_address(address: ipaddress.IPv6Address) -> None:
    if accepted(f"https://[{address}]/hook"):
        assert address.is_global
        assert address in ipaddress.ip_network("2000::/3")
        assert not address.is_multicast
        assert address.ipv4_mapped is None
        assert address.sixtofour is None
        assert address.teredo is None


HOST_TEXT = st.text(alphabet="0123456789abcdefx.:[]%@\\/#?-_~ １．", max_size=24)


@given(HOST_TEXT)
def test_no_accepted_text_is_read_as_a_private_address_by_the_c_library(text: str) -> None:
    url = f"https://{text}/hook"
    if accepted(url):
        host = urlsplit(url).hostname
        assert host
        with contextlib.suppress(OSError):
            assert ipaddress.ip_address(socket.inet_aton(host.rstrip("."))).is_global
        assert host.isascii()


@pytest.mark.parametrize(
    "host",
    [
        "localhost.",
        "LOCALHOST",
        "api.internal.",
        "printer.local.",
        "redis.",
        "10.0.0.1.",
        "[fe80::1%25eth0]",
        "[2606:4700::1%25eth0]",
        "0177.0.0.1",
        "0x7f000001",
        "017700000001",
        "127.0.0.1%2eexample.com",
        "exa%6dple.com",
        "example..com",
        "example.com..",
        "-example.com",
        "１２７.0.0.1",
        "example.com\\@10.0.0.1",
        "",
    ],
)
def test_hosts_that_programs_read_differently_are_refused(host: str) -> None:
    assert not accepted(f"https://{host}/hook")


@pytest.mark.parametrize(
    "host",
    ["example.com", "example.com.", "a_b.example.co.uk", "xn--mnchen-3ya.de", "1.1.1.1", "[2606:4700:4700:0::1111]"],
)
def test_public_names_and_addresses_pass(host: str) -> None:
    assert accepted(f"https://{host}/hook")
    assert accepted(f"https://{host}:8443/hook")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "localhost"])
def test_a_literal_is_judged_again_when_it_is_connected_to(host: str) -> None:
    async def connect() -> None:
        async with aiohttp.ClientSession(connector=PublicConnector([])) as session:
            await session.post(f"http://{host}:9/hook")

    with pytest.raises(OSError, match="public address"):
        asyncio.run(connect())


def test_an_allowed_literal_is_connected_to() -> None:
    async def connect() -> int:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with (
            server,
            aiohttp.ClientSession(connector=PublicConnector(["127.0.0.1"])) as session,
            session.post(f"http://127.0.0.1:{port}/hook") as response,
        ):
            return response.status

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    assert asyncio.run(connect()) == 204
