"""Makes what the demo shows: the picture that it asks about, and the page with all results.

Knows nothing about how results come about (`tessera.demo.run`).
"""

from __future__ import annotations

import html
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec

SIDE = 216
"""Width and height of the picture, in pixels."""
_THIRD = SIDE // 3
_RADIUS = 30
_PAPER = (250, 250, 250)
_Shape = Callable[[float, float], bool]
"""Whether a point, relative to the shape's centre, lies inside the shape."""


class Step(msgspec.Struct, frozen=True):
    """One request of the demo with its result; `state` is ok, failed or skipped."""

    title: str
    asked: str
    state: str
    detail: str = ""
    model: str = ""
    notice: str | None = None
    seconds: float = 0.0


def picture() -> bytes:
    """A circle, a triangle and a square in three colours, `SIDE` pixels square, as a PNG file (RGB, 8 bits)."""
    rows = b"".join(b"\0" + b"".join(bytes(_colour(x, y)) for x in range(SIDE)) for y in range(SIDE))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def _colour(x: int, y: int) -> tuple[int, int, int]:
    found = _SHAPES.get((x // _THIRD, y // _THIRD))
    if found is None:
        return _PAPER
    (red, green, blue), inside = found
    # A pixel is the mean of nine points, so that edges are smooth.
    points = [
        (x % _THIRD + dx / 3 - _THIRD / 2, y % _THIRD + dy / 3 - _THIRD / 2) for dx in range(3) for dy in range(3)
    ]
    share = sum(inside(*point) for point in points) / len(points)
    mixed = [round(paper + share * (ink - paper)) for paper, ink in zip(_PAPER, (red, green, blue), strict=True)]
    return mixed[0], mixed[1], mixed[2]


def _circle(x: float, y: float) -> bool:
    return x * x + y * y < _RADIUS**2


def _triangle(x: float, y: float) -> bool:
    return abs(x) < (y + _RADIUS) / 2 and y < _RADIUS


def _square(x: float, y: float) -> bool:
    return max(abs(x), abs(y)) < _RADIUS


_SHAPES: dict[tuple[int, int], tuple[tuple[int, int, int], _Shape]] = {
    (0, 0): ((220, 30, 30), _circle),
    (2, 0): ((30, 160, 60), _triangle),
    (1, 2): ((40, 80, 220), _square),
}
"""Colour and shape of the cells of a 3x3 grid, by column and row."""
_STYLE = """body{font:1rem/1.6 system-ui,sans-serif;max-width:44rem;margin:3rem auto;padding:0 1rem;color:#1c1c28}
section{border-top:1px solid #d8d8e0;padding:1rem 0}h2{margin:0}blockquote{margin:.5rem 0;color:#555}
pre{white-space:pre-wrap;background:#f5f5f8;padding:.8rem;border-radius:.4rem}
.notice{background:#fff3cd;padding:.3rem .6rem;border-radius:.4rem}.failed{color:#b00020}img,video{max-width:100%}
video{min-width:16rem;image-rendering:pixelated}small{color:#666}"""


def render(steps: list[Step], output: Path, url: str) -> str:
    """The page as HTML, with links to the files beside it.

    Args:
        steps: the requests, in the order in which they were made.
        output: the folder for the page, from which text files are read.
        url: address of the suite that was asked.
    """
    sections = "\n".join(_section(step, output) for step in steps)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Tessera demo</title><style>{_STYLE}</style>\n'
        f"<h1>Tessera demo</h1>\n<p>Asked at {html.escape(url)}.</p>\n{sections}\n</html>\n"
    )


def _section(step: Step, output: Path) -> str:
    parts = [f"<section><h2>{html.escape(step.title)}</h2>"]
    if step.model:
        parts.append(f"<p><small>{html.escape(step.model)} · {step.seconds:.2f} s</small></p>")
    if step.notice:
        parts.append(f'<p class="notice">{html.escape(step.notice)}</p>')
    if step.asked:
        parts.append(f"<blockquote>{html.escape(step.asked)}</blockquote>")
    if step.state == "ok":
        parts.append(_shown(step.title, output))
    parts.append(f'<p class="{step.state}"><small>{html.escape(step.state)}: {html.escape(step.detail)}</small></p>')
    return "\n".join(parts) + "\n</section>"


def _shown(title: str, output: Path) -> str:
    if title == "video":
        return '<video src="video.mp4" controls loop muted></video>' + _image(
            output, "frames.png", "frames of the video"
        )
    if title == "speech":
        return '<audio src="speech.wav" controls></audio>'
    if title == "transcript":
        before = _image(output, "spectrogram.png", "spectrogram of what was heard")
    elif title == "description":
        before = _image(output, "picture.png", "the picture that was shown")
    else:
        before = ""
    text = html.escape((output / f"{title}.txt").read_text(encoding="utf-8").strip())
    return before + f"<pre>{text or '(empty)'}</pre>"


def _image(output: Path, name: str, what: str) -> str:
    return f'<img src="{name}" alt="{what}">\n' if (output / name).is_file() else ""
