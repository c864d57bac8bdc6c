"""What a process asks of the machine it runs on."""

from __future__ import annotations

import subprocess
import sys

import pytest

GIVE_WAY = (
    "import os; from tessera.device.hardware import yield_to_interactive; yield_to_interactive(); print(os.nice(0))"
)


@pytest.mark.slow
@pytest.mark.parametrize(("started_at", "then"), [(0, 10), (15, 15)])
def test_workers_give_way_and_never_take_back_what_their_parent_gave(started_at, then):
    command = ["nice", "-n", str(started_at), sys.executable, "-c", GIVE_WAY]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) == then
