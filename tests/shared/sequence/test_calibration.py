"""A calibration is stored beside its model, and made again when the weights or the settings change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tessera.hub.cards import weight_files
from tessera.sequence.runner.calibration import CALIBRATION_FILE, Calibration, calibrate, load_or_calibrate
from tessera_kernels.storage.paged_kv import PagedKV


def find(times: list[int]) -> Calibration:
    times.append(1)
    return Calibration({"a.b": torch.arange(4.0)}, [torch.ones(2, 8), torch.full((2, 8), float(len(times)))])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_file({"weight": torch.zeros(4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_a_model_is_calibrated_once(directory: Path) -> None:
    times: list[int] = []
    first, second = (load_or_calibrate(directory, "as they are", lambda: find(times)) for _ in range(2))
    assert len(times) == 1
    assert torch.equal(first.inputs["a.b"], second.inputs["a.b"])
    assert [one.tolist() for one in first.keys] == [one.tolist() for one in second.keys]


def test_other_weights_or_settings_or_a_damaged_file_are_looked_at_again(directory: Path) -> None:
    times: list[int] = []
    load_or_calibrate(directory, "these", lambda: find(times))
    load_or_calibrate(directory, "those", lambda: find(times))
    assert len(times) == 2
    save_file({"weight": torch.zeros(5)}, directory / "model.safetensors")
    assert load_or_calibrate(directory, "those", lambda: find(times)).keys[1].max() == 3
    (directory / "config.json").write_text('{"rope_theta": 1}')
    load_or_calibrate(directory, "those", lambda: find(times))
    assert len(times) == 4
    (directory / CALIBRATION_FILE).write_bytes((directory / CALIBRATION_FILE).read_bytes()[:40])
    load_or_calibrate(directory, "those", lambda: find(times))
    assert len(times) == 5
    load_or_calibrate(directory, "those", lambda: find(times))
    assert len(times) == 5


def test_it_is_no_weight_file_of_the_model(directory: Path) -> None:
    load_or_calibrate(directory, "", lambda: find([]))
    assert (directory / CALIBRATION_FILE).is_file()
    assert [path.name for path in weight_files(directory)] == ["model.safetensors"]


def test_where_nothing_can_be_written_it_is_found_each_time(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tessera.sequence.runner.calibration.save_file", full)
    times: list[int] = []
    for _ in range(2):
        assert load_or_calibrate(directory, "", lambda: find(times)).inputs["a.b"].tolist() == [0, 1, 2, 3]
    assert len(times) == 2
    assert not (directory / CALIBRATION_FILE).exists()


def test_inputs_and_keys_are_looked_at() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.ReLU())
    cache = PagedKV.zeros(5, 4, 2, (8, 8), dtype=torch.int8, device=torch.device("cpu"))
    assert cache.key_scale_PSH is not None
    cache.key_PSHD[2, 1, 0, 3], cache.key_scale_PSH[2, 1, 0] = -100, 0.5

    def run() -> None:
        model[0](torch.tensor([[1.0, -5.0, 2.0], [0.0, 1.0, -3.0]]))

    floats = PagedKV.zeros(2, 4, 2, (8, 8), dtype=torch.float32, device=torch.device("cpu"))
    floats.key_PSHD[0, 0, 1, 7] = -2.5
    found = calibrate(model, [cache, floats], run)
    assert {name: one.tolist() for name, one in found.inputs.items()} == {"0": [1.0, 5.0, 3.0]}
    assert found.keys[0].nonzero().tolist() == [[0, 3]]
    assert found.keys[0].max() == 50
    assert found.keys[1].nonzero().tolist() == [[1, 7]]
    assert not model[0]._forward_pre_hooks
