"""`/v1/models` for every service, whose app provides the function `models` (see `tessera.web.dependencies`)."""

from __future__ import annotations

from collections.abc import Callable

from litestar import get

from tessera.errors import ModelNotFoundError
from tessera.web.dependencies import Injected
from tessera.wire.models import Card, Model, ModelList

Models = Callable[[], ModelList]
"""Lists the models that a service has now."""


@get("/v1/models", summary="Models that are served here.", tags=["models"])
async def list_models(models: Injected[Models]) -> ModelList:
    """Empty until a model has loaded."""
    return models()


@get("/v1/models/{model_id:path}", summary="One model.", tags=["models"])
async def get_model(models: Injected[Models], model_id: str) -> Model:
    """Its card says what is known about it."""
    return find_model(models(), model_id.lstrip("/"))


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
