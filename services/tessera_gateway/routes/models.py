"""Which models there are, over all upstreams."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.datastructures import State
from litestar.params import Parameter

from tessera.wire.models import Model, ModelList
from tessera_gateway.upstreams import Upstreams


@get("/v1/models", summary="List the models.", tags=["models"])
async def list_models(state: State) -> ModelList:
    """OpenAI's fields, and each model's card and device where its server tells them."""
    upstreams: Upstreams = state.upstreams
    if not upstreams.models():
        await upstreams.refresh()
    return ModelList(data=upstreams.models())


@get("/v1/models/{model_id:path}", summary="One model.", tags=["models"])
async def retrieve_model(
    state: State, model_id: Annotated[str, Parameter(description="its id; slashes belong to it")]
) -> Model:
    """404 names the models there are."""
    upstreams: Upstreams = state.upstreams
    return await upstreams.model(model_id.removeprefix("/"))
