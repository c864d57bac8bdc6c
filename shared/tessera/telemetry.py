"""Logging: one line per event, with the request id, which is the same in all processes.

Secrets are never logged: keys are named by their hash (`tessera_gateway.keys`), and prompts are not logged. What a
client sends (a path, a name) can be part of a line, so characters that would begin a new line, move a terminal's cursor
or reorder the text are escaped here, once for all lines. Metrics are in `tessera.web.metrics`. Knows nothing about what
is logged.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from contextvars import ContextVar
from typing import Any

request_id_var: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that the current task handles; each task has its own value."""

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1: new lines, escape sequences
    "\u2028\u2029"  # line and paragraph separators
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, embeddings, overrides and isolates of text direction
    "\ud800-\udfff]"  # lone surrogates, which no stream can encode
)


def escaped(text: str) -> str:
    """`text` on one line, its control characters as `\\uXXXX`; other characters stay as they are."""
    if text.isprintable():  # nearly always, and much faster than the search
        return text
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
    request_id = request_id_var.get()
    if request_id is not None:
        fields.setdefault("request_id", request_id)
    return fields


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, process, logger, message, then the record's own fields."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self.process,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        # What `json` leaves as it is (DEL, C1, separators, surrogates) is inside of strings, where `\\uXXXX` means it.
        return escaped(json.dumps(entry, default=str, ensure_ascii=False))


class TextFormatter(logging.Formatter):
    """Formats a record as a line for people: time, level, process, message, fields. The lines of a traceback follow,
    indented, so that no text within an exception looks like a record."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = " ".join(f"{key}={value}" for key, value in _fields(record).items())
        line = f"{stamp} {record.levelname.lower():7} {self.process:8} {record.getMessage()}"
        if fields:
            line += f"  {fields}"
        line = escaped(line)
        if record.exc_info:
            traceback = self.formatException(record.exc_info).split("\n")
            line += "".join(f"\n    {escaped(each)}" for each in traceback)
        return line


def configure_logging(process: str, *, level: str = "info", form: str = "text") -> None:
    """Make the root logger write to standard error.

    Args:
        process: name of this process, which every line has (`gateway`, `text`, `text-engine`, …).
        level: least severe level to log: `debug`, `info`, `warning` or `error`.
        form: format of the lines, `text` or `json`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if form == "json" else TextFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "httpx", "aiohttp.access", "celery.redirected", "kombu", "PIL", "libav"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
