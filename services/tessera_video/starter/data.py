"""Renders clips and writes the prompts that describe them, for training and evaluation of the video starter.

A scene is a background and one or two things, each with a colour, a shape and a motion. Some triples of these are never
trained (`held_out`), but every pair inside such a triple is. Knows no models; the judge shares no code with this.

Shapes: T frames, H and W pixels. Lengths are pixels of a 64x64 frame, angles radians.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

FRAMES, SIDE, FRAMES_PER_SECOND = 17, 64, 4
"""Frames of a clip, pixels per side of a frame, and frames per second."""

COLOURS = {
    "red": (220, 40, 40),
    "orange": (245, 140, 30),
    "yellow": (238, 215, 40),
    "green": (40, 170, 70),
    "blue": (45, 90, 225),
    "purple": (150, 55, 195),
}
"""RGB (0 to 255) of each colour of a thing."""
SHAPES = ("circle", "square", "triangle", "star")
"""Shapes of things."""
MOTIONS = ("left", "right", "up", "down", "grow", "shrink", "spin", "bounce", "still")
"""Motions of things."""
BACKGROUNDS = {"white": (250, 250, 250), "gray": (128, 128, 128), "black": (8, 8, 8)}
"""RGB (0 to 255) of each background."""

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
"""Participles for each motion, one of the two ways to phrase a prompt."""
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
"""Verbs for each motion, the other way to phrase a prompt."""

RenderedClip = npt.NDArray[np.uint8]
"""A clip: uint8 [T, H, W, 3], RGB."""


@dataclass(frozen=True)
class Thing:
    """The attributes of one thing, as keys of `COLOURS`, `SHAPES` and `MOTIONS`."""

    colour: str
    shape: str
    motion: str


@dataclass(frozen=True)
class ClipScene:
    """The content of a clip and its prompt. The thing that is named first is the one further to the upper left."""

    things: tuple[Thing, ...]
    background: str


def held_out(thing: Thing) -> bool:
    """Return whether a triple is kept from training: a sixth of them, so spread that every pair is trained."""
    place = list(COLOURS).index(thing.colour) + SHAPES.index(thing.shape) + 2 * MOTIONS.index(thing.motion)
    return place % 6 == 0


def draw_scene(random: np.random.Generator, *, held: bool = False, things: int | None = None) -> ClipScene:
    """Draw a scene whose things are all trained ones, or all held-out ones.

    Args:
        random: source of the choices.
        held: whether the things are held-out ones.
        things: number of things, 1 or 2; None draws the number.
    """
    count = int(random.integers(1, 3)) if things is None else things
    drawn: list[Thing] = []
    while len(drawn) < count:
        thing = Thing(str(random.choice(list(COLOURS))), str(random.choice(SHAPES)), str(random.choice(MOTIONS)))
        # A spinning circle looks like one that is still.
        visible = (thing.shape, thing.motion) != ("circle", "spin")
        if visible and held_out(thing) == held and thing not in drawn:
            drawn.append(thing)
    return ClipScene(tuple(drawn), str(random.choice(list(BACKGROUNDS))))


def describe(scene: ClipScene, random: np.random.Generator) -> str:
    """Return a random prompt for a scene."""
    return "".join(text for text, _ in describe_in_pieces(scene, random))


def describe_in_pieces(scene: ClipScene, random: np.random.Generator) -> list[tuple[str, int | None]]:
    """Return a random prompt for a scene in pieces, each with the index of the thing that it describes, or None."""
    phrases = PARTICIPLES if random.random() < 0.5 else VERBS
    pieces: list[tuple[str, int | None]] = []
    joint = str(random.choice([" and ", " while ", ", "]))
    for index, thing in enumerate(scene.things):
        if index:
            pieces.append((joint, None))
        pieces.append((f"{_article(thing)} {thing.shape} {random.choice(phrases[thing.motion])}", index))
    ground = scene.background
    before, after = (
        ("", f" on a {ground} background"),
        ("", f", {ground} background"),
        ("", f" in front of a {ground} background"),
        (f"on a {ground} background, ", ""),
    )[random.integers(4)]
    return [(before, None), *pieces, (after, None)]


def _article(thing: Thing) -> str:
    return f"an {thing.colour}" if thing.colour == "orange" else f"a {thing.colour}"


@dataclass(frozen=True)
class Track:
    """The path of one thing: float64 [T] each, x, y and radius in pixels, angle in radians."""

    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    radius: npt.NDArray[np.float64]
    angle: npt.NDArray[np.float64]


REACH = 1.3
"""Largest extent of any shape from its centre, in radii."""
GRID = 8
"""Pixels between two possible places of a path: a latent's side. Few places and sizes mean few pictures of each shape,
and all of them are learned well."""


def _near(low: float, high: float) -> list[float]:
    """Return the places of the grid between two bounds; the middle when there is none."""
    places = np.arange(np.ceil(low / GRID), np.floor(high / GRID) + 1) * GRID
    return [float(place) for place in places] or [0.5 * (low + high)]


@dataclass(frozen=True)
class _TrackChoices:
    """All possible results of a draw: one tuple of tracks each, with cumulative weights."""

    tracks: list[tuple[Track, ...]]
    cumulative: npt.NDArray[np.float64]

    def draw(self, random: np.random.Generator) -> tuple[Track, ...]:
        return self.tracks[int(np.searchsorted(self.cumulative, random.random() * self.cumulative[-1], side="right"))]


def _paths(motion: str, *, alone: bool) -> list[Track]:
    """Return a motion around the origin, in each possible size and over each possible distance."""
    time, none = np.linspace(0.0, 1.0, FRAMES), np.zeros(FRAMES)
    shifts = [(none, none)]
    if motion in ("left", "right", "up", "down"):
        sign = 1 if motion in ("right", "down") else -1
        ways = [sign * travel * (time - 0.5) for travel in ([24.0] if alone else [16.0, 20.0])]
        shifts = [(way, none) if motion in ("left", "right") else (none, way) for way in ways]
    elif motion == "bounce":
        height = 0.5 - np.abs(np.sin(2.0 * np.pi * time))
        shifts = [(none, most * height) for most in ([18.0] if alone else [12.0])]
    scale = {"grow": 0.7 + 0.55 * time, "shrink": 1.25 - 0.55 * time}.get(motion, none + 1.0)
    angle = np.pi * time if motion == "spin" else none
    radii = [10.5, 12.0] if alone else [8.0, 9.0]
    return [Track(x, y, radius * scale, angle) for radius in radii for x, y in shifts]


@cache
def _alone(motion: str, *, alone: bool = True) -> _TrackChoices:
    """Return all tracks of one thing that stays inside the frame."""
    tracks: list[tuple[Track, ...]] = []
    weights: list[float] = []
    for path in _paths(motion, alone=alone):
        margin = REACH * path.radius.max() + 2.0
        places_x, places_y = (_near(margin - shift.min(), SIDE - margin - shift.max()) for shift in (path.x, path.y))
        for x in places_x:
            for y in places_y:
                tracks.append((Track(x + path.x, y + path.y, path.radius, path.angle),))
                weights.append(1.0 / (len(places_x) * len(places_y)))
    return _TrackChoices(tracks, np.cumsum(weights))


@cache
def _together(first: str, second: str) -> _TrackChoices:
    """Return all pairs of tracks that never touch, the first one clearly further to the upper left."""
    ways = [_alone(motion, alone=False) for motion in (first, second)]
    x, y, radius = (
        [np.stack([getattr(track, name) for (track,) in one.tracks]) for one in ways] for name in ("x", "y", "radius")
    )
    chances = [np.diff(one.cumulative, prepend=0.0) for one in ways]
    tracks: list[tuple[Track, ...]] = []
    weights: list[float] = []
    for row, (track,) in enumerate(ways[0].tracks):
        gap = np.hypot(x[1] - x[0][row], y[1] - y[0][row]) - REACH * (radius[1] + radius[0][row])
        lead = (x[1] - x[0][row] + y[1] - y[0][row]).mean(axis=1)
        for other in np.flatnonzero((gap.min(axis=1) > 2.0) & (lead > 14.0)):
            tracks.append((track, *ways[1].tracks[other]))
            weights.append(chances[0][row] * chances[1][other])
    return _TrackChoices(tracks, np.cumsum(weights))


def draw_tracks(scene: ClipScene, random: np.random.Generator) -> tuple[Track, ...]:
    """Draw places, sizes and paths for a scene's things, all inside the frame and apart from each other."""
    motions = [thing.motion for thing in scene.things]
    return (_alone(*motions) if len(motions) == 1 else _together(*motions)).draw(random)


