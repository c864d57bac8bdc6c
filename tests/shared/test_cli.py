"""The command line: answers at once, refuses by name, and tells scripts by its status how it went."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tessera.cli import main
from tessera.hub.cards import write_card
from tessera.settings.example import example
from tessera.wire.models import Card


def tessera(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tessera.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd)


def test_help_answers_in_well_under_half_a_second() -> None:
    took = []
    for _ in range(3):
        began = time.monotonic()
        assert tessera("--help").returncode == 0
        took.append(time.monotonic() - began)
    assert min(took) < 0.5


def test_config_prints_the_documented_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    assert capsys.readouterr().out == example()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up", "--only", "text,audio"], "--only text,audio: choose from gateway, text, vision, video, speech"),
        (["up", "--port", "99999"], "gateway.port"),
        (["doctor", "--config", "absent.toml"], "absent.toml"),
    ],
)
def test_a_wrong_argument_is_refused_by_name_before_anything_happens(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    done = tessera(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_models_are_listed_with_their_notice_and_what_is_missing_with_the_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("mine", ".mine.partial"):
        directory = tmp_path / "models" / folder
        directory.mkdir(parents=True)
        (directory / "model.gguf").write_bytes(b"weights")
        card = Card(
            id="mine", family="Llama", tasks=["chat"], source="tests", parameters=7, licence="none", notice="odd"
        )
        write_card(directory, card)
    assert main(["models", "list", "--data", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (mine,) = [line for line in lines if "mine" in line]
    assert "odd" in mine
    assert any("tessera models pull smollm2-135m-instruct" in line for line in lines)
    assert main(["models", "verify", "--data", str(tmp_path)]) == 0
    (tmp_path / "models" / "mine" / "model.gguf").write_bytes(b"others")
    assert main(["models", "verify", "--data", str(tmp_path)]) == 1
    assert "is damaged" in capsys.readouterr().out


def test_pulling_what_does_not_exist_fails_with_the_names_there_are(tmp_path: Path) -> None:
    done = tessera("models", "pull", "no-such-model", "--data", str(tmp_path))
    assert done.returncode == 1
    assert "smollm2-135m-instruct" in done.stderr
    assert "Traceback" not in done.stderr
