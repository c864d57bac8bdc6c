"""Runs the conversion of a model of another format in a process of its own, so that its memory is returned.

The process is a module that takes a source and an empty directory. When it fails, its last line of output is
`{"error": …}`. Knows no format.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tessera.errors import ModelLoadError


def run_conversion(module: str, source: Path, directory: Path) -> None:
    """Have `python -m module` fill `directory` with the model in `source`.

    Raises:
        ModelLoadError: it failed; says what the process said.
    """
    command = [sys.executable, "-m", module, str(source.absolute()), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ModelLoadError(f"cannot convert {source}: {_reason(done)}")


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    last = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        return str(json.loads(last)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the conversion ended with status {done.returncode}: {done.stderr[-500:]}"
