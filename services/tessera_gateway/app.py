"""The gateway's app: keys in front of everything under `/v1`, limits per kind of route, upstreams behind it.

Makes the collaborators that handlers take as parameters, each once. Knows no model and no torch; state that must
survive the process is in Redis and in the services.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

import aiohttp
from litestar import Litestar, Router
from litestar.openapi.spec import SecurityScheme
from litestar.types import ControllerRouterHandler
from prometheus_client import CollectorRegistry

from tessera.api.mounting import mount_transcriptions, mount_videos
from tessera.api.transcriptions.submission import FORM_BYTES
from tessera.protocols.error_shapes import shape_of
from tessera.protocols.messages.errors import REQUEST_ID_HEADER, messages_shape
from tessera.settings.tree import Settings
from tessera.web.app import build_app
from tessera.web.bodies.spool import SpoolPlace
from tessera.web.dependencies import Opened, provide
from tessera.web.sites import sites_of
from tessera.wire.models import Card
from tessera_gateway.aliases import Aliases
from tessera_gateway.configured import configured
from tessera_gateway.hot.path import HotPath
from tessera_gateway.hot.requests import HotRoute
from tessera_gateway.keys import Keys
from tessera_gateway.live import LiveProxy, realtime
from tessera_gateway.metrics import GatewayMetrics
from tessera_gateway.proxy import Proxy
from tessera_gateway.responses.keeping import Responses, keeps_nothing
from tessera_gateway.responses.opening import opened_responses
from tessera_gateway.responses.relay import ResponseTail
from tessera_gateway.routes.audio import speech, transcriptions, translations
from tessera_gateway.routes.home import home
from tessera_gateway.routes.language import chat_completions, completions, detokenize, embeddings, tokenize
from tessera_gateway.routes.messages import count_tokens, create_message
from tessera_gateway.routes.models import list_models, retrieve_model
from tessera_gateway.routes.ollama import OLLAMA_ROUTES
from tessera_gateway.routes.ranking import RANKING_ROUTES
from tessera_gateway.routes.responses import RESPONSE_ROUTES
from tessera_gateway.sessions import upstream_session
from tessera_gateway.translated.translator import Translator
from tessera_gateway.upstreams import Upstreams

DESCRIPTION = """One address for text, vision, video and speech, in OpenAI's API.

