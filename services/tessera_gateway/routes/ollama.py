"""Ollama's chat, generate and embed, translated for upstreams that speak OpenAI's API, and its models.

Bodies of any content type are read, because Ollama's own examples send none; pages of other sites are refused by their
origin (`tessera.web.sites`). What would change the models of the server is refused: they are the operator's.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from litestar import HttpMethod, Response, get, post, route
from litestar.types import ASGIApp

from tessera.errors import InvalidRequestError, NotImplementedHereError
from tessera.protocols.ollama.models import (
    NEVER,
    OLLAMA_VERSION,
    is_shown,
    ollama_model,
    shown_model,
    tagged,
    untagged,
)
from tessera.protocols.ollama.request import is_plain
from tessera.protocols.ollama.translation import LINES, OllamaTranslation
from tessera.web.app import json_response
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.docs import documented
from tessera.wire.decoding import decode_json
from tessera.wire.models import Task
from tessera.wire.ollama import (
    OllamaChatRequest,
    OllamaEmbedding,
    OllamaEmbeddings,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaLine,
    OllamaModelRequest,
    OllamaModels,
    OllamaShown,
    OllamaStatus,
    OllamaVersion,
)
from tessera_gateway.limits import JsonBody
from tessera_gateway.translated.chat_body import chat_body, completion_body
from tessera_gateway.translated.embedding import embed
from tessera_gateway.translated.translator import Translator
from tessera_gateway.upstreams import Upstreams

JSON = "application/json"
CHAT: tuple[Task, str] = ("chat", "/v1/chat/completions")
COMPLETIONS: tuple[Task, str] = ("completions", "/v1/completions")
Asked = TypeVar("Asked", OllamaChatRequest, OllamaGenerateRequest, OllamaEmbedRequest, OllamaEmbeddingsRequest)


@post(
    "/api/chat",
    status_code=200,
    summary="Answer a conversation, in Ollama's shapes.",
    tags=["ollama"],
    operation_class=documented(OllamaChatRequest, returns=OllamaLine, files=[LINES]),
)
async def ollama_chat(
    request: HTTPRequest, translator: Injected[Translator], upstreams: Injected[Upstreams]
) -> ASGIApp:
    """Lines of JSON unless `stream` is false."""
    asked = await _asked(request, OllamaChatRequest, upstreams)
    if not asked.messages:
        return await _loaded(request, asked, upstreams)
    return await _answered(request, translator, asked, CHAT)


@post(
    "/api/generate",
    status_code=200,
    summary="Answer a prompt, in Ollama's shapes.",
    tags=["ollama"],
    operation_class=documented(OllamaGenerateRequest, returns=OllamaLine, files=[LINES]),
)
async def ollama_generate(
    request: HTTPRequest, translator: Injected[Translator], upstreams: Injected[Upstreams]
) -> ASGIApp:
    """Lines of JSON unless `stream` is false. With `raw` or `suffix`, the prompt is continued without a template."""
    asked = await _asked(request, OllamaGenerateRequest, upstreams)
    if not asked.prompt and not asked.suffix and not asked.images:
        return await _loaded(request, asked, upstreams)
    return await _answered(request, translator, asked, COMPLETIONS if is_plain(asked) else CHAT, suffix=asked.suffix)


@post(
    "/api/embed",
    status_code=200,
    summary="Turn texts into vectors, in Ollama's shapes.",
    tags=["ollama"],
    operation_class=documented(OllamaEmbedRequest, returns=OllamaEmbeddings),
)
async def ollama_embed(
    request: HTTPRequest, translator: Injected[Translator], upstreams: Injected[Upstreams]
) -> Response[OllamaEmbeddings]:
    """One vector for each text."""
    asked = await _asked(request, OllamaEmbedRequest, upstreams)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    return json_response(
        await embed(request, translator, asked.model, texts, asked.dimensions, cut=asked.truncate is not False)
    )


@post(
    "/api/embeddings",
    status_code=200,
    summary="Turn one text into a vector, in the form before /api/embed.",
    tags=["ollama"],
    operation_class=documented(OllamaEmbeddingsRequest, returns=OllamaEmbedding),
)
async def ollama_embeddings(
    request: HTTPRequest, translator: Injected[Translator], upstreams: Injected[Upstreams]
) -> Response[OllamaEmbedding]:
    """The vector of `prompt`."""
    asked = await _asked(request, OllamaEmbeddingsRequest, upstreams)
    found = await embed(request, translator, asked.model, [asked.prompt])
    return json_response(OllamaEmbedding(found.embeddings[0]))


@get("/api/tags", summary="List the models, in Ollama's shape.", tags=["ollama"])
async def ollama_tags(upstreams: Injected[Upstreams]) -> OllamaModels:
    """The models that answer conversations, continue texts or make vectors."""
    if not upstreams.models():
        await upstreams.refresh()
    return OllamaModels([ollama_model(model) for model in upstreams.listed() if is_shown(model)])


@get("/api/ps", summary="List the models that are loaded, in Ollama's shape.", tags=["ollama"])
async def ollama_ps(upstreams: Injected[Upstreams]) -> OllamaModels:
    """Every model that can be reached: models stay loaded."""
    ready = {name for each in upstreams.all if each.reachable and each.state == "ok" for name in each.models}
    loaded = []
    for model in upstreams.models():
        if model.id in ready and is_shown(model):
            context = model.card.context_length if model.card else None
            shown = msgspec.structs.replace(ollama_model(model), expires_at=NEVER, size_vram=0)
            loaded.append(shown if context is None else msgspec.structs.replace(shown, context_length=context))
    return OllamaModels(loaded)


@get("/api/version", summary="The release of Ollama whose API this follows.", tags=["ollama"])
async def ollama_version() -> OllamaVersion:
    """Not the suite's own version, which /health has."""
    return OllamaVersion(OLLAMA_VERSION)


