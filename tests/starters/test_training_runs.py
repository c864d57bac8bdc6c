"""A training that is interrupted ends with the weights of one that was not; what is damaged is refused."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tessera.errors import ModelLoadError, StartError
from tessera.hub.cards import write_card
from tessera.starters import command, optimize, recipe, shipped
from tessera.starters.recipe import Evaluation, Recipe
from tessera.starters.run import Run, Stage, TrainingPaused
from tessera.wire.models import Card, Measure

STEPS = 12
CPU = torch.device("cpu")


class Line:
    """Fits a line with dropout, so that torch's generator matters too."""

    name = "line"
    steps = STEPS

    def __init__(self, run: Run, pause_before: int | None = None) -> None:
        self.run = run
        self.pause_before = pause_before
        run.reseed("line")
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 1))
        self.average = optimize.Average(self.model, 0.9)
        self.optimizer = optimize.adamw([self.model], 1e-2, weight_decay=0.1)

    def modules(self) -> dict[str, nn.Module]:
        return {"model": self.model, "average": self.average}

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"adamw": self.optimizer}

    def step(self, index: int) -> dict[str, float]:
        draw = optimize.generator(self.run.seed, index)
        x = torch.from_numpy(draw.standard_normal((8, 4)).astype(np.float32))
        optimize.set_learning_rate(self.optimizer, optimize.cosine(index, self.steps, 1e-2, warmup=3))
        loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.average.update(self.model)
        if index + 1 == self.pause_before:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"loss": float(loss.detach())}


def card() -> Card:
    return Card(id="line", family="Line", tasks=["chat"], source="tests", parameters=97, licence="none")


def line(pause_before: int | None = None, at_least: float = 0.0) -> Recipe:
    def train(run: Run) -> Card:
        stage = Line(run, pause_before)
        run.fit(stage)
        from safetensors.torch import save_file

        save_file(stage.model.state_dict(), run.output / "model.safetensors")
        return card()

    def evaluate(directory: Path, evaluation: Evaluation) -> list[Measure]:
        assert (directory / "model.safetensors").is_file()
        return [Measure(name="exact", value=50.0, unit="%", samples=evaluation.samples or 8, at_least=at_least)]

    return Recipe("line", "fits a line", ("json",), train, evaluate, None)


class Point:
    """An entry point."""

    name = "line"

    def __init__(self, found: Recipe) -> None:
        self.found = found

    def load(self) -> Recipe:
        return self.found


def trained(monkeypatch: pytest.MonkeyPatch, folder: Path, found: Recipe, lines: list[str], fresh: bool = False) -> int:
    monkeypatch.setattr(recipe, "entry_points", lambda group: [Point(found)])
    return command.train(
        "line",
        work=folder / "work",
        output=folder / "models" / "line",
        device="cpu",
        threads=1,
        seed=1,
        minutes=None,
        fresh=fresh,
        report=lines.append,
    )


