"""Judges the video starter: clips of held-out prompts, made as the service makes them, are read by the checker.

A clip counts when everything is as asked: how many things there are, the colour, shape and motion of each, and the
background. Does not know training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from PIL import Image

from tessera.device.hardware import choose
from tessera.diffusion.families.wan.model import WanModel
from tessera.diffusion.loading.pipeline import load
from tessera.diffusion.request import DiffusionRequest, Frames, to_frames
from tessera.starters.recipe import Evaluation, Measure
from tessera_video.starter import checker, data
from tessera_video.starter.model import GUIDANCE_SCALE, STEPS

SAMPLES = 100
AT_ONCE = 10
LEAST_SHARE, LEAST_READ = 90.0, 98.0


@dataclass(frozen=True)
class HeldOutPrompt:
    """One held-out prompt; `picture` is the first frame to begin with, if any."""

    scene: data.ClipScene
    prompt: str
    seed: int
    picture: Frames | None


def evaluate(directory: Path, evaluation: Evaluation) -> list[Measure]:
    """A `Recipe.evaluate`."""
    samples = evaluation.samples or SAMPLES
    loaded = load(directory, choose(cast("Literal['auto', 'cpu', 'cuda']", evaluation.device)))
    assert isinstance(loaded, WanModel)
    read = read_rendered(evaluation.seed, samples)
    from_text, clips = [], []
    for image in (False, True):
        cases = draw_cases(evaluation.seed, samples, image=image)
        evaluation.report(f"making {samples} clips from held-out prompts{' and first frames' if image else ''}")
        clips = make_clips(loaded, cases)
        sights = [checker.observe(clip) for clip in clips]
        if not image:
            from_text = list(zip(cases, sights, strict=True))
    whole = share([agrees(case.scene, sight) for case, sight in from_text])
    starts = [
        case.picture is not None and checker.first_frame_agrees(clip, case.picture) and agrees(case.scene, sight)
        for case, clip, sight in zip(cases, clips, sights, strict=True)
    ]
    return [
        Measure(name="held-out prompts shown as asked", value=whole, unit="%", samples=samples, at_least=LEAST_SHARE),
        *(
            Measure(name=f"… {name} as asked", value=value, unit="%", samples=samples)
            for name, value in attributes(from_text).items()
        ),
        Measure(name="… from a given first frame", value=share(starts), unit="%", samples=samples),
        Measure(name="rendered clips the judge reads", value=read, unit="%", samples=samples, at_least=LEAST_READ),
    ]


def draw_cases(seed: int, count: int, *, image: bool) -> list[HeldOutPrompt]:
    """Held-out scenes and what is asked of them; half have one thing, half two."""
    random = np.random.default_rng([seed, int(image)])
    cases = []
    for index in range(count):
        scene = data.draw_scene(random, held=True, things=1 + index % 2)
        picture = data.render(scene, random)[0] if image else None
        cases.append(HeldOutPrompt(scene, data.describe(scene, random), int(random.integers(2**31)), picture))
    return cases


def make_clips(model: WanModel, cases: Sequence[HeldOutPrompt]) -> list[Frames]:
    """The clips, with the steps and the guidance of the card."""
    clips = []
    for first in range(0, len(cases), AT_ONCE):
        states = [model.begin(_request(case)) for case in cases[first : first + AT_ONCE]]
        while running := [state for state in states if not state.done]:
            model.step(running)
        clips += [to_frames(model.decode(state)) for state in states]
    return clips


def agrees(scene: data.ClipScene, sight: checker.ObservedClip) -> bool:
    """Whether a clip shows a scene, and nothing else."""
    asked = Counter((thing.colour, thing.shape, thing.motion) for thing in scene.things)
    seen = Counter((thing.colour, thing.shape, thing.motion) for thing in sight.things)
    return asked == seen and scene.background == sight.background


def read_rendered(seed: int, count: int) -> float:
    """Percentage of rendered clips that the judge reads right: the most that anything could reach."""
    random = np.random.default_rng([seed, 2])
    right = []
    for _ in range(count):
        scene = data.draw_scene(random)
        right.append(agrees(scene, checker.observe(data.render(scene, random))))
    return share(right)


def attributes(pairs: Sequence[tuple[HeldOutPrompt, checker.ObservedClip]]) -> dict[str, float]:
    """Percentage of clips in which one kind of attribute is right, whatever the others are."""
    found: dict[str, list[bool]] = {"background": [case.scene.background == sight.background for case, sight in pairs]}
    for name in ("colour", "shape", "motion"):
        found[name] = [_values(case.scene.things, name) == _values(sight.things, name) for case, sight in pairs]
    return {name: share(values) for name, values in found.items()}


def share(values: Sequence[bool]) -> float:
    """Percentage of those that are true."""
    return 100.0 * sum(values) / len(values)


def _values(things: Sequence[Any], name: str) -> Counter[str]:
    return Counter(getattr(thing, name) for thing in things)


def _request(case: HeldOutPrompt) -> DiffusionRequest:
    return DiffusionRequest(
        id="judged",
        prompt=case.prompt,
        negative_prompt="",
        width=data.SIDE,
        height=data.SIDE,
        frames=data.FRAMES,
        steps=STEPS,
        guidance_scale=GUIDANCE_SCALE,
        seed=case.seed,
        image=None if case.picture is None else Image.fromarray(case.picture),
    )
