"""Processes that share each step of a training end with the weights of one that is alone, and never outlive it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tessera.starters import command
from tessera.starters.data_parallel import DataParallelGroup
from tessera.starters.recipe import Recipe

STAGE = """
import sys, time
from pathlib import Path
import torch
from torch import nn
from tessera.starters import optimize
from tessera.starters.run import Run, TrainingPaused
from tessera.starters.data_parallel import DataParallelGroup
rank, count, folder, steps, batch = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), 7
torch.set_num_threads(1)
group = DataParallelGroup(rank, count)
run = Run(seed=1, device=torch.device("cpu"), work=folder, output=folder, report=print, group=group)
class Stage:
    name = "stage"
    def __init__(self):
        self.steps = steps
        torch.manual_seed(rank)  # the first one's weights count
        self.model = nn.Sequential(nn.Conv3d(2, 4, 1), nn.Flatten(), nn.Linear(32, 3))
        self.model[0].weight.data = self.model[0].weight.data.contiguous(memory_format=torch.channels_last_3d)
        self.optimizer = optimize.adamw([self.model], 1e-2)
    def modules(self):
        return {"model": self.model}
    def optimizers(self):
        return {"adamw": self.optimizer}
    def step(self, index):
        x = torch.randn(batch, 2, 2, 2, 2)
        own = group.own_items(batch)
        self.optimizer.zero_grad(set_to_none=True)
        self.model(x[own]).square().mean().backward()
        group.sum_gradients(self.model.parameters(), group.own_share(batch))
        self.optimizer.step()
        if index == 3:
            print("going", flush=True)
        return {}
if count > 1:
    group.join(folder / "rendezvous")
stage = Stage()
try:
    with run.stoppable():
        run.fit(stage)
except TrainingPaused:
    print("paused", flush=True)
"""


def started(rank: int, count: int, folder: Path, steps: int) -> subprocess.Popen[str]:
    given = [sys.executable, "-c", STAGE, str(rank), str(count), str(folder), str(steps)]
    return subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_that_share_end_with_the_weights_of_one_alone(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("alone", "together")]
    for folder in folders:
        folder.mkdir()
    processes = [started(0, 1, folders[0], 30), *(started(rank, 2, folders[1], 30) for rank in range(2))]
    for process in processes:
        assert process.wait(120) == 0, process.communicate()[1]
    alone, together = (load_file(folder / "stage.safetensors") for folder in folders)
    assert alone.keys() == together.keys()
    for name, tensor in alone.items():
        torch.testing.assert_close(together[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_training_worker_ends_when_the_first_one_pauses_or_is_killed(number: signal.Signals, tmp_path: Path) -> None:
    first, second = (started(rank, 2, tmp_path, 1_000_000) for rank in range(2))
    assert first.stdout is not None
    assert first.stdout.readline().strip() == "going"
    first.send_signal(number)
    assert first.wait(60) == (0 if number == signal.SIGTERM else -number)
    assert second.wait(60) != 0
    assert (tmp_path / "stage.safetensors").is_file() == (number == signal.SIGTERM)


def test_a_training_worker_that_is_killed_ends_the_training_with_a_word(tmp_path: Path) -> None:
    first, second = (started(rank, 2, tmp_path, 1_000_000) for rank in range(2))
    assert first.stdout is not None
    assert first.stdout.readline().strip() == "going"
    second.kill()
    assert first.wait(60) != 0
    assert second.wait(60) == -signal.SIGKILL
    assert "a process that shares this training has ended" in first.communicate()[1]


def test_parts_of_a_batch_are_apart_and_all_of_it() -> None:
    for items in (1, 2, 7, 32):
        for count in (1, 2, 3, 4):
            parts = [DataParallelGroup(rank, count) for rank in range(count)]
            assert [item for one in parts for item in range(items)[one.own_items(items)]] == list(range(items))
            assert sum(one.own_share(items) for one in parts) == pytest.approx(1)


def test_as_many_processes_as_cores_where_a_recipe_can_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command.os, "sched_getaffinity", lambda _: set(range(8)))
    able = Recipe("able", "", (), None, lambda *_: [], None, data_parallel=True)
    unable = Recipe("unable", "", (), None, lambda *_: [], None)
    assert command._processes(able, 0, on_cpu=True) == command.MOST_PROCESSES
    assert command._processes(able, 0, on_cpu=False) == 1
    assert command._processes(able, 3, on_cpu=True) == 3
    assert command._processes(unable, 0, on_cpu=True) == 1
    with pytest.raises(command.StartError, match="--processes"):
        command._processes(unable, 2, on_cpu=True)
