"""Runs a peer or a measurement in a process of its own and reads the JSON that it prints in its last line.

A process of its own gives a peer its own libraries and threads, and keeps torch out of the load generator.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def json_of(command: Sequence[str | Path], name: str) -> Any:
    """Run `command` to its end and decode the last line of its output.

    Args:
        command: the arguments of Python, as `["-c", script, …]` or `["-m", module, …]`, or a whole command whose first
            element is the path of an interpreter.
        name: what failed, for the message.

    Raises:
        SystemExit: the process failed; shows the end of its errors.
    """
    whole = command if isinstance(command[0], Path) else [sys.executable, *command]
    done = subprocess.run(whole, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])
