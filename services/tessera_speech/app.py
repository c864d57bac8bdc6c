"""The speech service's app."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import aiohttp
from litestar import Litestar
from prometheus_client import CollectorRegistry, Histogram

from tessera.language.service import EngineHost
from tessera.settings import Settings
from tessera.web.app import build_app
from tessera.web.metrics import SECONDS
from tessera_speech.live.routes import LiveSeats
from tessera_speech.live.thinking import Thinker
from tessera_speech.pipeline import SpeechTools
from tessera_speech.routes import ROUTES

FORM_BYTES = 1024 * 1024
"""What a form may have beside its file."""


def create_app(settings: Settings) -> Litestar:
    """Make the app; its engine starts and ends with it."""
    registry = CollectorRegistry()
    first_audio = Histogram(
        "tessera_speech_first_audio_seconds",
        "Time from a speech request to the first bytes of its audio.",
        buckets=SECONDS,
        registry=registry,
    )
    host: EngineHost[SpeechTools] = EngineHost(
        "speech",
        "tessera_speech.worker",
        registry,
        lambda ready, engine: SpeechTools(ready, engine, settings.speech, first_audio),
    )

    url = settings.speech.conversation_url or settings.service_url("text")

    @contextlib.asynccontextmanager
    async def thinking(app: Litestar) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as session:
            app.state.thinker = Thinker(session, url, settings.speech.conversation_key)
            yield

    return build_app(
        "speech",
        ROUTES,
        ready=host.states,
        registry=registry,
        description="Speech synthesis and transcription with OpenAI's shapes.",
        lifespan=[host.lifespan, thinking],
        state={"host": host, "models": host.models, "live_seats": LiveSeats(settings.speech.max_live_sessions)},
        max_body_bytes=settings.speech.max_audio_bytes + FORM_BYTES,
    )
