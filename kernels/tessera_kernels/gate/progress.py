"""What earlier runs of the compile gate found, so that it goes on where it was stopped: a line of JSON for each launch.

A line belongs to the code that it was made of (`bench.results.code_key`); of other code it is forgotten. What failed is
compiled again. Does not know how anything is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tessera_kernels.gate.table import CompiledLaunch

Task = tuple[str, str, str]
"""Op, launch and chip."""


class GateProgress:
    """Results by task.

    Args:
        path: of the file; None to keep nothing.
        key_of: of an op's code.
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
        """Keep a result at once."""
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
            return  # a line that a killed run has cut
        if not faults and key == self._key(built.op):
            self._found[built.op, built.name, built.target] = built

    def _key(self, op: str) -> str:
        if op not in self._keys:
            self._keys[op] = self._key_of(op)
        return self._keys[op]