@post(
    "/api/show",
    status_code=200,
    summary="Describe a model, in Ollama's shape.",
    tags=["ollama"],
    operation_class=documented(OllamaModelRequest, returns=OllamaShown),
)
async def ollama_show(request: HTTPRequest, upstreams: Injected[Upstreams]) -> Response[OllamaShown]:
    """What the model's card says."""
    name = _named(decode_json(await request.body(), OllamaModelRequest))
    return json_response(shown_model(await upstreams.model(await _own_name(upstreams, name))))


@post(
    "/api/pull",
    status_code=200,
    summary="Say that a model is here.",
    tags=["ollama"],
    operation_class=documented(OllamaModelRequest, returns=OllamaStatus, files=[LINES]),
)
async def ollama_pull(request: HTTPRequest, upstreams: Injected[Upstreams]) -> Response[bytes]:
    """Success for a model that is here, as Ollama answers for one that is up to date. No other can be fetched."""
    asked = decode_json(await request.body(), OllamaModelRequest)
    name = await _own_name(upstreams, _named(asked))
    if all(model.id != name for model in upstreams.models()):
        raise NotImplementedHereError(f"the model {tagged(name)!r} is not here, and models are not fetched: {_WHOSE}")
    line = msgspec.json.encode(OllamaStatus("success"))
    return Response(
        line if asked.stream is False else line + b"\n", media_type=JSON if asked.stream is False else LINES
    )


@route(
    ["/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/{digest:str}"],
    http_method=[HttpMethod.POST, HttpMethod.DELETE, HttpMethod.HEAD],
    include_in_schema=False,
)
async def ollama_refused(request: HTTPRequest) -> None:
    """Changes of the server's models, which are the operator's."""
    raise NotImplementedHereError(f"{request.scope['path']} is not available here: {_WHOSE}")


_WHOSE = "the models are those that the server was started with; /api/tags lists them"

OLLAMA_ROUTES = [
    ollama_chat,
    ollama_generate,
    ollama_embed,
    ollama_embeddings,
    ollama_tags,
    ollama_ps,
    ollama_version,
    ollama_show,
    ollama_pull,
    ollama_refused,
]


async def _asked(request: HTTPRequest, kind: type[Asked], upstreams: Upstreams) -> Asked:
    asked = decode_json(await request.body(), kind)
    return msgspec.structs.replace(asked, model=await _own_name(upstreams, asked.model))


async def _loaded(
    request: HTTPRequest, asked: OllamaChatRequest | OllamaGenerateRequest, upstreams: Upstreams
) -> ASGIApp:
    """The answer to a request without a prompt, by which clients load a model."""
    await upstreams.model(asked.model)
    return Response(OllamaTranslation(asked).loaded(), media_type=JSON).to_asgi_response(None, request)


async def _answered(
    request: HTTPRequest,
    translator: Translator,
    asked: OllamaChatRequest | OllamaGenerateRequest,
    to: tuple[Task, str],
    suffix: str | None = None,
) -> ASGIApp:
    translation = OllamaTranslation(asked)
    task, path = to

    def encode(chat: Any, own: str) -> bytes:
        return completion_body(chat, own, suffix) if path == COMPLETIONS[1] else chat_body(chat, own)

    return await translator.forward(
        request,
        JsonBody(asked.model, msgspec.json.encode({"model": asked.model}), JSON),
        lambda: translation,
        native=None,
        task=task,
        path=path,
        encode=encode,
        stream_type=LINES if translation.streams else None,
    )


async def _own_name(upstreams: Upstreams, name: str) -> str:
    """The model that a name stands for, with a tag or without; the name itself if it stands for none."""
    own = await upstreams.resolve(name)
    if own == name and all(model.id != name for model in upstreams.models()):
        return await upstreams.resolve(untagged(name))
    return own


def _named(asked: OllamaModelRequest) -> str:
    name = asked.model or asked.name
    if name is None:
        raise InvalidRequestError("`model` is required", param="model", code="missing_required_parameter")
    return name
