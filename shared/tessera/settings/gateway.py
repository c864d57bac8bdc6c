"""The settings of the gateway and of its upstreams."""

from __future__ import annotations

from typing import Annotated, get_args

import msgspec

from tessera.settings.section import Port, Positive, PositiveFloat, Section, Service, says


class UpstreamSettings(Section, frozen=True, kw_only=True):
    """A server that the gateway routes to: one of our services, or anything that speaks OpenAI's API."""

    name: Annotated[str, says("How logs and metrics call it.")]
    url: Annotated[str, says("Base address without `/v1`.")]
    api_key: Annotated[str, says("Sent as a bearer token when not empty.")] = ""


class GatewaySettings(Section, frozen=True, kw_only=True):
    """The only public process."""

    host: Annotated[str, says("Address to listen on. `0.0.0.0` opens it to the network: set `api_keys` then.")] = (
        "127.0.0.1"
    )
    port: Annotated[Port, says("TCP port.")] = 8000
    api_keys: Annotated[
        list[str], says("Accepted bearer tokens, or their `sha256:<hex>`. Empty: everybody may use it.")
    ] = []  # noqa: RUF012 - msgspec copies it
    max_body_bytes: Annotated[Positive, says("Largest request body, files included.")] = 64 * 1024 * 1024
    max_json_bytes: Annotated[Positive, says("Largest JSON body.")] = 16 * 1024 * 1024
    connect_timeout_s: Annotated[PositiveFloat, says("Seconds to reach an upstream.")] = 5.0
    idle_timeout_s: Annotated[PositiveFloat, says("Seconds an upstream may stay silent within an answer.")] = 300.0
    max_live_sessions: Annotated[Positive, says("Live speech sessions (WebSockets) of one key at once.")] = 16
    services: Annotated[list[Service], says("Which of our services it fronts.")] = msgspec.field(
        default_factory=lambda: list(get_args(Service))
    )
    upstreams: Annotated[
        list[UpstreamSettings],
        says("Servers beside our own services: `name`, `url`, `api_key` of any that speaks OpenAI's API (a vLLM)."),
    ] = []  # noqa: RUF012 - msgspec copies it