`/health`, `/ready`, `/metrics` and `/docs` need no key: give them to your network, not to the world."""


def create_app(settings: Settings) -> Litestar:
    """Make the gateway's app. It connects to nothing before it serves.

    Raises:
        SettingsError: a key, an upstream or an alias of the settings is not valid.
    """
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    keys = Keys(settings.gateway.api_keys)
    upstreams = Upstreams(
        configured(settings),
        metrics,
        aliases=Aliases(settings.gateway.aliases),
        timeout_s=settings.gateway.connect_timeout_s,
    )

    @contextlib.asynccontextmanager
    async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
        async with upstream_session() as opened, upstreams.polling(opened):
            yield opened

    session = Opened(open_session)

    @contextlib.asynccontextmanager
    async def open_proxy() -> AsyncIterator[Proxy]:
        yield Proxy(
            upstreams,
            session.value,
            metrics,
            connect_timeout_s=settings.gateway.connect_timeout_s,
            idle_timeout_s=settings.gateway.idle_timeout_s,
        )

    @contextlib.asynccontextmanager
    async def open_live() -> AsyncIterator[LiveProxy]:
        yield LiveProxy(
            upstreams,
            session.value,
            metrics,
            keys,
            max_sessions=settings.gateway.max_live_sessions,
            connect_timeout_s=settings.gateway.connect_timeout_s,
        )

    @contextlib.asynccontextmanager
    async def open_translator() -> AsyncIterator[Translator]:
        yield Translator(proxy.value)

    proxy, live, translator = Opened(open_proxy), Opened(open_live), Opened(open_translator)

    @contextlib.asynccontextmanager
    async def open_responses() -> AsyncIterator[Responses]:
        async with opened_responses(settings, upstreams, translator.value) as opened:
            yield opened

    responses = Opened(open_responses)
    hot_path = HotPath(
        HOT_ROUTES,
        keys,
        lambda: proxy.value,
        most_bytes=settings.gateway.max_json_bytes,
        connect_timeout_s=settings.gateway.connect_timeout_s,
    )

    async def video_card(name: str | None) -> Card:
        return await upstreams.card(name, "video")

    async def transcription_card(name: str | None) -> Card:
        return await upstreams.card(name, "transcription")

    services = settings.gateway.services
    videos = mount_videos(settings, video_card) if "video" in services else None
    recordings = mount_transcriptions(settings, transcription_card) if "speech" in services else None
    mounted = [each for each in (videos, recordings) if each is not None]
    recording_bytes = settings.speech.max_job_bytes + FORM_BYTES if recordings else 0

    async def ready() -> Mapping[str, str]:
        return {**(await mounted[0].ready() if mounted else {}), **upstreams.states()}

    def behind_keys(handlers: list[ControllerRouterHandler], max_body_bytes: int) -> Router:
        security: list[dict[str, list[str]]] = [{name: []} for name in _SCHEMES] if keys.required else []
        return Router(
            "/",
            route_handlers=handlers,
            guards=[keys.guard],
            request_max_body_size=max_body_bytes,
            security=security,
        )

    return build_app(
        "gateway",
        [
            home,
            realtime,
            behind_keys(
                [list_models, retrieve_model, chat_completions, completions, embeddings, tokenize, detokenize, speech],
                settings.gateway.max_json_bytes,
            ),
            behind_keys([create_message, count_tokens, *OLLAMA_ROUTES], settings.gateway.max_json_bytes),
            behind_keys([*RESPONSE_ROUTES], settings.gateway.max_json_bytes),
            behind_keys([*RANKING_ROUTES], settings.gateway.max_json_bytes),
            behind_keys(
                [transcriptions, *(recordings.route_handlers if recordings else [])],
                max(recording_bytes, settings.gateway.max_body_bytes),
            ),
            behind_keys([translations], settings.gateway.max_body_bytes),
            *([behind_keys(videos.route_handlers, settings.gateway.max_json_bytes)] if videos else []),
        ],
        ready=ready,
        registry=registry,
        description=DESCRIPTION,
        lifespan=[
            session.lifespan,
            proxy.lifespan,
            live.lifespan,
            translator.lifespan,
            responses.lifespan,
            hot_path.lifespan,
            *(each for one in mounted for each in one.lifespan),
        ],
        dependencies={
            "upstreams": provide(upstreams),
            "proxy": proxy.provide,
            "live": live.provide,
            "translator": translator.provide,
            "responses": responses.provide,
            "transcription_jobs": provide(recordings.resources if recordings else None),
            "max_form_bytes": provide(settings.gateway.max_body_bytes),
            "spool": provide(SpoolPlace(settings.spool_dir, settings.http.spool_bytes)),
        },
        max_body_bytes=settings.gateway.max_json_bytes,
        security_schemes=_SCHEMES if keys.required else None,
        sites=sites_of(settings, checked=not keys.required),
        shape_of=shape_of,
        http=settings.http,
        early=hot_path,
    )


HOT_ROUTES: Mapping[str, HotRoute] = {
    "/v1/chat/completions": HotRoute("chat"),
    "/v1/completions": HotRoute("completions"),
    "/v1/embeddings": HotRoute("embeddings"),
    "/v1/audio/speech": HotRoute("speech"),
    "/v1/messages": HotRoute("chat", ours_only=True, shape=messages_shape, id_header=REQUEST_ID_HEADER.encode()),
    "/v1/responses": HotRoute("chat", ours_only=True, tail=ResponseTail, takes=keeps_nothing),
}
"""Routes that pass a body through unchanged and are asked for often."""


_SCHEMES: Mapping[str, SecurityScheme] = {
    "key": SecurityScheme(type="http", scheme="bearer", description="One of the gateway's API keys."),
    "x-api-key": SecurityScheme(
        type="apiKey", name="x-api-key", security_scheme_in="header", description="The same, as Anthropic's clients do."
    ),
}
