"""Files in messages: text files as they are, PDF files by their text, pictures as images.

What a file is, its bytes say, not its name. PDF files are read by a process of its own with limits of memory and time,
because their format can keep any reader busy. Knows no messages.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sys
from dataclasses import dataclass

import msgspec

from tessera.errors import InvalidRequestError, PayloadTooLargeError, UnavailableError, UnsupportedMediaError
from tessera.language.attachments.base64_data import decoded
from tessera.language.attachments.pdf_text import PDFText
from tessera.processes import die_with_parent
from tessera.settings.attachments import AttachmentSettings
from tessera.wire.conversation import FileContent, ImagePart, ImageURL

AT_ONCE = 2
"""Most PDF files of all requests that are read at the same time."""
READABLE = "UTF-8 text of any kind, PDF, and PNG, JPEG, WEBP, GIF, BMP for models that see"
_IMAGES = ((b"\x89PNG\r\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF8", "gif"), (b"BM", "bmp"))
_PDF_WITHIN = 1024
"""Bytes in which the head of a PDF file must begin."""


@dataclass
class OpenedFile:
    """A file whose kind is known.

    Attributes:
        name: as the client calls it; empty if it has none.
        data: its bytes.
        text: its text; None for a PDF file, until it is found.
        image: the file as an image; None if it is none.
    """

    name: str
    data: bytes
    text: str | None = None
    image: ImagePart | None = None

    def as_prompt(self) -> str:
        """The text as the model reads it, between marks that name the file."""
        named = f' name="{self.name}"' if self.name else ""
        return f"<file{named}>\n{self.text}\n</file>"


class FileReader:
    """Reads files within limits.

    Args:
        settings: the limits.
    """

    def __init__(self, settings: AttachmentSettings) -> None:
        self._settings = settings
        self._gate = asyncio.Semaphore(AT_ONCE)

    def opened(self, content: FileContent, param: str) -> OpenedFile:
        """A file of a message, with its text unless it is a PDF.

        Raises:
            InvalidRequestError: the file is named by an id, has no data, or its base64 is damaged.
            PayloadTooLargeError: it has more bytes or characters than allowed.
            UnsupportedMediaError: it is no text, no PDF and no picture.
        """
        if content.file_id is not None:
            param = f"{param}.file_id"
            raise InvalidRequestError(f"`{param}`: no files are kept here; send the file as `file_data`", param=param)
        param = f"{param}.file_data"
        if content.file_data is None:
            raise InvalidRequestError(f"`{param}` is required", param=param, code="missing_required_parameter")
        data = decoded(content.file_data, self._settings.max_file_bytes, param, what="a file")
        name = "".join(c for c in content.filename or "" if c.isprintable() and c not in '<>"')
        file = OpenedFile(name, data)
        if b"%PDF-" in data[:_PDF_WITHIN]:
            return file
        if (form := _image_of(data)) is not None:
            file.image = ImagePart(ImageURL(f"data:image/{form};base64,{base64.b64encode(data).decode()}"))
            return file
        file.text = _text_of(data, param)
        if len(file.text) > self._settings.max_file_characters:
            raise PayloadTooLargeError(
                f"`{param}` has {len(file.text)} characters; at most {self._settings.max_file_characters} are allowed",
                param=param,
            )
        return file

    async def pdf_text(self, data: bytes, param: str) -> str:
        """The text of a PDF file.

        Raises:
            InvalidRequestError: the file is damaged, encrypted or without text, or takes too long.
            PayloadTooLargeError: it has too many pages or characters.
        """
        param = f"{param}.file_data"
        async with self._gate:
            found = await self._run(data, param)
        if found.error:
            refused = PayloadTooLargeError if found.too_large else InvalidRequestError
            raise refused(f"`{param}`: {found.error}", param=param)
        return found.text

    async def _run(self, data: bytes, param: str) -> PDFText:
        settings = self._settings
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tessera.language.attachments.pdf_text",
            str(settings.max_pages),
            str(settings.max_file_characters),
            str(settings.file_timeout_s),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            preexec_fn=die_with_parent(),
        )
        try:
            async with asyncio.timeout(settings.file_timeout_s):
                written, _ = await process.communicate(data)
        except TimeoutError as error:
            raise InvalidRequestError(
                f"`{param}`: finding its text takes over {settings.file_timeout_s:g} seconds; send the text itself",
                param=param,
            ) from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        try:
            return msgspec.json.decode(written, type=PDFText)
        except msgspec.DecodeError as error:
            if process.returncode == 1:
                raise UnavailableError("the process that reads PDF files did not start; try again") from error
            raise InvalidRequestError(
                f"`{param}`: finding its text takes more memory or time than one file may; send the text itself",
                param=param,
            ) from error


def _image_of(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((form for magic, form in _IMAGES if data.startswith(magic)), None)


def _text_of(data: bytes, param: str) -> str:
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnsupportedMediaError(f"`{param}` is none of the kinds that are read: {READABLE}", param=param) from error
    if "\0" in text:
        raise UnsupportedMediaError(f"`{param}` is none of the kinds that are read: {READABLE}", param=param)
    return text.replace("\r\n", "\n").strip()
