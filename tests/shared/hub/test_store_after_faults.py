"""The model store after a fault: a killed build, damaged weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tessera.errors import ModelLoadError
from tessera.hub import store
from tessera.wire.models import Card

NAME = "stand-in"


class Starter:
    """An entry point whose build writes one weight file."""

    name = NAME

    def __init__(self) -> None:
        self.builds = 0

    def load(self) -> Any:
        return self.build

    def build(self, directory: Path, report: store.Report) -> Card:
        self.builds += 1
        report("making it")
        (directory / "model.gguf").write_bytes(b"weights")
        return Card(id=NAME, family="StandIn", tasks=["chat"], source="tests", parameters=7, licence="none")


@pytest.fixture
def starter(monkeypatch: pytest.MonkeyPatch) -> Starter:
    found = Starter()
    monkeypatch.setattr(store, "entry_points", lambda group: [found])
    return found


def test_damaged_and_missing_weights_are_found_and_the_cure_is_said(starter: Starter, tmp_path: Path) -> None:
    found = store.ensure(NAME, tmp_path)
    store.check(found)
    (found.path / "model.gguf").write_bytes(b"weightz")
    with pytest.raises(ModelLoadError, match=r"damaged.*tessera models pull stand-in --force"):
        store.check(found)
    (found.path / "model.gguf").unlink()
    with pytest.raises(ModelLoadError, match="missing"):
        store.check(found)


BUILDING = """
import sys, time
from pathlib import Path
from tessera.hub import store
class Starter:
    name = "stand-in"
    def load(self):
        return self.build
    def build(self, directory, report):
        (directory / "model.gguf").write_bytes(b"half")
        print("begun", flush=True)
        time.sleep(600)  # until it is killed
store.entry_points = lambda group: [Starter()]
store.ensure("stand-in", Path(sys.argv[1]))
"""


def test_what_a_killed_build_left_is_taken_away_by_the_next(starter: Starter, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", BUILDING, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    assert store.locate(NAME, tmp_path) is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    began = time.monotonic()
    found = store.ensure(NAME, tmp_path)
    assert time.monotonic() - began < 10
    store.check(found)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".{NAME}.lock", NAME]
