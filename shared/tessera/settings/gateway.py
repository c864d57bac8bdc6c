"""The settings of the gateway and of its upstreams."""

from __future__ import annotations

from typing import Annotated, get_args

import msgspec

from tessera.settings.section import PORT, NonNegative, Port, Positive, PositiveFloat, Section, Service, described

WELL_KNOWN = {
    "gpt-4o": "@chat",
    "whisper-1": "@transcription",
    "tts-1": "@speech",
    "text-embedding-3-small": "@embeddings",
    **dict.fromkeys(("gpt-3.5*", "gpt-4*", "gpt-5*", "gpt-realtime*", "chatgpt-*"), "@chat"),
    **dict.fromkeys(("o1*", "o3*", "o4*", "codex-*", "claude-*"), "@chat"),
    **dict.fromkeys(("gpt-4o-transcribe*", "gpt-4o-mini-transcribe*"), "@transcription"),
    **dict.fromkeys(("tts-1-hd*", "gpt-4o-mini-tts*"), "@speech"),
    **dict.fromkeys(("sora-2*", "gpt-image-*", "dall-e-*"), "@video"),
    **dict.fromkeys(("text-embedding-*", "embed-*", "jina-embeddings-*"), "@embeddings"),
    **dict.fromkeys(("rerank-*", "jina-reranker-*"), "@rerank"),
    **dict.fromkeys(("omni-moderation-*", "text-moderation-*"), "@moderations"),
}
"""Names of hosted models that clients have as their defaults, and what stands in for them here."""


class UpstreamSettings(Section, frozen=True, kw_only=True):
    """A server that the gateway routes to: one of our services, or anything that speaks OpenAI's API."""

    name: Annotated[str, described("Name of the upstream in logs and metrics.")]
    url: Annotated[str, described("Base address, without `/v1`.")]
    api_key: Annotated[str, described("Key that the gateway sends as a bearer token. Empty: it sends none.")] = ""


class GatewaySettings(Section, frozen=True, kw_only=True):
    """The gateway, the only public process."""

    host: Annotated[
        str, described("Address to listen on. `0.0.0.0` opens the gateway to the network: set `api_keys` then.")
    ] = "127.0.0.1"
    port: Annotated[Port, PORT] = 8000
    api_keys: Annotated[
        list[str],
        described("Bearer tokens that clients may use, as they are or as `sha256:<hex>`. Empty: nobody needs a key."),
    ] = []  # noqa: RUF012 - msgspec copies it
    max_body_bytes: Annotated[
        Positive, described("Largest request body in bytes, uploaded files included. Larger ones are answered 413.")
    ] = 64 * 1024 * 1024
    max_json_bytes: Annotated[Positive, described("Largest JSON body in bytes. Larger ones are answered 413.")] = (
        16 * 1024 * 1024
    )
    connect_timeout_s: Annotated[PositiveFloat, described("Seconds to wait for a connection to an upstream.")] = 5.0
    idle_timeout_s: Annotated[
        PositiveFloat, described("Seconds that an upstream may send nothing before its answer is given up.")
    ] = 300.0
    max_live_sessions: Annotated[
        Positive, described("Most live speech sessions (WebSockets) that one API key may have open at the same time.")
    ] = 16
    responses_ttl_s: Annotated[
        Positive, described("Seconds that a response is kept in Redis for `previous_response_id`. OpenAI's is 30 days.")
    ] = 30 * 24 * 3600
    responses_max_bytes: Annotated[
        Positive, described("Most bytes of kept responses of one API key. Above it the oldest are given up first.")
    ] = 256 * 1024 * 1024
    response_workers: Annotated[
        NonNegative,
        described("Processes that make responses with `background: true`. 0: none, and such requests are refused."),
    ] = 1
    concurrent_responses: Annotated[
        Positive, described("Responses that one of these processes makes at the same time.")
    ] = 8
    services: Annotated[
        list[Service], described("Our services that the gateway routes to: any of text, vision, video and speech.")
    ] = msgspec.field(default_factory=lambda: list(get_args(Service)))
    aliases: Annotated[
        dict[str, str],
        described(
            "Names that clients may ask for, and what they stand for: a model, or `@task` for the first model that "
            "does the task. `*` in a name stands for any characters. A model that an upstream lists under the name "
            "comes first. A table of your own replaces this; an empty one (`aliases = {}`) leaves models' own names."
        ),
    ] = msgspec.field(default_factory=lambda: dict(WELL_KNOWN))
    upstreams: Annotated[
        list[UpstreamSettings],
        described(
            "Servers beside our own services that speak OpenAI's API (vLLM, for example), each with `name`, `url` and "
            "`api_key`."
        ),
    ] = []  # noqa: RUF012 - msgspec copies it
