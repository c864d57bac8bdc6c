"""The routes of the speech service, with the paths, parameters and answers of OpenAI's API."""

from __future__ import annotations

from tessera.web.models import MODEL_ROUTES
from tessera_speech.live.routes import realtime
from tessera_speech.routes.pieces import transcribe_piece
from tessera_speech.routes.speech import synthesize
from tessera_speech.routes.transcriptions import transcribe, translate

ROUTES = [*MODEL_ROUTES, translate, synthesize, realtime, transcribe_piece]
RECORDING_ROUTES = [transcribe]
"""Routes whose bodies may be as large as the recording of a job."""
