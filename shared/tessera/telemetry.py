"""Logging: one line per event, with the request id, which is the same in all processes.

Secrets are never logged: keys are named by their hash (`tessera_gateway.keys`), and prompts are not logged. What a
client sends (a path, a name) can be part of a line, so characters that would begin a new line, move a terminal's cursor
or reorder the text are escaped here, once for all lines. Metrics are in `tessera.web.metrics`. Knows nothing about what
is logged.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import threading
import time
from contextvars import ContextVar
from typing import Any, TextIO

request_id_var: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that the current task handles; each task has its own value."""

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}
COLLECT_S = 0.05
"""Seconds for which lines of requests are collected."""
_PLAIN = len(logging.makeLogRecord({}).__dict__)
"""Attributes of a record without fields of its own."""

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
    fields = {}
    if len(record.__dict__) != _PLAIN:  # nearly every record has no field of its own
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
        fields = _fields(record)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return self.line(record.created, record.levelname.lower(), record.name, record.getMessage(), fields)

    def line(self, created: float, level: str, logger: str, message: str, fields: dict[str, Any]) -> str:
        """The line of an event that may have no record."""
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created)) + f".{int(created % 1 * 1000):03d}Z",
            "level": level,
            "process": self.process,
            "logger": logger,
            "message": message,
            **fields,
        }
        # What `json` leaves as it is (DEL, C1, separators, surrogates) is inside of strings, where `\\uXXXX` means it.
        return escaped(json.dumps(entry, default=str, ensure_ascii=False))


class TextFormatter(logging.Formatter):
    """Formats a record as a line for people: time, level, process, message, fields. The lines of a traceback follow,
    indented, so that no text within an exception looks like a record."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process
        self._second, self._stamp = -1, ""

    def line(self, created: float, level: str, _: str, message: str, fields: dict[str, Any]) -> str:
        """The line of an event that may have no record."""
        if int(created) != self._second:
            self._second, self._stamp = int(created), time.strftime("%H:%M:%S", time.localtime(created))
        line = f"{self._stamp} {level:7} {self.process:8} {message}"
        if fields:
            line += "  " + " ".join([f"{key}={value}" for key, value in fields.items()])
        return escaped(line)

    def format(self, record: logging.LogRecord) -> str:
        line = self.line(record.created, record.levelname.lower(), record.name, record.getMessage(), _fields(record))
        if record.exc_info:
            traceback = self.formatException(record.exc_info).split("\n")
            line += "".join(f"\n    {escaped(each)}" for each in traceback)
        return line


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes records as the base class does, and lines of requests, which are many, together after a moment."""

    def __init__(self, stream: TextIO, formatter: JsonFormatter | TextFormatter) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self._lines: list[str] = []
        self._flushing = threading.RLock()
        self._make_line = formatter.line

    def say(self, logger: str, message: str) -> None:
        """Write a line at level `info` soon; only in the thread of a running event loop."""
        request_id = request_id_var.get()
        fields = {} if request_id is None else {"request_id": request_id}
        self._lines.append(self._make_line(time.time(), "info", logger, message, fields))
        if len(self._lines) == 1:
            asyncio.get_running_loop().call_later(COLLECT_S, self.flush)

    def emit(self, record: logging.LogRecord) -> None:
        """Implement `logging.Handler.emit`: what was collected goes first."""
        if self._lines:
            self.flush()
        super().emit(record)

    def flush(self) -> None:
        """Implement `logging.Handler.flush`: write what is collected."""
        with self._flushing:
            lines, self._lines = self._lines, []
            if lines:
                self.stream.write("\n".join([*lines, ""]))
            super().flush()


def log_request(logger: logging.Logger, template: str, *values: object) -> None:
    """What `logger.info` does, at a fraction of its cost where lines go to a `LineHandler` and nowhere else."""
    if not logger.isEnabledFor(logging.INFO):
        return
    handlers = logging.getLogger().handlers
    if len(handlers) == 1 and isinstance(handlers[0], LineHandler) and not logger.handlers:
        handlers[0].say(logger.name, template % values)
    else:
        logger.info(template, *values)


def configure_logging(process: str, *, level: str = "info", form: str = "text") -> None:
    """Make the root logger write to standard error.

    Args:
        process: name of this process, which every line has (`gateway`, `text`, `text-engine`, …).
        level: least severe level to log: `debug`, `info`, `warning` or `error`.
        form: format of the lines, `text` or `json`.
    """
    handler = LineHandler(sys.stderr, JsonFormatter(process) if form == "json" else TextFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "httpx", "aiohttp.access", "celery.redirected", "kombu", "PIL", "libav"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
