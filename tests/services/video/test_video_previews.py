"""Previews: colours near those of the finished clip, small JPEGs, and failures that never end a clip."""

from __future__ import annotations

import dataclasses
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image
from tests.shared.diffusion.random_pipeline import build
from tests.shared.diffusion.tiny_models import FAMILY_KINDS, request
from torch.nn import functional

from tessera.device.hardware import Device
from tessera.diffusion.batcher import StepBatcher
from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.families.registry import family_of
from tessera.diffusion.loading.pipeline import load
from tessera.diffusion.preview import LatentColours
from tessera.diffusion.request import DiffusionRequest, Frames, OnStep, Resume
from tessera.jobs.artifacts.store import DirectoryArtifacts
from tessera.jobs.records import Lease
from tessera.jobs.worker.runner import JobContext
from tessera.settings.video import VideoSettings
from tessera.wire.jobs import Job, VideoInput
from tessera_video.files.preview_jpeg import LONGEST_SIDE, MAX_BYTES, preview_jpeg, sender
from tessera_video.pipeline import VideoPipeline

CPU = torch.device("cpu")
NEAR = 45
"""Largest mean difference of a linear map from a decoder with random weights, of 255."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def linear_codec(*, encoder_says_nothing: bool) -> tuple[Any, Any, torch.Tensor]:
    """A VAE of 4 channels, 4 x 4 pixels and 2 frames a latent whose colours are linear in its latents."""
    generator = torch.Generator().manual_seed(0)
    mixing_C3 = torch.randn(4, 3, generator=generator) * 0.2

    def paint(latents: torch.Tensor) -> torch.Tensor:
        colours = torch.einsum("bcthw,cd->bdthw", latents, mixing_C3) + 0.1
        behind = colours[:, :, 1:].repeat_interleave(2, dim=2)
        return functional.interpolate(torch.cat([colours[:, :, :1], behind], dim=2), scale_factor=(1, 4, 4))

    def read(video: torch.Tensor) -> torch.Tensor:
        latents = torch.einsum("bdthw,dc->bcthw", video - 0.1, torch.linalg.pinv(mixing_C3))
        return 0 * latents[:, :, ::2, ::4, ::4] if encoder_says_nothing else latents[:, :, ::2, ::4, ::4]

    return paint, read, mixing_C3


@pytest.mark.parametrize("encoder_says_nothing", [False, True])
def test_colours_that_are_linear_in_the_latents_are_found(*, encoder_says_nothing: bool) -> None:
    paint, read, mixing_C3 = linear_codec(encoder_says_nothing=encoder_says_nothing)
    colours = LatentColours.fit(paint, read, 4, CPU)
    latents_CHW = torch.linalg.pinv(mixing_C3).T @ (torch.rand(3, 30) * 1.6 - 0.9)
    painted = colours.to_rgb(latents_CHW.unflatten(1, (5, 6)))
    wanted = (latents_CHW.T @ mixing_C3 + 0.1).unflatten(0, (5, 6))
    assert painted.shape == (5, 6, 3)
    assert np.abs(painted - (wanted.numpy() + 1) * 127.5).max() < 4


def test_a_preview_has_the_colour_of_the_frame_that_comes_of_it(tmp_path: Path) -> None:
    build(tmp_path, lambda _: None)
    model = load(tmp_path, Device(CPU, torch.float32, "cpu"))
    assert isinstance(model, FamilyModel)
    seen: list[Any] = []
    asked = dataclasses.replace(request(steps=6, width=64), preview_steps=2, on_preview=seen.append)
    batcher = StepBatcher(model, max_requests=1)
    frames = batcher.generate(asked, lambda *_: None)
    batcher.close()
    assert [picture.shape for picture in seen] == [(4, 8, 3)] * 2
    assert np.abs(seen[-1].mean((0, 1)) - frames[len(frames) // 2].mean((0, 1))).max() < NEAR


@pytest.mark.parametrize("name", ["LTX", "LTX from an image", "CogVideoX 1.0", "CogVideoX 1.5", "HunyuanVideo 1.5"])
def test_every_family_has_previews(name: str) -> None:
    pipe = FAMILY_KINDS[name]()
    family = family_of(type(pipe).__name__)
    assert family is not None
    model = family(pipe, CPU)
    image = Image.new("RGB", (32, 32), "red") if model.image_input == "required" else None
    state = model.begin(dataclasses.replace(request(), image=image))
    model.step([state])
    first, latents = model.preview(state), state.latents_BCTHW
    assert first.shape == (latents.shape[3], latents.shape[4], 3)
    assert state.clean_BCTHW is not None
    while not state.done:
        model.step([state])
    # Behind the last step nothing is left to remove.
    assert torch.allclose(state.clean_BCTHW, state.latents_BCTHW, atol=0.2)


@pytest.mark.parametrize(("height", "width"), [(60, 104), (8, 8), (1, 400), (90, 160)])
def test_a_preview_is_a_jpeg_of_bounded_size(height: int, width: int) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    data = preview_jpeg(noise)
    image = Image.open(io.BytesIO(data))
    assert image.format == "JPEG"
    assert len(data) <= MAX_BYTES
    assert max(image.size) <= LONGEST_SIDE


class Shower:
    """A model that shows one preview."""

    max_requests = 1

    def __init__(self, picture: Any) -> None:
        self.picture = picture

    def generate(self, request: DiffusionRequest, on_step: OnStep, resume: Resume | None = None) -> Frames:
        if request.preview_steps:
            request.on_preview(self.picture)
        return np.zeros((1, 32, 32, 3), np.uint8)

    def close(self) -> None:
        pass


def context() -> JobContext:
    given = VideoInput(
        model="m",
        prompt="a cat",
        negative_prompt="",
        width=32,
        height=32,
        frames=1,
        fps=8,
        seconds="1",
        steps=4,
        guidance_scale=1.0,
        seed=1,
    )
    job = Job(
        id="video_1",
        kind="video",
        owner="me",
        queue="q",
        status="in_progress",
        input=msgspec.Raw(msgspec.json.encode(given)),
        created_at=0.0,
    )
    return JobContext(Lease(job, 3), threading.Event())


@pytest.mark.parametrize(("every", "shown"), [(5, True), (0, False)])
def test_a_job_shows_its_previews_where_the_settings_want_them(tmp_path: Path, every: int, *, shown: bool) -> None:
    at, model = context(), Shower(np.full((4, 4, 3), 200, np.uint8))
    pipeline = VideoPipeline(model, "m", DirectoryArtifacts(tmp_path), VideoSettings(preview_steps=every))
    pipeline(at.job, at)
    pipeline._writer.shutdown(wait=True)
    data = at.take_preview()
    assert data.startswith(b"\xff\xd8\xff") == shown
    assert at.take_preview() == b""


def test_a_preview_that_cannot_be_encoded_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    at = context()
    with ThreadPoolExecutor(1) as thread:
        sender(at, thread)(np.zeros((4, 4, 2), np.uint8))
    assert at.take_preview() == b""
    assert "a preview of video_1 is not shown" in caplog.text
