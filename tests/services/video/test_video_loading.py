"""The video service's settings say how a model's products, attention and kernels are computed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from tests.shared.diffusion.tiny_models import mochi, request, wan

from tessera.device.hardware import Device
from tessera.diffusion.families.base import FamilyModel
from tessera.errors import SettingsError
from tessera.models.quantized import Int8Linear
from tessera.settings.load import load as load_settings
from tessera.settings.video import VideoSettings
from tessera_kernels import dispatch
from tessera_video.loading import computation_key, load_model

CPU = Device(torch.device("cpu"), torch.float32, "cpu")
SMALL = {"width": 16, "height": 16, "frames": 5, "steps": 2}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Wan pipeline whose layers are large enough to be quantized."""
    place = tmp_path_factory.mktemp("wide")
    pipe = wan()
    torch.manual_seed(4)
    config: dict[str, Any] = {"num_attention_heads": 4, "attention_head_dim": 32, "ffn_dim": 256}
    pipe.register_modules(transformer=diffusers.WanTransformer3DModel(**{**pipe.transformer.config, **config}).eval())
    pipe.save_pretrained(str(place))
    return place


@pytest.fixture(autouse=True)
def _triton_as_before() -> Iterator[None]:
    yield
    dispatch.disable_triton("")


def clip(model: Any) -> np.ndarray:
    state = model.begin(request(**SMALL))
    while not state.done:
        model.step([state])
    return model.decode(state)


def test_weights_are_rounded_as_the_settings_say_and_the_log_tells(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        few = load_model(directory, CPU, VideoSettings(weights="int8"))
    stored = load_model(directory, CPU, VideoSettings())
    assert isinstance(few, FamilyModel)
    replaced = [name for name, part in few.pipe.transformer.named_modules() if isinstance(part, Int8Linear)]
    assert len(replaced) == 3 * 10
    assert all(name.startswith("blocks.") for name in replaced)
    assert "30 layers in int8, 2.4 to 0.6 MB" in caplog.text
    assert 0 < np.abs(clip(few) - clip(stored)).max() < 0.1


def test_kernels_are_left_aside_where_the_settings_say_so(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        load_model(directory, CPU, VideoSettings(kernels="reference"))
    assert "blocks as Diffusers has them: the setting `video.kernels` is `reference`" in caplog.text
    load_model(directory, CPU, VideoSettings())
    assert "reference" not in dispatch.triton_support(torch.zeros(1)).reason


def test_a_pipeline_that_runs_whole_keeps_its_weights_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mochi().save_pretrained(str(tmp_path))
    load_model(tmp_path, CPU, VideoSettings(weights="fp8"))
    assert "MochiPipeline is computed as Diffusers has it" in caplog.text


def test_workers_that_compute_otherwise_share_no_checkpoints() -> None:
    ways = [VideoSettings(), VideoSettings(weights="fp8"), VideoSettings(attention="int8")]
    ways.append(VideoSettings(kernels="reference"))
    assert len({computation_key(way) for way in ways}) == len(ways)


def test_an_unknown_scheme_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"video\.weights"):
        load_settings(environment={}, overrides={"video": {"weights": "int3"}})
