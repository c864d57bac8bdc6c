"""The judge of the video starter: recognizes background, colours, shapes and motions by classical computer vision.

It reads only pixels: it knows neither the prompt, nor models, nor how clips were made, and shares no code with `data`.
An attribute that it cannot recognize with confidence is `UNCLEAR`.

Shapes: T frames, H and W pixels. Lengths are pixels of a 64x64 frame.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage

UNCLEAR = "unclear"
"""Word for an attribute that cannot be recognized."""

FRAME_EDGE = 2
"""Width in pixels of the rim whose median colour is the background."""
BACKGROUND_DISTANCE = 0.22
"""Euclidean distance from the background, in RGB of 0 to 1, above which a pixel belongs to a thing."""
MIN_SATURATION = 0.35
"""Saturation (0 to 1) above which a pixel belongs to a thing."""
MIN_PIXELS = 12
"""Fewest pixels of a thing in one frame."""
MAX_MISSED_FRAMES = 3
"""Most frames of a clip that may show another number of things than the rest."""

HUES = (
    ("red", 345, 375),
    ("orange", 18, 41),
    ("yellow", 44, 72),
    ("green", 100, 170),
    ("blue", 200, 250),
    ("purple", 262, 310),
)
"""Name, first and last hue of each colour, in degrees; 345 to 375 passes 0."""

STILL_PIXELS, MOVED_PIXELS = 3.5, 7.0
"""Pixels of displacement below which a thing is still, and above which it has moved."""
STILL_RATIO, GROWN_RATIO = 1.35, 1.7
"""Ratio of last to first area (or its inverse) below which a thing is still, and above which it has grown or shrunk."""
STILL_DEGREES, SPUN_DEGREES = 25.0, 60.0
"""Degrees of rotation below which a thing is still, and above which it spins."""
MIN_BOUNCE = 6.0
"""Pixels between the highest and the lowest place of a thing that bounces."""

Float64Array = npt.NDArray[np.float64]
"""Array of float64."""


@dataclass(frozen=True)
class ObservedThing:
    """A recognized thing: its attributes in the words of prompts, or `UNCLEAR`."""

    colour: str
    shape: str
    motion: str


@dataclass(frozen=True)
class ObservedClip:
    """A recognized clip: the word for its background, and its things."""

    background: str
    things: tuple[ObservedThing, ...]


@dataclass(frozen=True)
class _Spot:
    """One thing in one frame. `harmonics[n]` is the n-fold part of its outline, complex with magnitude 0 to 1."""

    x: float
    y: float
    area: float
    colour: str
    harmonics: dict[int, complex]


def observe(frames: npt.NDArray[np.uint8]) -> ObservedClip:
    """Recognize what a clip shows.

    Args:
        frames: uint8 [T, H, W, 3], RGB.
    """
    pixels_THWC = frames.astype(np.float64) / 255.0
    ground = _ground(pixels_THWC)
    spots = [_spots(picture_HWC, ground) for picture_HWC in pixels_THWC]
    things = tuple(_name(track) for track in _tracks(spots))
    return ObservedClip(_name_ground(pixels_THWC, ground), things)


def first_frame_agrees(frames: npt.NDArray[np.uint8], image: npt.NDArray[np.uint8]) -> bool:
    """Return whether a clip starts with the given picture: mean absolute error below 4 % of full scale."""
    error = np.abs(frames[0].astype(np.float64) - image.astype(np.float64)).mean()
    return bool(error < 0.04 * 255.0)


def _ground(pixels_THWC: Float64Array) -> Float64Array:
    rim = np.concatenate(
        [
            pixels_THWC[:, :FRAME_EDGE].reshape(-1, 3),
            pixels_THWC[:, -FRAME_EDGE:].reshape(-1, 3),
            pixels_THWC[:, :, :FRAME_EDGE].reshape(-1, 3),
            pixels_THWC[:, :, -FRAME_EDGE:].reshape(-1, 3),
        ]
    )
    median: Float64Array = np.median(rim, axis=0)
    return median


def _name_ground(pixels_THWC: Float64Array, ground: Float64Array) -> str:
    alike = np.linalg.norm(pixels_THWC - ground, axis=-1) < BACKGROUND_DISTANCE
    if alike.mean() < 0.4 or np.ptp(ground) > 0.15:
        return UNCLEAR
    level = ground.mean()
    if level > 0.88:
        return "white"
    if level < 0.15:
        return "black"
    return "gray" if 0.35 < level < 0.65 else UNCLEAR


def _spots(picture_HWC: Float64Array, ground: Float64Array) -> list[_Spot]:
    high, low = picture_HWC.max(-1), picture_HWC.min(-1)
    saturation = (high - low) / np.maximum(high, 1e-6)
    distance = np.linalg.norm(picture_HWC - ground, axis=-1)
    belongs = (distance > BACKGROUND_DISTANCE) & (saturation > MIN_SATURATION)
    labels, count = ndimage.label(belongs)
    found = []
    for label in range(1, count + 1):
        inside = labels == label
        if inside.sum() >= MIN_PIXELS:
            found.append(_spot(picture_HWC, ground, inside))
    return found


def _spot(picture_HWC: Float64Array, ground: Float64Array, inside: npt.NDArray[np.bool_]) -> _Spot:
    core = ndimage.binary_erosion(inside)
    core = core if core.sum() >= 4 else inside
    colour = np.median(picture_HWC[core], axis=0)
    step = colour - ground
    cover = np.clip((picture_HWC - ground) @ step / max(float(step @ step), 1e-6), 0.0, 1.0)
    cover *= ndimage.binary_dilation(inside, iterations=1)
    area = cover.sum()
    rows, columns = np.indices(cover.shape)
    x, y = float((cover * columns).sum() / area), float((cover * rows).sum() / area)
    off_x, off_y = columns - x, rows - y
    weight = cover * (off_x**2 + off_y**2)
    angle = np.arctan2(off_y, off_x)
    harmonics = {n: complex((weight * np.exp(1j * n * angle)).sum() / weight.sum()) for n in (3, 4, 5)}
    return _Spot(x, y, float(area), _name_colour(colour), harmonics)


def _name_colour(colour: Float64Array) -> str:
    red, green, blue = (float(value) for value in colour)
    high, low = max(red, green, blue), min(red, green, blue)
    if high == low:
        return UNCLEAR
    if high == red:
        hue = 60.0 * (green - blue) / (high - low)
    elif high == green:
        hue = 120.0 + 60.0 * (blue - red) / (high - low)
    else:
        hue = 240.0 + 60.0 * (red - green) / (high - low)
    for name, first, last in HUES:
        if first <= hue % 360.0 <= last or first <= hue % 360.0 + 360.0 <= last:
            return name
    return UNCLEAR


def _tracks(spots: Sequence[Sequence[_Spot]]) -> list[list[_Spot]]:
    """Follow each thing through the frames. Returns no tracks when frames disagree about the number of things."""
    count, times = Counter(len(found) for found in spots).most_common(1)[0]
    if count == 0 or count > 3 or times < len(spots) - MAX_MISSED_FRAMES:
        return []
    steady = [found for found in spots if len(found) == count]
    tracks = [[spot] for spot in steady[0]]
    for found in steady[1:]:
        orders = itertools.permutations(found)
        best = min(orders, key=lambda order: sum(_far(t[-1], s) for t, s in zip(tracks, order, strict=True)))
        for track, spot in zip(tracks, best, strict=True):
            track.append(spot)
    return tracks


def _far(first: _Spot, second: _Spot) -> float:
    return math.hypot(first.x - second.x, first.y - second.y) + (0.0 if first.colour == second.colour else 20.0)


def _name(track: Sequence[_Spot]) -> ObservedThing:
    colour, times = Counter(spot.colour for spot in track).most_common(1)[0]
    if times < 0.8 * len(track):
        colour = UNCLEAR
    shape = _name_shape(track)
    return ObservedThing(colour, shape, _name_motion(track, shape))


def _name_shape(track: Sequence[_Spot]) -> str:
    large = sorted(track, key=lambda spot: -spot.area)[: (len(track) + 1) // 2]
    three, four, five = (float(np.mean([abs(spot.harmonics[n]) for spot in large])) for n in (3, 4, 5))
    if max(three, four, five) < 0.07:
        return "circle"
    strongest = max((three, "triangle"), (four, "square"), (five, "star"))
    others = sorted((three, four, five))[1]
    return strongest[1] if strongest[0] > 0.1 and strongest[0] > 1.5 * others else UNCLEAR


def _name_motion(track: Sequence[_Spot], shape: str) -> str:
    x, y = np.array([spot.x for spot in track]), np.array([spot.y for spot in track])
    area = np.array([spot.area for spot in track])
    ends = max(1, len(track) // 8)
    right, down = (float(path[-ends:].mean() - path[:ends].mean()) for path in (x, y))
    ratio = float(area[-ends:].mean() / area[:ends].mean())
    turn = _rotation(track, shape)
    names = []
    if abs(right) > MOVED_PIXELS and np.ptp(y) < max(0.5 * abs(right), STILL_PIXELS):
        names.append("right" if right > 0 else "left")
    if abs(down) > MOVED_PIXELS and np.ptp(x) < max(0.5 * abs(down), STILL_PIXELS) and _reversals(y) <= 1:
        names.append("down" if down > 0 else "up")
    if max(ratio, 1.0 / ratio) > GROWN_RATIO:
        names.append("grow" if ratio > 1.0 else "shrink")
    if turn > SPUN_DEGREES:
        names.append("spin")
    if np.ptp(y) > MIN_BOUNCE and _reversals(y) >= 2 and np.ptp(x) < 0.5 * np.ptp(y) + STILL_PIXELS:
        names.append("bounce")
    if len(names) == 1:
        return names[0]
    rests = np.ptp(x) < STILL_PIXELS and np.ptp(y) < STILL_PIXELS
    steady = max(ratio, 1.0 / ratio) < STILL_RATIO and turn < STILL_DEGREES
    return "still" if not names and rests and steady else UNCLEAR


def _reversals(path: Float64Array) -> int:
    """Return how often a path reverses by more than `MIN_BOUNCE` / 2."""
    turns, extreme, heading = 0, path[0], 0
    for place in path[1:]:
        if heading * (place - extreme) > 0 or (heading == 0 and abs(place - extreme) > MIN_BOUNCE / 2):
            heading = 1 if place > extreme else -1
            extreme = place
        elif heading and abs(place - extreme) > MIN_BOUNCE / 2:
            turns += 1
            heading, extreme = -heading, place
    return turns


def _rotation(track: Sequence[_Spot], shape: str) -> float:
    """Return the degrees between first and last orientation, unwrapped frame by frame; 0 for a circle."""
    fold = {"triangle": 3, "square": 4, "star": 5}.get(shape)
    if fold is None:
        return 0.0
    phases = np.unwrap([float(np.angle(spot.harmonics[fold])) for spot in track])
    return float(abs(np.degrees(phases[-1] - phases[0])) / fold)
