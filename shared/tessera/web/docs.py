"""The API description: OpenAPI with Swagger UI served from an installed package, so it works offline.

Where the description of a route comes from:

- A handler that answers one JSON body returns `Response[Video]` or the Struct itself; Litestar derives the schema.
- Handlers of `/v1` decode their bodies with the suite's own errors, so Litestar cannot see the type of a body.
  `operation_class=documented(VideoCreateRequest, …)` declares it.
- A handler whose answer has several forms (JSON or server-sent events), is a file, or is passed through from an
  upstream declares its success there, too: `documented(SpeechRequest, files=["audio/mpeg"])`, or
  `documented(ChatCompletionRequest, returns=ChatCompletion, events=ChatCompletionChunk)`.

Schemas of declared types are collected from the operations: no list names them. Knows no route.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, cast, get_args

import msgspec
import swagger_ui_bundle
from litestar import Response, get
from litestar.openapi.plugins import SwaggerRenderPlugin
from litestar.openapi.spec import (
    OpenAPI,
    OpenAPIHeader,
    OpenAPIMediaType,
    OpenAPIResponse,
    Operation,
    RequestBody,
    Schema,
)
from litestar.openapi.spec.enums import OpenAPIType
from litestar.params import Parameter

from tessera.errors import (
    AuthenticationError,
    InvalidRequestError,
    MisdirectedError,
    NotFoundError,
    OverloadedError,
    PayloadTooLargeError,
    PermissionDeniedError,
    RequestTimeoutError,
    TesseraError,
    UnavailableError,
    UnsupportedMediaError,
)
from tessera.web.errors import ErrorEnvelope

_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui-standalone-preset.js": "text/javascript",
    "swagger-ui.css": "text/css",
}
BYTES = {"type": "string", "format": "binary"}
"""Schema of a file's bytes."""


@get(
    "/docs/assets/{name:str}",
    include_in_schema=False,
    sync_to_thread=True,
    opt={"public": True},
)
def swagger_asset(name: Annotated[str, Parameter(description="file name")]) -> Response[bytes]:
    """One of the three files of the Swagger UI package that the page loads."""
    if name not in _ASSETS:
        raise NotFoundError(f"there is no file {name!r} here")
    body = (Path(swagger_ui_bundle.swagger_ui_path) / name).read_bytes()
    return Response(body, headers={"content-type": _ASSETS[name], "cache-control": "public, max-age=86400"})


def render_plugin() -> SwaggerRenderPlugin:
    """Swagger UI at `/docs`, served without a CDN."""
    return SwaggerRenderPlugin(
        js_url="/docs/assets/swagger-ui-bundle.js",
        css_url="/docs/assets/swagger-ui.css",
        standalone_preset_js_url="/docs/assets/swagger-ui-standalone-preset.js",
        path="/",
        favicon="",
    )


class DocumentedOperation(Operation):
    """An operation whose body or success is declared by `documented`."""

    wire_types: ClassVar[tuple[Any, ...]] = ()
    """The types that its schemas refer to."""


def component_schemas(document: OpenAPI) -> dict[str, Any]:
    """JSON schemas of the error envelope and of all types that documented operations declare, by name."""
    declared: dict[Any, None] = {ErrorEnvelope: None}
    for operation in operations(document):
        if isinstance(operation, DocumentedOperation):
            declared |= dict.fromkeys(operation.wire_types)
    return {name: RawSchema(raw=schema) for name, schema in _components(tuple(declared)).items()}


@cache
def _components(types: tuple[Any, ...]) -> dict[str, dict[str, Any]]:
    return msgspec.json.schema_components(types, ref_template=_REFERENCE)[1]


def operations(document: OpenAPI, prefix: str = "/") -> Iterator[Operation]:
    """The operations of all paths that begin with `prefix`."""
    for path, item in (document.paths or {}).items():
        if path.startswith(prefix):
            found = (item.get, item.put, item.post, item.delete, item.head)
            yield from (operation for operation in found if operation is not None)


@dataclass
class RawSchema(Schema):
    """A schema that is already in its final form."""

    raw: dict[str, Any] | None = None

    def to_schema(self) -> dict[str, Any]:
        """The schema as the document has it."""
        return self.raw or {}


def describe_errors(document: OpenAPI) -> None:
    """Say which errors every route answers, and that they come in the envelope. Litestar describes its own shape, which
    is never sent.

    Args:
        document: is changed.
    """
    for path, item in (document.paths or {}).items():
        if path in OPERATIONS_PATHS:
            continue
        for method in METHODS:
            operation: Operation | None = getattr(item, method)
            if operation is not None:
                successes = {key: value for key, value in (operation.responses or {}).items() if key < "400"}
                errors = _errors_of(method, operation, has_parameter="{" in path)
                operation.responses = {**successes, **{str(each.status): _answer(each) for each in errors}, **_OTHERS}


