"""A form whose file is too large for memory: its fields go to memory, its file to a disk, as they arrive.

Does not know what is uploaded.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import multipart
from litestar import Request

from tessera.errors import InvalidRequestError, PayloadTooLargeError
from tessera.web.bodies.budget import held_body
from tessera.web.forms import MAX_PARTS, boundary_of, put_field

WRITE_BYTES = 1024 * 1024
"""Bytes that are collected before a thread writes them."""


class Uploaded(msgspec.Struct, frozen=True):
    """The fields of a form, and a description of its one file, which is written."""

    fields: dict[str, Any]
    filename: str
    content_type: str
    bytes: int
    sha256: str


class FormToDisk:
    """A multipart body that is parsed as it arrives.

    Args:
        content_type: content type of the request.
        file_field: name of the one file that the form may have.
        file: where the file is written.
        most_file_bytes: most bytes of the file.
        most_field_bytes: most bytes of all other fields together.
        on_file: called with the fields so far when the file begins; an error that it raises ends the upload.
    """

    def __init__(
        self,
        content_type: str,
        *,
        file_field: str,
        file: BinaryIO,
        most_file_bytes: int,
        most_field_bytes: int,
        on_file: Callable[[dict[str, Any]], None],
    ) -> None:
        self._parser = multipart.PushMultipartParser(boundary_of(content_type), max_segment_count=MAX_PARTS)
        self._name = file_field
        self._file = file
        self._on_file = on_file
        self._most_file_bytes = most_file_bytes
        self._left = most_field_bytes
        self._fields: dict[str, Any] = {}
        self._uploaded: multipart.MultipartSegment | None = None
        self._part: multipart.MultipartSegment | None = None
        self._text = bytearray()
        self._digest = hashlib.sha256()

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the body. Blocks while they are written.

        Raises:
            InvalidRequestError: the form is damaged, or has a field twice or another file.
            PayloadTooLargeError: the file, or the other fields, are over their limit.
            OSError: the disk is full.
        """
        try:
            for piece in self._parser.parse(data):
                self._take(piece)
        except multipart.MultipartError as error:
            raise InvalidRequestError(f"the multipart body is damaged: {error}", code="invalid_form") from error

    def finish(self) -> Uploaded:
        """End the body.

        Raises:
            InvalidRequestError: the body is cut short, or has no file.
        """
        try:
            self._parser.close()
        except multipart.MultipartError as error:
            raise InvalidRequestError(f"the multipart body is damaged: {error}", code="invalid_form") from error
        if self._uploaded is None:
            raise InvalidRequestError(
                f"`{self._name}` is required: a file of the multipart form",
                param=self._name,
                code="missing_required_parameter",
            )
        part = self._uploaded
        return Uploaded(self._fields, part.filename or "", part.content_type or "", part.size, self._digest.hexdigest())

    def _take(self, piece: Any) -> None:
        if isinstance(piece, multipart.MultipartSegment):
            self._part = piece
            self._text.clear()
            if piece.filename is not None:
                self._begin_file(piece)
            return
        part = self._part
        assert part is not None, "a parser begins each part"
        if piece is None:
            if part is not self._uploaded:
                put_field(self._fields, part.name or "", bytes(self._text))
        elif self._uploaded is not None and part is self._uploaded:
            if self._uploaded.bytes_received > self._most_file_bytes:
                raise PayloadTooLargeError(
                    f"`{self._name}` has more than {self._most_file_bytes} bytes, which is the limit", param=self._name
                )
            self._digest.update(piece)
            self._file.write(piece)
        else:
            self._left -= len(piece)
            if self._left < 0:
                raise PayloadTooLargeError("the fields beside the file are too large", param=part.name)
            self._text += piece

    def _begin_file(self, part: multipart.MultipartSegment) -> None:
        if part.name != self._name:
            raise InvalidRequestError(
                f"`{part.name}` is not a file of this request; `{self._name}` is", param=part.name, code="invalid_form"
            )
        if self._uploaded is not None:
            raise InvalidRequestError(f"the file `{self._name}` is given twice", param=self._name, code="invalid_form")
        self._on_file(self._fields)
        self._uploaded = part


async def arriving(request: Request[Any, Any, Any]) -> AsyncIterator[bytes]:
    """The pieces of a request's body, each of which is in memory only until the next one is asked for."""
    held = held_body(request.scope)
    async for piece in request.stream():
        yield piece
        if held is not None:
            held.put_away(len(piece))


async def read_to_disk(
    pieces: AsyncIterator[bytes],
    content_type: str,
    path: Path,
    *,
    file_field: str,
    most_file_bytes: int,
    most_field_bytes: int,
    on_file: Callable[[dict[str, Any]], None],
) -> Uploaded:
    """Read a form from the pieces of its body, and write its file to `path`. Raises the errors of `FormToDisk`."""
    waiting = bytearray()
    with path.open("wb") as file:
        form = FormToDisk(
            content_type,
            file_field=file_field,
            file=file,
            most_file_bytes=most_file_bytes,
            most_field_bytes=most_field_bytes,
            on_file=on_file,
        )
        async for piece in pieces:
            waiting += piece
            if len(waiting) >= WRITE_BYTES:
                await asyncio.to_thread(form.feed, bytes(waiting))
                waiting.clear()
        await asyncio.to_thread(form.feed, bytes(waiting))
        return form.finish()


async def read_to_memory(request: Request[Any, Any, Any], most_bytes: int) -> bytes:
    """A request's body, which has to be small.

    Raises:
        PayloadTooLargeError: the announced length or the bytes that arrive are over `most_bytes`.
    """
    body = bytearray()
    if (request.content_length or 0) <= most_bytes:
        async for piece in request.stream():
            body += piece
            if len(body) > most_bytes:
                break
        else:
            return bytes(body)
    raise PayloadTooLargeError(f"the body is larger than {most_bytes} bytes, which is the limit")
