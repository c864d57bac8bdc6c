"""The models of all upstreams."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get
from litestar.params import Parameter

from tessera.web.anthropic_models import is_anthropic, model_info, model_page
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.docs import documented
from tessera.wire.models import Model, ModelList
from tessera_gateway.upstreams import Upstreams


@get("/v1/models", summary="List the models.", tags=["models"], operation_class=documented(returns=ModelList))
async def list_models(request: HTTPRequest, upstreams: Injected[Upstreams]) -> Response[Any]:
    """OpenAI's fields, and each model's card and device where its server tells them. `root` of an alias is the model
    that it stands for. Clients that send `anthropic-version` get Anthropic's shape."""
    if not upstreams.models():
        await upstreams.refresh()
    found = upstreams.listed()
    return Response(model_page(request, found) if is_anthropic(request) else ModelList(data=found))


@get("/v1/models/{model_id:path}", summary="One model.", tags=["models"], operation_class=documented(returns=Model))
async def retrieve_model(
    request: HTTPRequest,
    upstreams: Injected[Upstreams],
    model_id: Annotated[str, Parameter(description="The model's id; slashes belong to it.")],
) -> Response[Any]:
    """404 names the models there are. Clients that send `anthropic-version` get Anthropic's shape."""
    found = await upstreams.model(model_id.removeprefix("/"))
    return Response(model_info(found) if is_anthropic(request) else found)