def _errors_of(method: str, operation: Operation, *, has_parameter: bool) -> list[type[TesseraError]]:
    """The errors that a route of this kind can answer, whatever it does."""
    found: list[type[TesseraError]] = [InvalidRequestError, MisdirectedError]
    if operation.security:
        found.append(AuthenticationError)
    if has_parameter:
        found.append(NotFoundError)
    if method not in {"get", "head"}:
        found += [PermissionDeniedError, OverloadedError]
    if operation.request_body is not None:
        found += [RequestTimeoutError, PayloadTooLargeError, UnsupportedMediaError]
    return [*sorted(found, key=lambda error: error.status), UnavailableError]


def _answer(error: type[TesseraError]) -> OpenAPIResponse:
    retry = {"retry-after": OpenAPIHeader(description="Seconds to wait.", schema=Schema(type=OpenAPIType.INTEGER))}
    text = (error.__doc__ or "").strip().splitlines()[0]
    return OpenAPIResponse(description=text, headers=retry if error.retryable else None, content=_envelope())  # type: ignore[arg-type]


@cache
def _envelope() -> dict[str, OpenAPIMediaType]:
    return {"application/json": OpenAPIMediaType(schema=_schema_of(ErrorEnvelope))}


def documented(
    body: type[msgspec.Struct] | None = None,
    *media_types: str,
    file: str | None = None,
    returns: Any = None,
    events: Any = None,
    files: Sequence[str] = (),
) -> type[Operation]:
    """An `operation_class` that declares what a handler's signature does not show.

    Args:
        body: the wire type of the request's body; None where there is none.
        media_types: content types of the body; JSON when none is given.
        file: name of a form field that is an uploaded file beside the fields of `body`.
        returns: the wire type of a success as JSON, or a union of them.
        events: the type of the `data` of server-sent events, or a union of them, where a success may be a stream.
        files: content types of a success that is a file or a text.

    With `returns`, `events` or `files`, they replace what Litestar derives for the handler's status code.
    """
    request_body: RequestBody | None = None
    if body is not None:
        content = {
            media_type: OpenAPIMediaType(
                schema=_form_of(body, file) if file and media_type == "multipart/form-data" else _schema_of(body)
            )
            for media_type in (media_types or ("application/json",))
        }
        request_body = RequestBody(content=content, required=True)
    success: dict[str, OpenAPIMediaType] = {}
    if returns is not None:
        success["application/json"] = OpenAPIMediaType(schema=_schema_of(returns))
    if events is not None:
        success["text/event-stream"] = OpenAPIMediaType(schema=_schema_of(events))
    for media_type in files:
        text = media_type.startswith("text/")
        success[media_type] = OpenAPIMediaType(schema=RawSchema(raw={"type": "string"} if text else BYTES))

    @dataclass
    class DeclaredOperation(DocumentedOperation):
        wire_types: ClassVar[tuple[Any, ...]] = tuple(
            member for each in (body, returns, events) if each is not None for member in _members(each)
        )

        def __post_init__(self) -> None:
            if request_body is not None:
                self.request_body = request_body
            first = next((key for key in self.responses or {} if key < "300"), None)
            if success and self.responses and first is not None:
                described = cast("OpenAPIResponse", self.responses[first]).description
                self.responses[first] = OpenAPIResponse(description=described, content=success)

    return DeclaredOperation


OPERATIONS_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Paths whose answers are no envelopes, whatever their status is."""
METHODS = ("get", "put", "post", "patch", "delete", "head")
_REFERENCE = "#/components/schemas/{name}"


def _schema_of(wire_type: Any) -> RawSchema:
    """The schema of a type: a reference to its component, or a choice of references for a union."""
    schemas, _ = msgspec.json.schema_components(_members(wire_type), ref_template=_REFERENCE)
    return RawSchema(raw=schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)})


def _form_of(body: type[msgspec.Struct], file: str) -> RawSchema:
    """The schema of a form: the fields of a type and a file, which is required where the type has no such field.

    It is one object, not `allOf` of two: a type allows no other fields, so that no form with a file would be valid.
    """
    _, components = msgspec.json.schema_components((body,), ref_template=_REFERENCE)
    fields = components[body.__name__]
    required = [*fields.get("required", ()), *([] if file in fields["properties"] else [file])]
    return RawSchema(raw={**fields, "properties": {**fields["properties"], file: BYTES}, "required": required})


def _members(wire_type: Any) -> tuple[Any, ...]:
    """The types of a union, of which msgspec describes only tagged ones as a whole; or the one type."""
    return get_args(wire_type) if isinstance(wire_type, UnionType) else (wire_type,)


_OTHERS = {
    "4XX": OpenAPIResponse(description="What is wrong, and what to do.", content=_envelope()),
    "5XX": OpenAPIResponse(description="What is wrong, and what to do.", content=_envelope()),
}
