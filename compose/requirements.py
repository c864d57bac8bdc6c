# ruff: noqa: INP001 - a program of its own, in a folder that is no package
"""Print what an image has to install before our own code, so that a change of code reuses the layer.

Usage: requirements.py pyproject.toml [extra,…]. Expands extras that name other extras of ours. Does not know versions
beyond those bounds: pip reads them from the constraints.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def requirements(project: dict[str, object], wanted: str) -> list[str]:
    """Requirements of the base, and of the extras that `wanted` names, parted by commas."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    waiting = [extra for extra in wanted.split(",") if extra]
    for extra in waiting:
        if extra not in extras:
            raise SystemExit(f"there is no extra {extra!r}; there are {', '.join(extras)}")
    found = list(project["dependencies"])  # type: ignore[call-overload]
    while waiting:
        for line in extras[waiting.pop()]:
            own = re.fullmatch(rf"{project['name']}\[(?P<names>[\w, -]+)\]", line)
            if own:
                waiting += [name.strip() for name in own["names"].split(",")]
            else:
                found.append(line)
    return sorted(set(found))


if __name__ == "__main__":
    given = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
    sys.stdout.write("\n".join(requirements(given, sys.argv[2] if len(sys.argv) > 2 else "")) + "\n")