def render(scene: ClipScene, random: np.random.Generator) -> RenderedClip:
    """Render a clip of a scene on random tracks, with antialiased edges."""
    return paint(scene, draw_tracks(scene, random))


def paint(scene: ClipScene, tracks: tuple[Track, ...]) -> RenderedClip:
    """Render the clip of a scene on given tracks."""
    picture_THWC = np.empty((FRAMES, SIDE, SIDE, 3), np.float32)
    picture_THWC[:] = BACKGROUNDS[scene.background]
    for thing, track in zip(scene.things, tracks, strict=True):
        columns, rows = _reached(track.x, track.radius), _reached(track.y, track.radius)
        x_THW = _offsets(track.x, columns)[:, None, :]
        y_THW = _offsets(track.y, rows)[:, :, None]
        cosine, sine = (value.astype(np.float32)[:, None, None] for value in (np.cos(track.angle), np.sin(track.angle)))
        rotated_x, rotated_y = cosine * x_THW + sine * y_THW, cosine * y_THW - sine * x_THW
        distance_THW = _distance(thing.shape, rotated_x, rotated_y, track.radius.astype(np.float32)[:, None, None])
        cover_THWC = np.clip(0.5 - distance_THW, 0.0, 1.0)[..., None]
        window_THWC = picture_THWC[:, rows, columns]
        window_THWC += cover_THWC * (np.array(COLOURS[thing.colour], np.float32) - window_THWC)
    return np.rint(picture_THWC).astype(np.uint8)


def _reached(centre: npt.NDArray[np.float64], radius: npt.NDArray[np.float64]) -> slice:
    """Return the pixels of one axis that a thing covers in any frame."""
    low, high = (centre - REACH * radius).min() - 2.0, (centre + REACH * radius).max() + 2.0
    return slice(max(0, int(low)), min(SIDE, int(high) + 1))


def _offsets(centre: npt.NDArray[np.float64], pixels: slice) -> npt.NDArray[np.float32]:
    """Return the offsets of pixel centres from a thing's centre, [T, pixels]."""
    return (np.arange(pixels.start, pixels.stop) + 0.5 - centre[:, None]).astype(np.float32)


def _distance(
    shape: str, x: npt.NDArray[np.float32], y: npt.NDArray[np.float32], radius: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return the signed distance to a shape's edge, negative inside. Exact only near the edge, where it is used."""
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