def test_a_training_stopped_by_a_signal_goes_on_and_ends_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines: list[str] = []
    assert trained(monkeypatch, tmp_path / "whole", line(), lines) == 0
    lines.clear()
    assert trained(monkeypatch, tmp_path / "parts", line(pause_before=5), lines) == command.UNFINISHED
    assert "line: paused at step 5 of 12" in lines
    assert not (tmp_path / "parts/models/line").exists()
    assert list((tmp_path / "parts/models").iterdir()) == []
    lines.clear()
    assert trained(monkeypatch, tmp_path / "parts", line(), lines) == 0
    assert lines[0] == "line: goes on at step 5 of 12"
    whole, parts = (tmp_path / name / "models/line/model.safetensors" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()


def test_a_finished_stage_is_not_trained_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert trained(monkeypatch, tmp_path, line(), []) == 0
    first = (tmp_path / "models/line/model.safetensors").read_bytes()
    lines: list[str] = []
    assert trained(monkeypatch, tmp_path, line(pause_before=1), lines) == 0
    assert (tmp_path / "models/line/model.safetensors").read_bytes() == first
    assert not any("about" in text for text in lines)


def test_the_time_limit_pauses(tmp_path: Path) -> None:
    run = Run(seed=1, device=CPU, work=tmp_path, output=tmp_path, report=lambda _: None, minutes=0)
    with pytest.raises(TrainingPaused):
        run.fit(Line(run))
    with pytest.raises(TrainingPaused):
        run.check_time()
    assert (tmp_path / "line.safetensors").is_file()


KILLED = """
import os, sys
from pathlib import Path
import torch
from tessera.starters import checkpoint
from tessera.starters.checkpoint import Position
path = Path(sys.argv[1])
model = torch.nn.Linear(2, 2)
checkpoint.save(path, {"model": model}, {}, Position(7, 1.0))
real = checkpoint.save_file
def half(tensors, new, metadata):
    real(tensors, new, metadata=metadata)
    os.truncate(new, 40)
    os.kill(os.getpid(), 9)
checkpoint.save_file = half
checkpoint.save(path, {"model": model}, {}, Position(8, 2.0))
"""


def test_a_process_killed_while_it_writes_a_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    from tessera.starters import checkpoint

    path = tmp_path / "stage.safetensors"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    found = checkpoint.load(path, {"model": nn.Linear(2, 2)}, {}, CPU)
    assert found is not None
    assert found.index == 7


@pytest.mark.parametrize("damage", ["cut", "other recipe"])
def test_a_checkpoint_that_does_not_fit_is_refused_with_the_cure(damage: str, tmp_path: Path) -> None:
    run = Run(seed=1, device=CPU, work=tmp_path, output=tmp_path, report=lambda _: None)
    stage: Stage = Line(run)
    run.fit(stage)
    path = tmp_path / "line.safetensors"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    else:
        stage.modules = lambda: {"model": nn.Linear(3, 3)}  # type: ignore[method-assign]
    with pytest.raises(ModelLoadError, match=r"line\.safetensors.*--fresh"):
        run.fit(stage)


def test_fresh_begins_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert trained(monkeypatch, tmp_path, line(pause_before=5), []) == command.UNFINISHED
    lines: list[str] = []
    assert trained(monkeypatch, tmp_path, line(), lines, fresh=True) == 0
    assert not any("goes on" in text for text in lines)


def test_a_training_that_ends_below_its_bar_says_so_and_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines: list[str] = []
    assert trained(monkeypatch, tmp_path, line(at_least=90), lines) == 1
    assert any("BELOW" in text for text in lines)


def test_evaluate_prints_the_table_and_fails_below_a_bar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert trained(monkeypatch, tmp_path, line(), []) == 0

    def judged(found: Recipe) -> tuple[int, str]:
        monkeypatch.setattr(recipe, "entry_points", lambda group: [Point(found)])
        lines: list[str] = []
        status = command.evaluate(
            ["line"],
            models=tmp_path / "models",
            directory=tmp_path / "models/line",
            device="cpu",
            threads=1,
            seed=3,
            samples=4,
            report=lines.append,
        )
        return status, "\n".join(lines)

    status, text = judged(line(at_least=40))
    assert status == 0
    assert "with seed 3" in text
    assert "line     exact    50 %   ≥ 40  4        ok" in text
    assert not list((tmp_path / "models/line").glob(".*")), "a directory that is judged is left as it is"
    status, text = judged(line(at_least=60))
    assert status == 1
    assert "1 of the measures are below" in text
    weights = tmp_path / "models/line/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is damaged"):
        judged(line())


@pytest.mark.parametrize("name", recipe.names())
def test_every_recipe_names_functions_that_are_there_and_needs_no_torch_to_be_named(name: str) -> None:
    found = recipe.find(name)
    assert (found.train is None) == (found.weights is None), "what is not trained here is fetched"
    for call in filter(None, (found.train, found.evaluate)):
        module, _, function = call.__qualname__.partition(":")
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        assert f"def {function}(" in Path(spec.origin).read_text(encoding="utf-8")
    script = f"from tessera.starters import recipe; recipe.find({name!r}); import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


def test_an_unknown_recipe_and_a_missing_judge_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "entry_points", lambda group: [Point(line())])
    with pytest.raises(StartError, match="no recipe 'nothing'; there are line"):
        recipe.find("nothing")
    with pytest.raises(StartError, match=r"no_such_judge.*tessera\[judges\]"):
        recipe.require_judges(Recipe("line", "", ("json", "no_such_judge"), None, line().evaluate, None))


@pytest.mark.parametrize("damage", ["changed", "cut", "missing", "no card"])
def test_shipped_weights_that_are_not_whole_are_refused_with_the_file_and_the_cure(damage: str, tmp_path: Path) -> None:
    weights, target = tmp_path / "weights", tmp_path / "target"
    weights.mkdir()
    target.mkdir()
    file = weights / "model.safetensors"
    file.write_bytes(b"0123456789")
    write_card(weights, card())
    assert shipped.build_from(weights)(target, lambda _: None).id == "line"
    assert (target / "model.safetensors").read_bytes() == b"0123456789"
    if damage == "changed":
        file.write_bytes(b"0123456780")
    elif damage == "cut":
        file.write_bytes(b"012345678")
    elif damage == "missing":
        file.unlink()
    else:
        (weights / "card.json").unlink()
    name = "card.json" if damage == "no card" else "model.safetensors"
    with pytest.raises(ModelLoadError, match=rf"{name}.*pip install --force-reinstall tessera"):
        shipped.build_from(weights)(target, lambda _: None)


def test_the_average_follows_the_weights_and_is_given_back() -> None:
    model = nn.Linear(2, 2)
    average = optimize.Average(model, 0.999)
    first = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    for _ in range(3):
        average.update(model)
    average.copy_to(model)
    moved = (model.weight - first).mean().item()
    assert 0.5 < moved < 1.0
