"""Decoding: in tiles as Diffusers does it if memory or a setting requires it, one clip at a time, beside the steps."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from tests.shared.diffusion.tiny_models import cogvideox, hunyuan, ltx, mochi, request, wan

from tessera.diffusion.batcher import StepBatcher
from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.families.registry import family_of
from tessera.diffusion.request import DiffusionRequest
from tessera.diffusion.tiles import tile_pixels
from tessera.diffusion.whole_pipeline import PipelineModel
from tessera.errors import InvalidRequestError
from tessera.hub.clip_memory import GIB, ClipMemoryBudget, estimate

CPU = torch.device("cpu")
DEADLINE_S = 120.0
MOST_DIFFERENCE = 1e-4


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def of(pipe: Any) -> FamilyModel:
    family = family_of(type(pipe).__name__)
    assert family is not None
    return family(pipe, CPU)


def small_tiles(pipe: Any) -> Any:
    """Tiles of about 32 x 32 pixels, 8 pixels of it in common with the next."""
    vae = pipe.vae
    if isinstance(vae, diffusers.AutoencoderKLCogVideoX):
        vae.enable_tiling(tile_sample_min_height=48, tile_sample_min_width=40)
        vae.disable_tiling()
        return pipe
    known = dict.fromkeys(("tile_sample_min_height", "tile_sample_min_width"), 32)
    known |= dict.fromkeys(("tile_sample_stride_height", "tile_sample_stride_width"), 24)
    known |= dict.fromkeys(("tile_latent_min_height", "tile_latent_min_width"), 8)
    for name, value in known.items():
        if hasattr(vae, name):
            setattr(vae, name, value)
    return pipe


def ours(model: FamilyModel, request: DiffusionRequest) -> np.ndarray:
    state = model.begin(request)
    while not state.done:
        model.step([state])
    return model.decode(state)


def theirs(pipe: Any, request: DiffusionRequest) -> np.ndarray:
    more = {"guidance_scale": request.guidance_scale}
    if "guider" in pipe.components:
        pipe.guider, more = pipe.guider.new(guidance_scale=request.guidance_scale), {}
    made = pipe(
        prompt=request.prompt,
        width=request.width,
        height=request.height,
        num_frames=request.frames,
        num_inference_steps=request.steps,
        generator=torch.Generator().manual_seed(request.seed),
        output_type="np",
        **more,
    )
    return made.frames[0][: request.frames]


@pytest.mark.slow
@pytest.mark.parametrize("make", [wan, ltx, cogvideox, hunyuan])
def test_a_clip_decoded_in_tiles_equals_diffusers_with_tiling(make: Callable[[], Any]) -> None:
    model, pipe = of(small_tiles(make())), small_tiles(make())
    wanted = request(width=64, height=64, frames=5, steps=2, guidance_scale=1.0)
    whole = ours(model, wanted)
    assert np.abs(whole - theirs(pipe, wanted)).max() < MOST_DIFFERENCE
    room = ClipMemoryBudget(GIB, tile_above=48 * 40)
    model.decodes_in_tiles = lambda asked: room.in_tiles(asked, model.shapes)
    pipe.vae.enable_tiling()
    tiled = ours(model, wanted)
    assert np.abs(tiled - theirs(pipe, wanted)).max() < MOST_DIFFERENCE
    assert np.abs(tiled - whole).max() > 0
    assert not model.pipe.vae.use_tiling
    small = request(frames=5, steps=1, guidance_scale=1.0)
    assert not room.in_tiles(small, model.shapes)


def test_clips_are_decoded_in_tiles_where_they_would_not_fit_otherwise_and_only_then() -> None:
    shapes = of(wan()).shapes
    assert shapes.tile_pixels == 256 * 256
    large = request(width=1280, height=720, frames=9, guidance_scale=1.0)
    # Of a decoder as wide as Wan's own.
    shapes = dataclasses.replace(shapes, decoder_width=96)
    whole, tiled = estimate(large, shapes), estimate(large, shapes, in_tiles=True)
    assert tiled < whole / 2
    plenty, scarce = ClipMemoryBudget(whole), ClipMemoryBudget(whole - 1)
    assert (plenty.in_tiles(large, shapes), plenty.bytes_needed(large, shapes)) == (False, whole)
    assert (scarce.in_tiles(large, shapes), scarce.bytes_needed(large, shapes)) == (True, tiled)
    with scarce.hold(large, shapes, lambda: None):
        assert scarce._taken == tiled
    with (
        pytest.raises(InvalidRequestError, match="at most"),
        ClipMemoryBudget(tiled - 1).hold(large, shapes, lambda: None),
    ):
        pass
    assert not scarce.in_tiles(large, dataclasses.replace(shapes, tile_pixels=0))


def test_tiles_that_would_not_meet_are_not_used() -> None:
    """Of 32 x 32 pixels and overlaps of a sixth and a fifth Diffusers makes 70 x 68 pixels where 64 x 64 are asked."""
    vae = cogvideox().vae
    assert tile_pixels(vae) == 240 * 360
    vae.enable_tiling(tile_sample_min_height=32, tile_sample_min_width=32)
    assert tile_pixels(vae) == 0


def test_a_fault_while_tiles_are_decoded_leaves_the_next_clip_whole() -> None:
    model = of(small_tiles(wan()))
    wanted = request(width=64, height=64, frames=5, steps=1, guidance_scale=1.0)
    whole = ours(model, wanted)
    model.decodes_in_tiles = lambda _: True
    handle = model.pipe.vae.decoder.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ours(model, wanted)
    handle.remove()
    model.decodes_in_tiles = lambda _: False
    assert (ours(model, wanted) == whole).all()


def test_a_pipeline_that_steps_itself_decodes_in_tiles_too() -> None:
    model = PipelineModel(mochi(), CPU)
    assert tile_pixels(model.pipe.vae)
    seen: list[bool] = []
    model.pipe.vae.decoder.register_forward_hook(lambda *_: seen.append(model.pipe.vae.use_tiling))
    wanted = request(frames=7, steps=2, guidance_scale=1.0)
    for tiles in (True, False):
        model.decodes_in_tiles = lambda _, tiles=tiles: tiles
        model.generate(wanted, lambda *_: None)
    assert seen == [True, False]


def test_one_clip_is_decoded_at_a_time_while_others_go_on_stepping() -> None:
    model = of(wan())
    batcher = StepBatcher(model, max_requests=3)
    inside, most, decoded = [0], [0], threading.Lock()
    first_decodes, others_are_done = threading.Event(), threading.Event()
    real = model._decode_latents

    def paint(latents: torch.Tensor) -> torch.Tensor:
        with decoded:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        first_decodes.set()
        assert others_are_done.wait(DEADLINE_S)
        video = real(latents)
        with decoded:
            inside[0] -= 1
        return video

    model._decode_latents = paint  # type: ignore[method-assign]
    left = {"second", "third"}

    def on_step(name: str) -> Callable[..., None]:
        def told(done: int, total: int, _: object) -> None:
            if name != "first" and done == 0:
                assert first_decodes.wait(DEADLINE_S)
            if done == total:
                left.discard(name)
                if not left:
                    others_are_done.set()

        return told

    asked = [request(id=name, frames=5, steps=2, seed=seed) for seed, name in enumerate(("first", "second", "third"))]
    with ThreadPoolExecutor(3) as threads:
        clips = [threads.submit(batcher.generate, each, on_step(each.id)) for each in asked]
        made = [clip.result(DEADLINE_S) for clip in clips]
    batcher.close()
    model._decode_latents = real  # type: ignore[method-assign]
    assert most == [1]
    for each, clip in zip(asked, made, strict=True):
        assert np.abs(clip - (ours(model, each) * 255).round()).max() <= 1
