"""Every route of the speech service. OpenAI's shapes: the same paths, parameters and answers as their API."""

from __future__ import annotations

from tessera.web.models import MODEL_ROUTES
from tessera_speech.live.routes import realtime
from tessera_speech.speech_routes import synthesize
from tessera_speech.transcription_routes import TRANSCRIPTION_ROUTES

ROUTES = [*MODEL_ROUTES, *TRANSCRIPTION_ROUTES, synthesize, realtime]
