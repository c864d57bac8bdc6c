"""A form that is passed on as it came: in memory while it is small, else in a file without a name.

Its text fields are read as it arrives, because routing needs them; its files are not looked into. The file has no name
and is gone when it is closed, also when the process is killed. Knows neither routes nor upstreams.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import multipart
from litestar import Request

from tessera.errors import InvalidRequestError, PayloadTooLargeError, StorageFullError
from tessera.web.bodies.budget import held_body
from tessera.web.forms import MAX_PARTS, boundary_of, put_field

WRITE_BYTES = 1024 * 1024
"""Bytes that are collected before a thread parses and writes them, and that are read at once."""
MAX_FIELD_BYTES = 16 * 1024 * 1024
"""Most bytes of the text fields of a form, which stay in memory."""
PARSE_INLINE_BYTES = 256 * 1024
"""Bytes above which a form is parsed in a thread, so that it does not delay the streams of other requests."""


class SpoolPlace(msgspec.Struct, frozen=True):
    """Where forms are kept, and from which size on there and not in memory."""

    directory: Path
    memory_bytes: int


class SpooledForm:
    """A form's body as it came, its text fields and the names of its files."""

    def __init__(self, content_type: str, place: SpoolPlace) -> None:
        self.content_type = content_type
        self.fields: dict[str, Any] = {}
        self.files: set[str] = set()
        self.size = 0
        self._place = place
        self._memory = b""
        self._file: BinaryIO | None = None
        self._replaced: tuple[int, int, bytes] | None = None

    @property
    def in_memory(self) -> bytes | None:
        """The whole body, if it is in memory."""
        return self._memory if self._file is None else None

    @property
    def sent_bytes(self) -> int:
        """Number of bytes of all `pieces`."""
        if self._replaced is None:
            return self.size
        start, end, instead = self._replaced
        return self.size - (end - start) + len(instead)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body from its beginning; several may read at once."""
        start, end, instead = self._replaced or (self.size, self.size, b"")
        async for piece in self._between(0, start):
            yield piece
        if instead:
            yield instead
        async for piece in self._between(end, self.size):
            yield piece

    async def replace(self, span_of: Callable[[mmap.mmap], tuple[int, int]], instead: bytes) -> None:
        """Have some bytes of a body in a file replaced when it is passed on.

        Args:
            span_of: finds the bytes: the place of the first one, and the place behind the last. Called in a thread.
            instead: the bytes to send in their place.
        """
        assert self._file is not None, "only of a body in a file"
        number = self._file.fileno()

        def found() -> tuple[int, int]:
            with mmap.mmap(number, 0, prot=mmap.PROT_READ) as view:
                return span_of(view)

        start, end = await asyncio.to_thread(found)
        self._replaced = start, end, instead

    async def _between(self, at: int, end: int) -> AsyncIterator[bytes]:
        while at < end:
            if self._file is None:
                piece = self._memory[at:end]
            else:
                piece = await asyncio.to_thread(os.pread, self._file.fileno(), min(WRITE_BYTES, end - at), at)
            at += len(piece)
            yield piece

    def keep(self, piece: bytes) -> None:
        """Add bytes to the body. Blocks if they are written.

        Raises:
            StorageFullError: they cannot be written.
        """
        self.size += len(piece)
        if self._file is None and self.size <= self._place.memory_bytes:
            self._memory += piece
            return
        directory = self._place.directory
        try:
            if self._file is None:
                directory.mkdir(parents=True, exist_ok=True)
                # Closed by `close`; unbuffered, because whole megabytes are written.
                self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
                piece, self._memory = self._memory + piece, b""
            view = memoryview(piece)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise StorageFullError(
                f"the form cannot be kept in {directory}: {error.strerror}; the operator frees some space, or sets "
                f"http.spool_dir"
            ) from error

    def close(self) -> None:
        """Forget the body."""
        if self._file is not None:
            self._file.close()
        self._memory = b""


class _FormReader:
    """Reads the text fields of a form as its bytes arrive, and hands the bytes on to be kept."""

    def __init__(self, form: SpooledForm) -> None:
        self.form = form
        self.field_bytes = 0
        boundary = boundary_of(form.content_type)
        self._parser = multipart.PushMultipartParser(boundary, max_segment_count=MAX_PARTS)
        self._part: multipart.MultipartSegment | None = None
        self._text = bytearray()

    def feed(self, data: bytes, *, last: bool = False) -> None:
        """Parse and keep the next bytes. Blocks while they are written.

        Raises:
            InvalidRequestError: the form is damaged, or has a field or a file twice.
            PayloadTooLargeError: the text fields are over their limit.
            StorageFullError: the bytes cannot be kept.
        """
        try:
            for piece in self._parser.parse(data):
                self._take(piece)
            if last:
                self._parser.close()
        except multipart.MultipartError as error:
            raise InvalidRequestError(f"the multipart body is damaged: {error}", code="invalid_form") from error
        self.form.keep(data)

    def _take(self, piece: Any) -> None:
        if isinstance(piece, multipart.MultipartSegment):
            self._part = piece
            self._text.clear()
            name = piece.name or ""
            if piece.filename is not None:
                if name in self.form.files:
                    raise InvalidRequestError(f"the file `{name}` is given twice", param=name, code="invalid_form")
                self.form.files.add(name)
            return
        part = self._part
        assert part is not None, "a parser begins each part"
        if part.filename is not None:
            return
        if piece is None:
            put_field(self.form.fields, part.name or "", bytes(self._text))
            return
        self.field_bytes += len(piece)
        if self.field_bytes > MAX_FIELD_BYTES:
            raise PayloadTooLargeError(
                f"the fields beside the files have more than {MAX_FIELD_BYTES} bytes, which is the limit",
                param=part.name,
            )
        self._text += piece


async def spool_form(request: Request[Any, Any, Any], most_bytes: int, place: SpoolPlace) -> SpooledForm:
    """Read a request's body as a form, which is closed at the end of the request.

    Raises:
        InvalidRequestError: the form is damaged.
        PayloadTooLargeError: the announced length or the bytes that arrive are over `most_bytes`.
        StorageFullError: the disk has no space for it.
        OverloadedError: bodies of other requests take too much memory.
    """
    too_large = PayloadTooLargeError(f"the body is larger than {most_bytes} bytes, which is the limit")
    if (request.content_length or 0) > most_bytes:
        raise too_large
    form = SpooledForm(request.headers.get("content-type", ""), place)
    reader = _FormReader(form)
    held = held_body(request.scope)
    if held is not None:
        held.at_end(form.close)
    waiting = bytearray()
    stored = 0

    async def take(*, last: bool) -> None:
        nonlocal stored
        data = bytes(waiting)
        waiting.clear()
        if len(data) > PARSE_INLINE_BYTES or form.in_memory is None:
            await asyncio.to_thread(reader.feed, data, last=last)
        else:
            reader.feed(data, last=last)
        if form.in_memory is None:  # what is held is counted only as far as it is text
            now_stored = form.size - reader.field_bytes
            if held is not None:
                held.put_away(now_stored - stored)
            stored = now_stored

    async for piece in request.stream():
        waiting += piece
        if form.size + len(waiting) > most_bytes:
            raise too_large
        if len(waiting) >= WRITE_BYTES:
            await take(last=False)
    await take(last=True)
    return form
