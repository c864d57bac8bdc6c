"""Several devices that compute each step together, here processes on one CPU: clips are those of one device."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.shared.diffusion.random_pipeline import build
from tests.shared.diffusion.test_adapters import ours, saved, weights
from tests.shared.diffusion.tiny_models import cogvideox, ltx, request, wan
from tests.waiting import until

from tessera.device.hardware import Device
from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.loading.lora_files import load_adapters
from tessera.diffusion.loading.pipeline import load
from tessera.diffusion.parallel.context import check_divisible
from tessera.diffusion.step_cache.policies import StepCache
from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.settings.video import VideoSettings
from tessera_video.loading import computation_key, load_model

CPU = Device(torch.device("cpu"), torch.float32, "cpu")
DEADLINE_S = 120
LEADER = """
import json, sys
from pathlib import Path
import numpy as np
import torch
from tests.shared.diffusion.tiny_models import picture, request
from tessera.settings.load import load
from tessera.diffusion.loading.lora_files import load_adapters
from tessera.hub.adapters import adapter_files
from tessera_video.rank_worker import rank_workers, device_of, share_passes
from tessera_video.loading import load_model

torch.set_num_threads(1)
directory, output, asked = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
settings = load()
with rank_workers(settings.video.devices, lambda: sys.exit("lost")) as meeting:
    device = device_of(settings, 0)
    model = load_model(directory, device, settings.video)
    load_adapters(model, adapter_files(settings.video.adapters))
    end = share_passes(model, settings, meeting, device)
    states = [model.begin(request(**{**one, "adapters": tuple(map(tuple, one.get("adapters", [])))})) for one in asked]
    while running := [state for state in states if not state.done]:
        model.step(running)
    np.savez(output, *[model.decode(state) for state in states])
    end()
"""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def environment(directory: Path, devices: int, **more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    return {
        **inherited,
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "TESSERA_SUITE__MODELS": str(directory.parent / "models"),
        "TESSERA_VIDEO__MODEL": str(directory),
        "TESSERA_VIDEO__DEVICE": "cpu",
        "TESSERA_VIDEO__DEVICES": str(devices),
        "TESSERA_VIDEO__THREADS": "1",
        **more,
    }


def shared(directory: Path, devices: int, *asked: dict[str, Any], **more: str) -> list[np.ndarray[Any, Any]]:
    """The clips that so many processes make together."""
    output = directory.parent / f"{directory.name}-{devices}.npz"
    command = [sys.executable, "-c", LEADER, str(directory), str(output), json.dumps(asked)]
    done = subprocess.run(
        command, env=environment(directory, devices, **more), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with np.load(output) as clips:
        return [clips[name] for name in clips.files]


@pytest.mark.slow
def test_clips_are_those_of_one_device(tmp_path: Path) -> None:
    """Of a model with two experts; requests of two shapes at different steps, one of them with an adapter."""
    directory = tmp_path / "pipe"
    wan(transformer_2=True, boundary_ratio=0.5).save_pretrained(str(directory))
    film = saved(tmp_path / "film.safetensors", weights())
    asked = [{"seed": 1}, {"seed": 2, "steps": 6, "adapters": [["film", 0.5]]}, {"seed": 3, "width": 48}]
    together = shared(directory, 2, *asked, TESSERA_VIDEO__ADAPTERS=f"film={film}")
    model = load(directory, CPU)
    assert isinstance(model, FamilyModel)
    load_adapters(model, {"film": {0: film}})
    for clip, values in zip(together, asked, strict=True):
        mix = tuple((name, weight) for name, weight in values.get("adapters", []))
        assert np.abs(clip - ours(model, request(**{**values, "adapters": mix}))).max() < 1e-4


def test_what_cannot_be_divided_is_refused_with_what_to_set() -> None:
    with pytest.raises(ModelLoadError, match=r"a CogVideoX.* cannot be divided .*`video\.devices` to 1"):
        check_divisible(cogvideox().transformer, 2)
    with pytest.raises(ModelLoadError, match="a LTXVideoTransformer3DModel cannot be divided"):
        check_divisible(ltx().transformer, 2)
    with pytest.raises(ModelLoadError, match=r"the 2 heads of this WanTransformer3DModel .* 3 devices"):
        check_divisible(wan().transformer, 3)
    check_divisible(wan().transformer, 2)


def test_settings_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    for given, named in (({"attention": "int8"}, "attention"), ({"step_cache": "first_block"}, "step_cache")):
        with pytest.raises(ModelLoadError, match=rf"`video\.{named}` is for one device"):
            load_model(tmp_path, CPU, VideoSettings(devices=2, **given))  # type: ignore[arg-type]
    assert computation_key(VideoSettings(devices=2)) != computation_key(VideoSettings())


def test_a_step_cache_is_refused_where_passes_are_shared(tmp_path: Path) -> None:
    wan().save_pretrained(str(tmp_path))
    model = load(tmp_path, CPU)
    assert isinstance(model, FamilyModel)
    model.shared_by = 2
    with pytest.raises(InvalidRequestError, match="2 devices together"):
        model.begin(request(step_cache=StepCache("first_block", 0.1)))


@pytest.mark.slow
def test_a_worker_whose_device_is_lost_ends_at_once(tmp_path: Path, redis_server: Any) -> None:
    directory = tmp_path / "pipe"
    directory.mkdir()
    build(directory, lambda _: None)
    more = {"TESSERA_SUITE__DATA": str(redis_server.data)}
    log = (tmp_path / "log").open("wb")
    worker = subprocess.Popen(
        [sys.executable, "-m", "tessera_video.worker"],
        env=environment(directory, 2, **more),
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        said = tmp_path / "log"
        until(
            lambda: "each pass is shared by 2 devices" in said.read_text() or worker.poll() is not None,
            DEADLINE_S,
            what=said.read_text,
        )
        assert worker.poll() is None, said.read_text()
        (other,) = children(worker.pid)
        os.kill(other, signal.SIGKILL)
        assert worker.wait(30) == 4
        assert "device 1 has ended with status -9" in said.read_text()
    finally:
        worker.kill()
        worker.wait()
        log.close()


def children(pid: int) -> list[int]:
    """The rank workers of a worker."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_text()
            except OSError:
                continue
            if parent == pid and "tessera_video.rank_worker" in command:
                found.append(int(folder.name))
    return found
