"""What a benchmark has found so far: a JSON file per op, kept as soon as the op is finished.

A file belongs to the code that it was made by: another version of it, of torch or of Triton begins again. Does not know
what is measured or how.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tessera_kernels import tuning

PACKAGE = Path(__file__).parents[1]
SHARED = (".", "bench", "cpu", "storage", "triton_parts")
"""Folders of the package whose code takes part in the results of every op."""
Rows = list[dict[str, Any]]


class BenchResults:
    """By op: `key` of the code, `checks` and `times` where they are known."""

    def __init__(self, ops: Sequence[str], folder: Path | None, *, again: bool) -> None:
        """Read what is there.

        Args:
            ops: which.
            folder: of the device's files; None to keep nothing.
            again: whether to begin anew.
        """
        self._folder = folder
        self._parts: dict[str, dict[str, Any]] = {op: {"op": op, "key": code_key(op)} for op in ops}
        for op, new in self._parts.items():
            kept = None if again else self._read(op)
            if kept is not None and kept.get("key") == new["key"]:
                self._parts[op] = kept

    def without(self, what: str) -> list[str]:
        """The ops that have no `checks`, or no `times`, yet."""
        return [op for op, part in self._parts.items() if what not in part]

    def add(self, op: str, what: str, rows: Rows | None) -> Rows | None:
        """Put in and keep what was found; None if it was not finished. What failed is not kept for the next run."""
        if rows is not None:
            self._parts[op] = self._parts[op] | {what: rows}
            if self._folder is not None:
                self._write(op)
        return rows

    def ops(self) -> list[dict[str, Any]]:
        """Everything, by op; lists are empty where nothing is known."""
        return [{"checks": [], "times": [], **part} for part in self._parts.values()]

    def faults(self) -> Rows:
        """The rows of what went wrong."""
        return [row for part in self.ops() for what in ("checks", "times") for row in faults(part[what])]

    def _read(self, op: str) -> dict[str, Any] | None:
        if self._folder is None:
            return None
        try:
            kept = json.loads((self._folder / f"{op}.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return kept if isinstance(kept, dict) else None

    def _write(self, op: str) -> None:
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._folder / f"{op}.part"
        part = {name: value for name, value in self._parts[op].items() if isinstance(value, str) or not faults(value)}
        unfinished.write_text(json.dumps(part, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(self._folder / f"{op}.json")


def faults(rows: Rows) -> Rows:
    """Those that say why they failed."""
    return [row for row in rows if row.get("fault")]


def code_key(op: str) -> str:
    """Of the code that makes an op's results: its folder, what all share, and the versions of what compiles it."""
    digest = hashlib.sha256(f"{torch.__version__} {tuning.triton_version()}".encode())
    sources = [source for folder in (*SHARED, op) for source in (PACKAGE / folder).glob("*.py")]
    for path in sorted([*sources, *tuning.FOLDER.glob("*.json")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
