"""Every command and every snippet of a README runs as it is written; `tests/README.md` has the markers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^(?:<!-- run: (?P<how>suite|alone|not)(?P<output>, output)?(?:, (?P<reason>[^>]+))? -->\n)?"
    r"```(?P<language>console|python)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
ANYTHING = "…"
DOCUMENTED_URL = "http://127.0.0.1:8000"


@dataclass
class Block:
    """A fenced block of a README with what its marker says."""

    file: Path
    line: int
    how: str | None
    compared: bool
    reason: str | None
    language: str
    body: str

    @property
    def name(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def blocks() -> Iterator[Block]:
    folders = ("compose", "k8s", "kernels", "loadtests", "services", "shared", "tests")
    documents = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.md"))]
    for file in [ROOT / "README.md", *documents]:
        text = file.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            yield Block(
                file=file,
                line=text[: match.start()].count("\n") + 1,
                how=match["how"],
                compared=bool(match["output"]),
                reason=match["reason"],
                language=match["language"],
                body=match["body"],
            )


BLOCKS = list(blocks())


def commands(body: str) -> tuple[str, str]:
    """The commands of a console block as one script, and the output that it shows."""
    script: list[str] = []
    shown: list[str] = []
    continued = False
    for line in body.splitlines():
        if line.startswith("$ ") or continued:
            script.append(line if continued else line[2:])
            continued = line.endswith("\\")
        else:
            shown.append(line)
    return "\n".join(script), "\n".join(shown)


def matches(shown: str, said: str) -> bool:
    """Whether `said` is what is shown; `…` stands for anything, white space does not count."""
    pieces = [re.escape(" ".join(piece.split())) for piece in shown.split(ANYTHING)]
    return re.fullmatch(r"\s*.*?\s*".join(pieces), " ".join(said.split())) is not None


def run(block: Block, directory: Path, url: str | None) -> None:
    body = block.body.replace(DOCUMENTED_URL, url) if url else block.body
    script, shown = commands(body) if block.language == "console" else (body, "")
    program = ["bash", "-euo", "pipefail", "-c"] if block.language == "console" else [sys.executable, "-c"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    done = subprocess.run(
        [*program, script],
        capture_output=True,
        text=True,
        cwd=directory,
        env=environment | {"PATH": path},
        timeout=200,
    )
    assert done.returncode == 0, f"{block.name}\n{script}\n{done.stdout}\n{done.stderr}"
    if block.compared:
        assert matches(shown, done.stdout), f"{block.name} shows\n{shown}\nbut it says\n{done.stdout}"


def named(how: str) -> list[Any]:
    return [pytest.param(block, id=block.name) for block in BLOCKS if block.how == how]


def test_every_block_says_whether_it_runs_or_why_not() -> None:
    assert [block.name for block in BLOCKS if block.how is None] == []
    assert [block.name for block in BLOCKS if block.how == "not" and not block.reason] == []


@pytest.mark.parametrize("block", named("alone"))
def test_what_a_readme_shows_runs_without_a_suite(block: Block, tmp_path: Path) -> None:
    run(block, tmp_path, None)


@pytest.mark.parametrize("block", named("suite"))
def test_what_a_readme_shows_runs_against_the_suite(block: Block, suite: Any, tmp_path: Path) -> None:
    run(block, tmp_path, suite.base_url)


def test_shown_output_may_leave_things_out_but_not_change_them() -> None:
    assert matches('{"id": "…", "text": "Paris"}', '{"id": "chat-1",\n "text": "Paris"}')
    assert not matches('{"id": "…", "text": "Paris"}', '{"id": "chat-1", "text": "Rome"}')
    assert commands("$ one \\\n    two\nshown\n") == ("one \\\n    two", "shown")
