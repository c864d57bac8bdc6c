"""Bodies in JSON or as a multipart form, both as a `Form`: fields and files.

Bracketed names (`input_reference[image_url]`) become nested objects, and `name[]` becomes a list, which is how OpenAI's
SDK writes nested fields in forms.
"""

from __future__ import annotations

import hashlib
import io
import re
from typing import Any, TypeVar

import msgspec
import multipart
from litestar import Request

from tessera.errors import InvalidRequestError, UnsupportedMediaError
from tessera.wire.decoding import DAMAGED, convert_form, decode_json

T = TypeVar("T", bound=msgspec.Struct)

_BRACKETED = re.compile(r"^(?P<outer>[^\[\]]+)\[(?P<inner>[^\[\]]*)\]$")
MAX_PARTS = 64
"""Most parts of a form."""


class Upload(msgspec.Struct, frozen=True):
    """A file part: its name as the client gave it (never used as a path), declared type and bytes."""

    filename: str
    content_type: str
    data: bytes


class Form(msgspec.Struct, frozen=True):
    """Fields and files of a body."""

    fields: dict[str, Any]
    files: dict[str, Upload]
    json: bytes | None = None
    """The body itself where it was JSON; None where it was a form, whose values are all strings."""

    def decode(self, wire_type: type[T]) -> T:
        """The fields as a wire type.

        Raises:
            InvalidRequestError: a field is unknown, missing or wrong; names it.
        """
        return convert_form(self.fields, wire_type) if self.json is None else decode_json(self.json, wire_type)

    def fingerprint(self) -> str:
        """A hash of fields and files: equal for repeated requests, whatever their multipart boundary is."""
        files = {name: hashlib.sha256(upload.data).hexdigest() for name, upload in self.files.items()}
        return hashlib.sha256(msgspec.json.encode([self.fields, files], order="deterministic")).hexdigest()


def parse_multipart(body: bytes, content_type: str) -> Form:
    """Decode a multipart body that is in memory, where the route's body limit bounds it.

    Raises:
        InvalidRequestError: there is no boundary, a damaged part, a field twice, or more than `MAX_PARTS` parts.
    """
    boundary = boundary_of(content_type)
    fields: dict[str, Any] = {}
    files: dict[str, Upload] = {}
    try:
        parser = multipart.MultipartParser(
            io.BytesIO(body),
            boundary,
            content_length=len(body),
            part_limit=MAX_PARTS,
            memory_limit=len(body) + 1,
            partsize_limit=len(body) + 1,
            spool_limit=len(body) + 1,
        )
        for part in parser:
            if part.filename is not None:
                if part.name in files:
                    raise InvalidRequestError(
                        f"the file `{part.name}` is given twice", param=part.name, code="invalid_form"
                    )
                files[part.name] = Upload(part.filename, part.content_type or "", part.raw)
            else:
                put_field(fields, part.name, part.raw)
    except multipart.MultipartError as error:
        raise InvalidRequestError(f"the multipart body is damaged: {error}", code="invalid_form") from error
    return Form(fields, files)


def put_field(fields: dict[str, Any], name: str, raw: bytes) -> None:
    """Add a field of a form to those before it.

    Raises:
        InvalidRequestError: the field is not text, or given twice.
    """
    _put(fields, name, _text(name, raw))


def boundary_of(content_type: str) -> str:
    """The boundary between the parts of a form.

    Raises:
        InvalidRequestError: the content type has none.
    """
    _, options = multipart.parse_options_header(content_type)
    if not options.get("boundary"):
        raise InvalidRequestError("the multipart body has no boundary in its content-type", code="invalid_form")
    return str(options["boundary"])


def _text(name: str, raw: bytes) -> str:
    # RFC 7578 fields are UTF-8; a charset that a part declares is not obeyed.
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the field `{name}` is not UTF-8 text", param=name, code="invalid_form") from error


def _put(fields: dict[str, Any], name: str, value: str) -> None:
    bracketed = _BRACKETED.match(name)
    if bracketed is None:
        if name in fields:
            raise InvalidRequestError(f"the field `{name}` is given twice", param=name, code="invalid_form")
        fields[name] = value
        return
    outer, inner = bracketed["outer"], bracketed["inner"]
    if inner:
        nested = fields.setdefault(outer, {})
        if not isinstance(nested, dict):
            raise InvalidRequestError(f"the field `{outer}` is given twice", param=outer, code="invalid_form")
        _put(nested, inner, value)
    else:
        items = fields.setdefault(outer, [])
        if not isinstance(items, list):
            raise InvalidRequestError(f"the field `{outer}` is given twice", param=outer, code="invalid_form")
        items.append(value)


async def read_form(request: Request[Any, Any, Any]) -> Form:
    """The body of a JSON or multipart request.

    Raises:
        UnsupportedMediaError: any other content type.
        InvalidRequestError: a damaged body.
    """
    kind = request.headers.get("content-type", "")
    body = await request.body()
    if kind.startswith("multipart/form-data"):
        return parse_multipart(body, kind)
    if kind.startswith("application/json"):
        try:
            return Form(msgspec.json.decode(body, type=dict[str, Any]), {}, json=body)
        except DAMAGED as error:
            raise InvalidRequestError(f"the body is not a JSON object: {error}", code="invalid_json") from error
    given = kind.split(";")[0] or "(none)"
    raise UnsupportedMediaError(
        f"content-type {given!r} is not supported; send application/json or multipart/form-data"
    )
