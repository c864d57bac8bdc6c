"""Evaluates the video starter: makes clips of held-out prompts as the service does, and lets the checker judge them.

A clip counts when everything is as requested: the number of things, the colour, shape and motion of each, and the
background. Knows nothing of training.
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
"""Clips per measure when the evaluation names no number."""
BATCH = 10
"""Clips that are denoised together."""
MIN_CORRECT, MIN_JUDGED = 90.0, 98.0
"""Percent of generated clips that must be as requested, and percent of rendered clips that the judge must recognize."""


@dataclass(frozen=True)
class HeldOutPrompt:
    """One held-out prompt with its scene and seed."""

    scene: data.ClipScene
    prompt: str
    seed: int
    picture: Frames | None
    """First frame to start from: uint8 [height, width, 3]; None for text alone."""


def evaluate(directory: Path, evaluation: Evaluation) -> list[Measure]:
    """Implement `Recipe.evaluate`."""
    samples = evaluation.samples or SAMPLES
    loaded = load(directory, choose(cast("Literal['auto', 'cpu', 'cuda']", evaluation.device)))
    assert isinstance(loaded, WanModel)
    read = read_rendered(evaluation.seed, samples)
    from_text, clips = [], []
    for image in (False, True):
        cases = draw_cases(evaluation.seed, samples, image=image)
        evaluation.report(f"making {samples} clips from held-out prompts{' and first frames' if image else ''}")
        clips = make_clips(loaded, cases)
        observations = [checker.observe(clip) for clip in clips]
        if not image:
            from_text = list(zip(cases, observations, strict=True))
    whole = share([agrees(case.scene, observed) for case, observed in from_text])
    starts = [
        case.picture is not None and checker.first_frame_agrees(clip, case.picture) and agrees(case.scene, observed)
        for case, clip, observed in zip(cases, clips, observations, strict=True)
    ]
    return [
        Measure(name="held-out prompts shown as asked", value=whole, unit="%", samples=samples, at_least=MIN_CORRECT),
        *(
            Measure(name=f"… {name} as asked", value=value, unit="%", samples=samples)
            for name, value in attributes(from_text).items()
        ),
        Measure(name="… from a given first frame", value=share(starts), unit="%", samples=samples),
        Measure(name="rendered clips the judge reads", value=read, unit="%", samples=samples, at_least=MIN_JUDGED),
    ]


def draw_cases(seed: int, count: int, *, image: bool) -> list[HeldOutPrompt]:
    """Draw held-out prompts; half of them have one thing, half two."""
    random = np.random.default_rng([seed, int(image)])
    cases = []
    for index in range(count):
        scene = data.draw_scene(random, held=True, things=1 + index % 2)
        picture = data.render(scene, random)[0] if image else None
        cases.append(HeldOutPrompt(scene, data.describe(scene, random), int(random.integers(2**31)), picture))
    return cases


def make_clips(model: WanModel, cases: Sequence[HeldOutPrompt]) -> list[Frames]:
    """Make the clips with the steps and the guidance scale of the card."""
    clips = []
    for first in range(0, len(cases), BATCH):
        states = [model.begin(_request(case)) for case in cases[first : first + BATCH]]
        while running := [state for state in states if not state.done]:
            model.step(running)
        clips += [to_frames(model.decode(state)) for state in states]
    return clips


def agrees(scene: data.ClipScene, observed: checker.ObservedClip) -> bool:
    """Return whether a clip shows exactly a scene."""
    requested = Counter((thing.colour, thing.shape, thing.motion) for thing in scene.things)
    shown = Counter((thing.colour, thing.shape, thing.motion) for thing in observed.things)
    return requested == shown and scene.background == observed.background


def read_rendered(seed: int, count: int) -> float:
    """Return the percentage of rendered clips that the judge recognizes: the most that a model could reach."""
    random = np.random.default_rng([seed, 2])
    right = []
    for _ in range(count):
        scene = data.draw_scene(random)
        right.append(agrees(scene, checker.observe(data.render(scene, random))))
    return share(right)


def attributes(pairs: Sequence[tuple[HeldOutPrompt, checker.ObservedClip]]) -> dict[str, float]:
    """Return for each kind of attribute the percentage of clips in which it is right, whatever the others are."""
    found: dict[str, list[bool]] = {
        "background": [case.scene.background == observed.background for case, observed in pairs]
    }
    for name in ("colour", "shape", "motion"):
        found[name] = [_values(case.scene.things, name) == _values(seen.things, name) for case, seen in pairs]
    return {name: share(values) for name, values in found.items()}


def share(values: Sequence[bool]) -> float:
    """Return the percentage of values that are true."""
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
