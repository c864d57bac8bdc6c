"""`/v1/models` for every service, whose app provides the function `models` (see `tessera.web.dependencies`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import Response, get

from tessera.errors import ModelNotFoundError
from tessera.web.anthropic_models import is_anthropic, model_info, model_page
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.docs import documented
from tessera.wire.models import Card, Model, ModelList

Models = Callable[[], ModelList]
"""Lists the models that a service has now."""


@get(
    "/v1/models",
    summary="Models that are served here.",
    tags=["models"],
    operation_class=documented(returns=ModelList),
)
async def list_models(request: HTTPRequest, models: Injected[Models]) -> Response[Any]:
    """Empty until a model has loaded. Clients that send `anthropic-version` get Anthropic's shape."""
    found = models()
    return Response(model_page(request, found.data) if is_anthropic(request) else found)


@get(
    "/v1/models/{model_id:path}",
    summary="One model.",
    tags=["models"],
    operation_class=documented(returns=Model),
)
async def get_model(request: HTTPRequest, models: Injected[Models], model_id: str) -> Response[Any]:
    """Its card says what is known about it. Clients that send `anthropic-version` get Anthropic's shape."""
    found = find_model(models(), model_id.lstrip("/"))
    return Response(model_info(found) if is_anthropic(request) else found)


MODEL_ROUTES = [list_models, get_model]


def model_of(card: Card, device: str) -> Model:
    """A card as one of OpenAI's models."""
    return Model(id=card.id, created=card.created, card=card, device=device)


def find_model(models: ModelList, model_id: str) -> Model:
    """The model with this id.

    Raises:
        ModelNotFoundError: there is no such model; names those there are.
    """
    for model in models.data:
        if model.id == model_id:
            return model
    known = ", ".join(model.id for model in models.data) or "none yet"
    raise ModelNotFoundError(f"there is no model {model_id!r} here; there are: {known}", param="model")
