"""Formats what the terminal shows: progress lines with seconds, one table, a command to paste.

Knows nothing about processes. A terminal that is closed is no error: the suite's own log has every line.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from tessera.wire.models import Model

HEADINGS = ("service", "model", "device", "address", "state")
CURL_KEY = "YOUR_KEY"
NOTICE_WIDTH = 32
"""Most characters of a notice in the table."""


class ServiceRow(msgspec.Struct, frozen=True):
    """One row of the table: a service with one of its models."""

    service: str
    model: str
    device: str
    address: str
    state: str


class Terminal:
    """Prints to a stream and to the suite's log.

    Args:
        stream: stream to print to, usually standard output.
        log: file to which every line is appended with the date and the time of day; None keeps no log.
    """

    def __init__(self, stream: TextIO, log: Path | None) -> None:
        self.stream: TextIO | None = stream
        self.log = log
        self.started = time.monotonic()

    def progress(self, name: str, message: str) -> None:
        """Print a line with the seconds since the start."""
        self.print(f"{time.monotonic() - self.started:6.1f} s  {name:<14} {message}")

    def print(self, text: str) -> None:
        """Print lines as they are."""
        if self.stream is not None:
            try:
                print(text, file=self.stream, flush=True)
            except (OSError, ValueError):
                self.stream = None
        if self.log is not None:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            with contextlib.suppress(OSError), self.log.open("a", encoding="utf-8") as file:
                file.writelines(f"{stamp} {line}\n" for line in text.splitlines())


def table(rows: Sequence[ServiceRow]) -> str:
    """The rows as text, with columns as wide as their widest cell."""
    lines = [HEADINGS, *((row.service, row.model, row.device, row.address, row.state) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    padded.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in padded)


def model_state(state: str, model: Model) -> str:
    """A model's state with the first words of its card's notice, so that nobody takes random output for quality.

    The whole notice stands below the table, because the table would be wider than a terminal with it.
    """
    notice = model.card.notice if model.card else None
    if not notice:
        return state
    clause = re.split("[:;,]", notice, maxsplit=1)[0]
    return f"{state}, {textwrap.shorten(clause, NOTICE_WIDTH, placeholder=' …')}"


def curl(base_url: str, models: Sequence[Model], *, with_key: bool) -> str | None:
    """A curl command that works when pasted, for the first model that one can ask; None when there is no such model."""
    for model in models:
        tasks = model.card.tasks if model.card else ["chat"]
        if "chat" in tasks:
            messages = [{"role": "user", "content": "What is the capital of Japan?"}]
            body = {"model": model.id, "messages": messages, "max_tokens": 64, "temperature": 0}
            return _curl(f"{base_url}/v1/chat/completions", body, with_key=with_key)
    for model in models:
        tasks = model.card.tasks if model.card else []
        if "speech" in tasks:
            voices = (model.card.voices if model.card else []) or ["alloy"]
            speech = {"model": model.id, "input": "Good morning.", "voice": voices[0]}
            return _curl(f"{base_url}/v1/audio/speech", speech, with_key=with_key) + " --output speech.wav"
        if "video" in tasks:
            video = {"model": model.id, "prompt": "A paper boat on a river."}
            return _curl(f"{base_url}/v1/videos", video, with_key=with_key)
    return None


def _curl(url: str, body: Mapping[str, object], *, with_key: bool) -> str:
    key = f" -H 'authorization: Bearer {CURL_KEY}'" if with_key else ""
    return f"curl {url} -H 'content-type: application/json'{key} -d {shlex.quote(json.dumps(body))}"
