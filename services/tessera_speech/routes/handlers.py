"""Every route of the speech service. OpenAI's shapes: the same paths, parameters and answers as their API."""

from __future__ import annotations

from tessera.web.models import MODEL_ROUTES
from tessera_speech.live.routes import realtime
from tessera_speech.routes.pieces import transcribe_piece
from tessera_speech.routes.speech import synthesize
from tessera_speech.routes.transcriptions import transcribe, translate

ROUTES = [*MODEL_ROUTES, translate, synthesize, realtime, transcribe_piece]
RECORDING_ROUTES = [transcribe]
"""Whose bodies may be as large as a job's recording."""
