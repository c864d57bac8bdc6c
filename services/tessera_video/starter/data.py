"""Generated clips and the prompts that describe them: what the video starter is trained on, and what it is asked.

A scene is a background and one or two things, each a colour, a shape and a motion. Some triples of these are never
trained (`held_out`); every pair inside such a triple is. Does not know models; the judge shares no code with this.

Shapes: T frames, H and W pixels. Lengths are pixels of a 64x64 frame, angles radians.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FRAMES, SIDE, FRAMES_PER_SECOND = 17, 64, 4

COLOURS = {
    "red": (220, 40, 40),
    "orange": (245, 140, 30),
    "yellow": (238, 215, 40),
    "green": (40, 170, 70),
    "blue": (45, 90, 225),
    "purple": (150, 55, 195),
}
SHAPES = ("circle", "square", "triangle", "star")
MOTIONS = ("left", "right", "up", "down", "grow", "shrink", "spin", "bounce", "still")
BACKGROUNDS = {"white": (250, 250, 250), "gray": (128, 128, 128), "black": (8, 8, 8)}

PARTICIPLES = {
    "left": ("moving left", "sliding to the left", "drifting left"),
    "right": ("moving right", "sliding to the right", "drifting right"),
    "up": ("moving up", "rising", "floating up"),
    "down": ("moving down", "falling", "sinking down"),
    "grow": ("growing", "getting bigger", "getting larger"),
    "shrink": ("shrinking", "getting smaller"),
    "spin": ("spinning", "rotating", "turning around"),
    "bounce": ("bouncing", "bouncing up and down"),
    "still": ("standing still", "staying still", "not moving"),
}
VERBS = {
    "left": ("moves left", "slides to the left", "drifts left"),
    "right": ("moves right", "slides to the right", "drifts right"),
    "up": ("moves up", "rises", "floats up"),
    "down": ("moves down", "falls", "sinks down"),
    "grow": ("grows", "gets bigger", "gets larger"),
    "shrink": ("shrinks", "gets smaller"),
    "spin": ("spins", "rotates", "turns around"),
    "bounce": ("bounces", "bounces up and down"),
    "still": ("stands still", "stays still", "does not move"),
}

Clip = npt.NDArray[np.uint8]
"""[T, H, W, 3], RGB."""


@dataclass(frozen=True)
class Thing:
    """What a prompt says of one object."""

    colour: str
    shape: str
    motion: str


@dataclass(frozen=True)
class Scene:
    """What a prompt says. The thing that is named first is the one further to the upper left."""

    things: tuple[Thing, ...]
    background: str


def held_out(thing: Thing) -> bool:
    """Whether a triple is kept from training: a sixth of them, spread so that every pair of attributes is trained."""
    place = list(COLOURS).index(thing.colour) + SHAPES.index(thing.shape) + 2 * MOTIONS.index(thing.motion)
    return place % 6 == 0


def draw_scene(random: np.random.Generator, *, held: bool = False, things: int | None = None) -> Scene:
    """A scene whose things are all trained ones, or all held-out ones.

    Args:
        random: where choices come from.
        held: which of the two.
        things: one or two; None is either.
    """
    count = int(random.integers(1, 3)) if things is None else things
    drawn: list[Thing] = []
    while len(drawn) < count:
        thing = Thing(str(random.choice(list(COLOURS))), str(random.choice(SHAPES)), str(random.choice(MOTIONS)))
        # A circle that spins looks like one that does not.
        seen = (thing.shape, thing.motion) != ("circle", "spin")
        if seen and held_out(thing) == held and thing not in drawn:
            drawn.append(thing)
    return Scene(tuple(drawn), str(random.choice(list(BACKGROUNDS))))


def describe(scene: Scene, random: np.random.Generator) -> str:
    """One of the ways to say a scene."""
    return "".join(text for text, _ in say(scene, random))


def say(scene: Scene, random: np.random.Generator) -> list[tuple[str, int | None]]:
    """One of the ways to say a scene, in pieces, each with the number of the thing that it speaks of."""
    phrases = PARTICIPLES if random.random() < 0.5 else VERBS
    said: list[tuple[str, int | None]] = []
    joint = str(random.choice([" and ", " while ", ", "]))
    for index, thing in enumerate(scene.things):
        if index:
            said.append((joint, None))
        said.append((f"{_article(thing)} {thing.shape} {random.choice(phrases[thing.motion])}", index))
    ground = scene.background
    before, after = (
        ("", f" on a {ground} background"),
        ("", f", {ground} background"),
        ("", f" in front of a {ground} background"),
        (f"on a {ground} background, ", ""),
    )[random.integers(4)]
    return [(before, None), *said, (after, None)]


def _article(thing: Thing) -> str:
    return f"an {thing.colour}" if thing.colour == "orange" else f"a {thing.colour}"


@dataclass(frozen=True)
class Track:
    """One thing over time. All are float64 of [T]."""

    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    radius: npt.NDArray[np.float64]
    angle: npt.NDArray[np.float64]


REACH = 1.3
"""The furthest that any shape extends, in radii."""
GRID = 4
"""Pixels from one place where a thing's path may be to the next. Of few places and sizes there are few pictures of each
shape, and all of them are learned well."""


def _near(random: np.random.Generator, low: float, high: float) -> float:
    """A place of the grid between two bounds; the middle when there is none."""
    places = np.arange(np.ceil(low / GRID), np.floor(high / GRID) + 1) * GRID
    return float(random.choice(places)) if len(places) else 0.5 * (low + high)


def _draw_track(motion: str, random: np.random.Generator, *, alone: bool) -> Track:
    time = np.linspace(0.0, 1.0, FRAMES)
    radius = random.choice([10.5, 12.0] if alone else [8.0, 9.0])
    travel = random.choice([24.0, 28.0] if alone else [20.0, 24.0])
    height = random.choice([18.0, 21.0] if alone else [13.0, 16.0])
    radii = np.full(FRAMES, radius)
    shift_x, shift_y, angle = np.zeros(FRAMES), np.zeros(FRAMES), np.zeros(FRAMES)
    if motion in ("left", "right"):
        shift_x = travel * (time - 0.5) * (1 if motion == "right" else -1)
    elif motion in ("up", "down"):
        shift_y = travel * (time - 0.5) * (1 if motion == "down" else -1)
    elif motion in ("grow", "shrink"):
        radii = radius * (0.7 + 0.55 * (time if motion == "grow" else 1.0 - time))
    elif motion == "spin":
        angle = np.pi * time
    elif motion == "bounce":
        shift_y = height * (0.5 - np.abs(np.sin(2.0 * np.pi * time)))
    margin = REACH * radii.max() + 2.0
    low_x, high_x = margin - shift_x.min(), SIDE - margin - shift_x.max()
    low_y, high_y = margin - shift_y.min(), SIDE - margin - shift_y.max()
    return Track(_near(random, low_x, high_x) + shift_x, _near(random, low_y, high_y) + shift_y, radii, angle)


def _apart(first: Track, second: Track) -> bool:
    """Whether two things never come near each other, and the first is clearly further to the upper left."""
    gap = np.hypot(first.x - second.x, first.y - second.y) - REACH * (first.radius + second.radius)
    lead = (second.x - first.x + second.y - first.y).mean()
    return bool(gap.min() > 2.0 and lead > 14.0)


def draw_tracks(scene: Scene, random: np.random.Generator) -> tuple[Track, ...]:
    """Places, sizes and paths for a scene's things, all inside the frame and apart."""
    if len(scene.things) == 1:
        return (_draw_track(scene.things[0].motion, random, alone=True),)
    while True:
        first, second = (_draw_track(thing.motion, random, alone=False) for thing in scene.things)
        if _apart(first, second):
            return first, second


