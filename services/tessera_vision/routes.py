"""The vision service's routes: OpenAI's chat completions, with images by data URL, and models.

What an image is made into is the pipeline's: it is in the tools that the chat route takes.
"""

from __future__ import annotations

from tessera.language.routes import LANGUAGE_ROUTES
from tessera.web.models import MODEL_ROUTES

ROUTES = [*MODEL_ROUTES, *LANGUAGE_ROUTES]
