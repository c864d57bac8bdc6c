"""The app of the speech service: its engine, its collaborators and its routes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import aiohttp
from litestar import Litestar, Router
from prometheus_client import CollectorRegistry, Histogram

from tessera.api.job_maintenance import maintain_jobs
from tessera.api.mounting import mount_transcriptions
from tessera.api.transcriptions.submission import FORM_BYTES as JOB_FORM_BYTES
from tessera.engine.host import EngineHost
from tessera.errors import UnavailableError
from tessera.settings.tree import Settings
from tessera.web.app import build_app
from tessera.web.dependencies import Opened, provide
from tessera.web.metrics import SECONDS
from tessera.web.models import find_model
from tessera.web.sites import sites_of
from tessera.wire.models import Card, ModelList
from tessera_speech.live.chat_client import ChatClient
from tessera_speech.live.routes import LiveSessionLimit
from tessera_speech.pipeline import SpeechHost, SpeechTools
from tessera_speech.routes.handlers import RECORDING_ROUTES, ROUTES

FORM_BYTES = 1024 * 1024
"""Most bytes of a form beside its file."""


def create_app(settings: Settings) -> Litestar:
    """Make the app; its engine starts and ends with it."""
    registry = CollectorRegistry()
    first_audio = Histogram(
        "tessera_speech_first_audio_seconds",
        "Time from a speech request to the first bytes of its audio.",
        buckets=SECONDS,
        registry=registry,
    )
    host: SpeechHost = EngineHost(
        "speech",
        "tessera_speech.worker",
        registry,
        lambda ready, engine: SpeechTools(ready, engine, settings.speech, first_audio),
    )

    url = settings.speech.conversation_url or settings.service_url("text")

    @contextlib.asynccontextmanager
    async def open_chat_client() -> AsyncIterator[ChatClient]:
        async with aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as session:
            yield ChatClient(session, url, settings.speech.conversation_key)

    async def card_of(name: str | None) -> Card:
        """The card of the model that transcribes a job; by default of the only one."""
        models = host.models()
        able = [model for model in models.data if model.card is not None and "transcription" in model.card.tasks]
        if not able:
            raise UnavailableError("the speech engine is still loading its model", retry_after=host.engine.ready_in_s())
        found = find_model(ModelList(data=able), name or able[0].id)
        assert found.card is not None
        return found.card

    chat_client = Opened(open_chat_client)
    jobs = mount_transcriptions(settings, card_of)
    max_upload_bytes = settings.speech.max_audio_bytes + FORM_BYTES
    recordings = Router(
        "/",
        route_handlers=[*RECORDING_ROUTES, *jobs.route_handlers],
        request_max_body_size=max(settings.speech.max_job_bytes + JOB_FORM_BYTES, max_upload_bytes),
    )
    return build_app(
        "speech",
        [*ROUTES, recordings],
        ready=host.states,
        registry=registry,
        description="Speech synthesis and transcription with OpenAI's shapes.",
        lifespan=[host.lifespan, chat_client.lifespan, *jobs.lifespan, maintain_jobs(settings)],
        dependencies={
            "models": provide(host.models),
            "host": provide(host),
            "chat_client": chat_client.provide,
            "live_sessions": provide(LiveSessionLimit(settings.speech.max_live_sessions)),
            "transcription_jobs": provide(jobs.resources),
            "max_upload_bytes": provide(max_upload_bytes),
        },
        max_body_bytes=max_upload_bytes,
        sites=sites_of(settings),
        http=settings.http,
    )
