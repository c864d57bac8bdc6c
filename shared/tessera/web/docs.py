"""The API description: OpenAPI with Swagger UI served from an installed package, so it works offline.

Handlers of the `/v1` routes take the raw request (bytes are passed through or decoded with our own errors), so their
body types are declared here with `documented`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import swagger_ui_bundle
from litestar import Response, get
from litestar.openapi.plugins import SwaggerRenderPlugin
from litestar.openapi.spec import (
    OpenAPI,
    OpenAPIMediaType,
    OpenAPIResponse,
    Operation,
    Reference,
    RequestBody,
    Schema,
)
from litestar.params import Parameter

from tessera.errors import NotFoundError
from tessera.web.errors import ErrorEnvelope
from tessera.wire.audio import SpeechRequest, TranscriptionRequest, TranslationRequest
from tessera.wire.chat import ChatCompletionRequest, CompletionRequest, EmbeddingRequest, TokenizeRequest
from tessera.wire.images import ImageGenerationRequest
from tessera.wire.tools import DetokenizeRequest
from tessera.wire.videos import VideoCreateRequest, VideoEditRequest, VideoExtendRequest, VideoRemixRequest

_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui-standalone-preset.js": "text/javascript",
    "swagger-ui.css": "text/css",
}
_BODIES = (
    ErrorEnvelope,
    ChatCompletionRequest,
    CompletionRequest,
    EmbeddingRequest,
    TokenizeRequest,
    DetokenizeRequest,
    SpeechRequest,
    TranscriptionRequest,
    TranslationRequest,
    ImageGenerationRequest,
    VideoCreateRequest,
    VideoRemixRequest,
    VideoExtendRequest,
    VideoEditRequest,
)


@get(
    "/docs/assets/{name:str}",
    include_in_schema=False,
    sync_to_thread=True,
    opt={"public": True},
)
def swagger_asset(name: Annotated[str, Parameter(description="file name")]) -> Response[bytes]:
    """A file of the Swagger UI package; only the three that the page loads."""
    if name not in _ASSETS:
        raise NotFoundError(f"there is no file {name!r} here")
    body = (Path(swagger_ui_bundle.swagger_ui_path) / name).read_bytes()
    return Response(body, headers={"content-type": _ASSETS[name], "cache-control": "public, max-age=86400"})


def render_plugin() -> SwaggerRenderPlugin:
    """Swagger UI at `/docs` without a CDN."""
    return SwaggerRenderPlugin(
        js_url="/docs/assets/swagger-ui-bundle.js",
        css_url="/docs/assets/swagger-ui.css",
        standalone_preset_js_url="/docs/assets/swagger-ui-standalone-preset.js",
        path="/",
        favicon="",
    )


def component_schemas() -> dict[str, Any]:
    """JSON schemas of all body types, for the `components` section."""
    _, components = msgspec.json.schema_components(_BODIES, ref_template="#/components/schemas/{name}")
    return {name: RawSchema(raw=schema) for name, schema in components.items()}


@dataclass
class RawSchema(Schema):
    """A schema that is already in its final form."""

    raw: dict[str, Any] | None = None

    def to_schema(self) -> dict[str, Any]:
        """What goes into the document."""
        return self.raw or {}


def describe_errors(document: OpenAPI) -> None:
    """Say that every `/v1` route answers errors in the envelope. Litestar describes its own shape, which we never send.

    Args:
        document: is changed.
    """
    content = {"application/json": OpenAPIMediaType(schema=Reference(ref="#/components/schemas/ErrorEnvelope"))}
    for path, item in (document.paths or {}).items():
        operations = (item.get, item.put, item.post, item.delete, item.head) if path.startswith("/v1/") else ()
        for operation in operations:
            if operation is not None:
                kept = {key: value for key, value in (operation.responses or {}).items() if key < "400"}
                error = OpenAPIResponse(description="What is wrong, and what to do.", content=content)
                operation.responses = {**kept, "4XX": error, "5XX": error}


def documented(body: type[msgspec.Struct], *media_types: str, file: str | None = None) -> type[Operation]:
    """An `operation_class` for a handler that reads the raw request.

    Args:
        body: the wire type of its body.
        media_types: content types it takes; JSON when none is given.
        file: name of a form field that is an uploaded file beside the fields of `body`.
    """
    reference = Reference(ref=f"#/components/schemas/{body.__name__}")

    def schema_for(media_type: str) -> Any:
        if file is None or media_type != "multipart/form-data":
            return reference
        upload = {"type": "object", "properties": {file: {"type": "string", "format": "binary"}}}
        return RawSchema(raw={"allOf": [{"$ref": reference.ref}, upload]})

    content = {
        media_type: OpenAPIMediaType(schema=schema_for(media_type))
        for media_type in (media_types or ("application/json",))
    }

    @dataclass
    class DocumentedOperation(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(content=content, required=True)

    return DocumentedOperation
