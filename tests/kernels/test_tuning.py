"""Tuned configurations: timed ones are found, a missing one is no error, a malformed file is named."""

from __future__ import annotations

import json

import pytest
import torch

from tessera_kernels import tune, tuning
from tessera_kernels.bench.cases import TuningChoice, choices_of, measured_ops

DEVICE = "NVIDIA H100 80GB HBM3"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "FOLDER", tmp_path)
    tuning.load.cache_clear()
    yield tmp_path
    tuning.load.cache_clear()


def test_an_unknown_device_has_no_configuration_and_no_error():
    assert tuning.lookup("rms_norm", DEVICE, "bfloat16", "K4096 many") is None


def test_written_configurations_are_found_and_others_stay(folder):
    first, second = {"num_warps": 8, "BLOCK_T": 1}, {"num_warps": 4}
    tuning.write(DEVICE, "rms_norm", {("bfloat16", "K4096 many"): first})
    path = tuning.write(DEVICE, "rotary", {("float16", "H32"): second})
    assert path == folder / "nvidia-h100-80gb-hbm3.json"
    assert tuning.lookup("rms_norm", DEVICE, "bfloat16", "K4096 many") == first
    assert tuning.lookup("rotary", DEVICE, "float16", "H32") == second
    assert tuning.lookup("rotary", DEVICE, "bfloat16", "H32") is None
    assert tuning.lookup("rotary", "NVIDIA H200", "float16", "H32") is None
    assert json.loads(path.read_text())["device"] == DEVICE


def test_another_triton_has_configurations_of_its_own(monkeypatch):
    tuning.write(DEVICE, "rms_norm", {("bfloat16", "K4096"): {"num_warps": 8}})
    monkeypatch.setattr(tuning, "triton_version", lambda: "2.0")
    assert tuning.lookup("rms_norm", DEVICE, "bfloat16", "K4096") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must have the fields 'device' and 'configurations'"),
        ('{"device": "x", "configurations": {}, "more": 1}', "and no other"),
        ('{"device": "x", "configurations": []}', r"configurations must be an object by Triton's version, not \[\]"),
        (
            '{"device": "x", "configurations": {"3.6": {"rms_norm": {"bfloat16": 3}}}}',
            "configurations / 3.6 / rms_norm / bfloat16 must be an object by bucket, not 3",
        ),
        (
            '{"device": "x", "configurations": {"3.6": {"a": {"b": {"c": {"num_warps": "4"}}}}}}',
            'configurations / 3.6 / a / b / c / num_warps must be a whole number, not "4"',
        ),
    ],
)
def test_a_malformed_file_is_named_with_the_place(folder, text, message):
    path = folder / f"{tuning.slug(DEVICE)}.json"
    path.write_text(text)
    with pytest.raises(tuning.TuningError, match=message) as caught:
        tuning.lookup("rms_norm", DEVICE, "bfloat16", "K4096")
    assert str(path) in str(caught.value)


def test_a_launcher_uses_a_tuned_configuration():
    from tessera_kernels.rms_norm import triton

    guessed = triton.config(4096, 64, torch.bfloat16)
    tuned = {"BLOCK_T": 2, "num_warps": 1}
    tuning.write(tuning.device_here(), "rms_norm", {("bfloat16", triton.bucket(4096, 64)): tuned})
    assert triton.config(4096, 64, torch.bfloat16) == tuned != guessed
    assert triton.config(4096, 64, torch.float16) == guessed


@pytest.mark.parametrize("op", measured_ops())
def test_choices_have_distinct_buckets_and_several_configurations(op):
    choices = choices_of(op)
    names = [(choice.dtype, choice.bucket) for choice in choices]
    assert len(set(names)) == len(names)
    assert all(len(choice.configs) > 1 for choice in choices)


def test_tuning_without_a_gpu_is_refused_with_advice(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert tune.main([]) == 2
    assert "There is no GPU here" in capsys.readouterr().out
    assert tune.main(["--ops", "nothing"]) == 2
    assert "There is no op nothing; there are " in capsys.readouterr().out


def test_the_fastest_configuration_that_runs_is_chosen(monkeypatch, capsys):
    def run(config, x):
        if config["num_warps"] == 1:
            raise RuntimeError("out of resources")
        return x

    class Timed:
        def __init__(self, call):
            call()
            self.seconds = {2: 3.0, 4: 1.0, 8: 2.0}[call.args[0]["num_warps"]]

    monkeypatch.setattr(tune, "timed", Timed)
    configs = [{"num_warps": warps} for warps in (1, 2, 4, 8)]
    choice = TuningChoice("bfloat16", "all", lambda device: [torch.zeros(1, device=device)], run, configs)
    assert tune.fastest(choice, torch.device("cpu")) == ({"num_warps": 4}, 1.0)
    assert "{'num_warps': 1} does not run: RuntimeError: out of resources" in capsys.readouterr().out


def test_tuned_buckets_are_not_timed_again(monkeypatch, capsys):
    ran = []

    class Timed:
        def __init__(self, call):
            ran.append(call.args[0]["num_warps"])
            self.seconds = 1.0 / call.args[0]["num_warps"]

    def choice(bucket: str) -> TuningChoice:
        return TuningChoice(
            "bfloat16", bucket, lambda _: [], lambda *_: None, [{"num_warps": warps} for warps in (1, 2)]
        )

    choices = [choice("a")]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: DEVICE)
    monkeypatch.setattr(tune, "measured_ops", lambda: ["some"])
    monkeypatch.setattr(tune, "choices_of", lambda op: choices)
    monkeypatch.setattr(tune, "timed", Timed)
    assert tune.main(["--jobs", "1"]) == 0
    assert tuning.lookup("some", DEVICE, "bfloat16", "a") == {"num_warps": 2}
    choices.append(choice("b"))
    ran.clear()
    assert tune.main(["--jobs", "1"]) == 0
    assert ran == [1, 2]
    assert tune.main(["--jobs", "1", "--again"]) == 0
    assert ran == [1, 2] * 3
    assert "some / bfloat16 / b: {'num_warps': 2}, 500,000.0 us" in capsys.readouterr().out
