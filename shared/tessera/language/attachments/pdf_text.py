"""Finds the text of one PDF file, as a process of its own: the file on standard input, `PDFText` on standard output.

A file may be made to take any memory and any time, so both are limited for this process before it reads a byte.
"""

from __future__ import annotations

import io
import math
import resource
import sys

import msgspec

MOST_MEMORY = 1024 * 1024 * 1024
"""Most bytes of address space of the process."""


class PDFText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a PDF file, or why it has none."""

    text: str = ""
    error: str = ""
    """Why there is no text, as a sentence behind the name of the field; empty if there is."""
    too_large: bool = False
    """Whether the error is a limit of pages or characters."""


def text_of(data: bytes, most_pages: int, most_characters: int) -> PDFText:
    """The text of a PDF file, a line break between pages."""
    from pypdf import PdfReader  # noqa: PLC0415 - a library that only this process loads

    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted:
            return PDFText(error="the PDF file is encrypted; send it without a password")
        count = len(reader.pages)
        if count > most_pages:
            error = f"the PDF file has {count} pages; at most {most_pages} are allowed"
            return PDFText(error=error, too_large=True)
        texts: list[str] = []
        characters = 0
        for page in reader.pages:
            texts.append(page.extract_text().strip())
            characters += len(texts[-1])
            if characters > most_characters:
                error = f"the text of the PDF file has more than {most_characters} characters"
                return PDFText(error=error, too_large=True)
    except MemoryError:
        return PDFText(error="finding its text takes more memory than one file may; send the text itself")
    except Exception as error:  # noqa: BLE001 - a damaged file can fail anywhere in its reader
        return PDFText(error=f"the PDF file is damaged: {type(error).__name__}: {str(error)[:200]}")
    text = "\n".join(texts).strip()
    if not text:
        return PDFText(error="the PDF file has no text; send its pages as images to a model that sees")
    # A damaged font table can name half of a character, which no encoding of text has.
    return PDFText(text=text.encode("utf-8", "replace").decode())


def main() -> None:
    """Read the file and write what was found."""
    pages, characters, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 1))
    sys.stdout.buffer.write(msgspec.json.encode(text_of(sys.stdin.buffer.read(), pages, characters)))


if __name__ == "__main__":
    main()
