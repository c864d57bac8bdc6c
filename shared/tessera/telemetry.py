"""Logs: one line per event, with the request id that runs through every process.

Secrets are never passed to a logger: keys are named by their hash (see `tessera_gateway.keys`), prompts are not logged.
Metrics live in `tessera.web.metrics`. Does not know what is logged.
"""

from __future__ import annotations

import logging
import sys
import time
from contextvars import ContextVar
from typing import Any

import msgspec

request_id_var: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that the current task works on. A context variable, not state: each task has its own."""

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
    request_id = request_id_var.get()
    if request_id is not None:
        fields.setdefault("request_id", request_id)
    return fields


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, then the record's own fields."""

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
        return msgspec.json.encode(entry, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """A line for people: time, level, process, message, fields."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = " ".join(f"{key}={value}" for key, value in _fields(record).items())
        line = f"{stamp} {record.levelname.lower():7} {self.process:8} {record.getMessage()}"
        if fields:
            line += f"  {fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def configure_logging(process: str, *, level: str = "info", form: str = "text") -> None:
    """Send the root logger to stderr.

    Args:
        process: name of this process in every line (`gateway`, `text`, `text-engine`, …).
        level: `debug`, `info`, `warning` or `error`.
        form: `text` or `json`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if form == "json" else TextFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "httpx", "aiohttp.access", "celery.redirected", "kombu", "PIL", "libav"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