def render(scene: Scene, random: np.random.Generator) -> Clip:
    """A clip of a scene, with soft edges."""
    return paint(scene, draw_tracks(scene, random))


def paint(scene: Scene, tracks: tuple[Track, ...]) -> Clip:
    """The clip of a scene on given tracks."""
    picture_THWC = np.empty((FRAMES, SIDE, SIDE, 3), np.float32)
    picture_THWC[:] = BACKGROUNDS[scene.background]
    for thing, track in zip(scene.things, tracks, strict=True):
        columns, rows = _reached(track.x, track.radius), _reached(track.y, track.radius)
        x_THW = _offsets(track.x, columns)[:, None, :]
        y_THW = _offsets(track.y, rows)[:, :, None]
        cosine, sine = (value.astype(np.float32)[:, None, None] for value in (np.cos(track.angle), np.sin(track.angle)))
        turned_x, turned_y = cosine * x_THW + sine * y_THW, cosine * y_THW - sine * x_THW
        distance_THW = _distance(thing.shape, turned_x, turned_y, track.radius.astype(np.float32)[:, None, None])
        cover_THWC = np.clip(0.5 - distance_THW, 0.0, 1.0)[..., None]
        window_THWC = picture_THWC[:, rows, columns]
        window_THWC += cover_THWC * (np.array(COLOURS[thing.colour], np.float32) - window_THWC)
    return np.rint(picture_THWC).astype(np.uint8)


def _reached(centre: npt.NDArray[np.float64], radius: npt.NDArray[np.float64]) -> slice:
    """The pixels of one axis that a thing ever covers."""
    low, high = (centre - REACH * radius).min() - 2.0, (centre + REACH * radius).max() + 2.0
    return slice(max(0, int(low)), min(SIDE, int(high) + 1))


def _offsets(centre: npt.NDArray[np.float64], pixels: slice) -> npt.NDArray[np.float32]:
    """[T, pixels]: where pixel centres are, seen from a thing's centre."""
    return (np.arange(pixels.start, pixels.stop) + 0.5 - centre[:, None]).astype(np.float32)


def _distance(
    shape: str, x: npt.NDArray[np.float32], y: npt.NDArray[np.float32], radius: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Signed distance to a shape's edge (negative inside); near the edge, which is where it is used."""
    if shape == "circle":
        return np.asarray(np.hypot(x, y) - radius)
    if shape == "square":
        return np.asarray(np.maximum(np.abs(x), np.abs(y)) - 0.85 * radius)
    if shape == "triangle":
        sloping = 0.5 * np.sqrt(3.0) * np.abs(x) - 0.5 * y
        return np.asarray(np.maximum(sloping, y) - 0.62 * radius)
    tip = REACH * radius
    hollow = 0.382 * tip  # the pentagram's
    fifth = 2.0 * np.pi / 5.0
    around = np.abs((np.arctan2(x, -y) + 0.5 * fifth) % fifth - 0.5 * fifth)
    far = np.hypot(x, y)
    edge_x, edge_y = hollow * np.cos(0.5 * fifth) - tip, hollow * np.sin(0.5 * fifth)
    across = (far * np.sin(around)) * edge_x - (far * np.cos(around) - tip) * edge_y
    return np.asarray(-across / np.hypot(edge_x, edge_y))
