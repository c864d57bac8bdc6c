"""The same checks everywhere: what `make lint` runs is what the hooks before a commit run, and from the same place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
HOOKS: list[dict[str, Any]] = [
    {**hook, "repo": repository["repo"]}
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]
]


def commands_of(target: str) -> list[str]:
    """The commands of a target of the Makefile, with the folder of programs filled in."""
    text = (ROOT / "Makefile").read_text()
    recipe = re.search(rf"^{target}:[^\n]*\n((?:\t[^\n]*\n)+)", text, re.MULTILINE)
    assert recipe is not None, target
    return [line.lstrip("\t@").replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]


def test_hooks_run_what_make_lint_runs_and_the_structure_tests() -> None:
    assert [hook["entry"] for hook in HOOKS] == [*commands_of("lint"), ".venv/bin/pytest -q tests/structure"]


def test_hooks_run_from_the_virtual_environment_and_fetch_nothing() -> None:
    for hook in HOOKS:
        assert hook["repo"] == "local", hook["id"]
        assert hook["language"] == "system", hook["id"]
        assert hook["pass_filenames"] is False, hook["id"]
        assert hook["entry"].startswith(".venv/bin/"), hook["id"]


def test_continuous_integration_runs_the_checks_and_every_test() -> None:
    run = (ROOT / ".ci" / "run").read_text().splitlines()
    assert run[-3:] == ["make lint", "make test", "make clients"]
    (command,) = commands_of("test")
    assert " -m " not in command, "`make test` leaves no test out"


def test_quick_tests_leave_out_what_is_slow_and_what_starts_a_suite() -> None:
    (command,) = commands_of("quick")
    assert '-m "not slow and not e2e"' in command
