"""The models of all upstreams."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.params import Parameter

from tessera.web.dependencies import Injected
from tessera.wire.models import Model, ModelList
from tessera_gateway.upstreams import Upstreams


@get("/v1/models", summary="List the models.", tags=["models"])
async def list_models(upstreams: Injected[Upstreams]) -> ModelList:
    """OpenAI's fields, and each model's card and device where its server tells them. `root` of an alias is the model
    that it stands for."""
    if not upstreams.models():
        await upstreams.refresh()
    return ModelList(data=upstreams.listed())


@get("/v1/models/{model_id:path}", summary="One model.", tags=["models"])
async def retrieve_model(
    upstreams: Injected[Upstreams],
    model_id: Annotated[str, Parameter(description="The model's id; slashes belong to it.")],
) -> Model:
    """404 names the models there are."""
    return await upstreams.model(model_id.removeprefix("/"))
