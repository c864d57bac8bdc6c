"""`/v1/models` for every service, which puts a function `models` into its app's state."""

from __future__ import annotations

from collections.abc import Callable

from litestar import get
from litestar.datastructures import State

from tessera.errors import ModelNotFoundError
from tessera.wire.models import Card, Model, ModelList

Models = Callable[[], ModelList]


@get("/v1/models", summary="Models that are served here.", tags=["models"])
async def list_models(state: State) -> ModelList:
    """Empty until a model has loaded."""
    models: Models = state.models
    return models()


@get("/v1/models/{model_id:path}", summary="One model.", tags=["models"])
async def get_model(state: State, model_id: str) -> Model:
    """Its card says what is known about it."""
    models: Models = state.models
    return find_model(models(), model_id.lstrip("/"))


MODEL_ROUTES = [list_models, get_model]


def model_of(card: Card, device: str) -> Model:
    """A card in OpenAI's shape."""
    return Model(id=card.id, created=card.created, card=card, device=device)


def find_model(models: ModelList, model_id: str) -> Model:
    """The model with this id.

    Raises:
        ModelNotFoundError: names those there are.
    """
    for model in models.data:
        if model.id == model_id:
            return model
    known = ", ".join(model.id for model in models.data) or "none yet"
    raise ModelNotFoundError(f"there is no model {model_id!r} here; there are: {known}", param="model")
