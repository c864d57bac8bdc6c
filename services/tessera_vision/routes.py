"""The vision service's routes: OpenAI's chat completions with images by data URL, tokens, and models.

Does not know how images become prompts: the pipeline does.
"""

from __future__ import annotations

from tessera.language.routes import LANGUAGE_ROUTES
from tessera.protocols.messages.routes import MESSAGE_ROUTES
from tessera.protocols.responses.routes import RESPONSE_ROUTES
from tessera.web.models import MODEL_ROUTES

ROUTES = [*MODEL_ROUTES, *LANGUAGE_ROUTES, *RESPONSE_ROUTES, *MESSAGE_ROUTES]
