"""Results of a benchmark so far: a JSON file for each op, written as soon as the op is finished.

A file is valid for the code that produced it: after a change of the code, of torch or of Triton the op is measured
again. Knows nothing of what is measured or how.
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
"""Folders of the package whose code affects the results of every op."""
Rows = list[dict[str, Any]]
"""Rows of checks or of times, as `bench.run` returns them; each can be written as JSON."""


class BenchResults:
    """Results by op: `key` of the code, and `checks` and `times` if they are known."""

    def __init__(self, ops: Sequence[str], folder: Path | None, *, again: bool) -> None:
        """Read results of earlier runs of the same code.

        Args:
            ops: names of the ops.
            folder: the folder with the device's files; None to read and write nothing.
            again: whether to discard results of earlier runs.
        """
        self._folder = folder
        self._parts: dict[str, dict[str, Any]] = {op: {"op": op, "key": code_key(op)} for op in ops}
        for op, new in self._parts.items():
            kept = None if again else self._read(op)
            if kept is not None and kept.get("key") == new["key"]:
                self._parts[op] = kept

    def without(self, what: str) -> list[str]:
        """The ops that have no results of a kind, `checks` or `times`, yet."""
        return [op for op, part in self._parts.items() if what not in part]

    def add(self, op: str, what: str, rows: Rows | None) -> Rows | None:
        """Add rows of a kind, `checks` or `times`, and write them; rows with faults are not written for the next run.

        Args:
            op: name of the op.
            what: `checks` or `times`.
            rows: the rows; None if the op was not finished, which adds nothing.

        Returns:
            The rows.
        """
        if rows is not None:
            self._parts[op] = self._parts[op] | {what: rows}
            if self._folder is not None:
                self._write(op)
        return rows

    def ops(self) -> list[dict[str, Any]]:
        """Results of every op; `checks` and `times` are empty if they are not known."""
        return [{"checks": [], "times": [], **part} for part in self._parts.values()]

    def faults(self) -> Rows:
        """All rows that have a fault."""
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
    """The rows that have a fault, which says why they failed."""
    return [row for row in rows if row.get("fault")]


def code_key(op: str) -> str:
    """Hash of the code that produces an op's results: its folder, the shared folders, tuned files, torch and Triton."""
    digest = hashlib.sha256(f"{torch.__version__} {tuning.triton_version()}".encode())
    sources = [source for folder in (*SHARED, op) for source in (PACKAGE / folder).glob("*.py")]
    for path in sorted([*sources, *tuning.FOLDER.glob("*.json")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
