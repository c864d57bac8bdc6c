"""Results of earlier runs of the compile gate, so that it continues where it was stopped: a JSON line for each launch.

A line is valid for the code that it was compiled from (`bench.results.code_key`); lines of other code are ignored.
Launches that failed are compiled again. Knows nothing of how launches are compiled.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tessera_kernels.gate.table import CompiledLaunch

Task = tuple[str, str, str]
"""Names of the op, the launch and the chip."""


class GateProgress:
    """Results of compiled launches by task.

    Args:
        path: the file with one line for each result; None to read and write nothing.
        key_of: returns the hash of an op's code.
    """

    def __init__(self, path: Path | None, key_of: Callable[[str], str]) -> None:
        self._path = path
        self._key_of = key_of
        self._keys: dict[str, str] = {}
        self._found: dict[Task, CompiledLaunch] = {}
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._read(line)

    def __contains__(self, task: Task) -> bool:
        return task in self._found

    def __getitem__(self, task: Task) -> CompiledLaunch:
        return self._found[task]

    def add(self, built: CompiledLaunch) -> None:
        """Add a result and append it to the file at once."""
        self._found[built.op, built.name, built.target] = built
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            line = json.dumps({"key": self._key(built.op), **asdict(built)})
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def _read(self, line: str) -> None:
        try:
            found = json.loads(line)
            key, faults = found.pop("key"), tuple(found.pop("faults"))
            built = CompiledLaunch(**found, faults=faults)
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # an incomplete last line of a run that was killed
        if not faults and key == self._key(built.op):
            self._found[built.op, built.name, built.target] = built

    def _key(self, op: str) -> str:
        if op not in self._keys:
            self._keys[op] = self._key_of(op)
        return self._keys[op]
