"""Draws a video as frames side by side, and a sound as a spectrogram with its text.

Needs numpy, Pillow and PyAV, which come with the extras; without them there are no pictures. Knows nothing about
requests.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

FRAMES = 8
FRAME_SIDE = 128
GAP = 4
WINDOW_S, HOP_S = 0.025, 0.005
TOP_HZ = 8000
HEIGHT = 192
DECIBELS = 70.0
"""Decibels below the loudest value at which a spectrogram is black."""
MARGIN = 40
_COLOURS = ((0, 0, 4), (81, 18, 124), (183, 55, 121), (252, 137, 97), (252, 253, 191))
"""Colours from soft to loud, which go from dark to light so that they are readable without colour."""


def possible() -> bool:
    """Whether the libraries are installed."""
    return all(find_spec(name) for name in ("numpy", "PIL", "av"))


def draw_frames(video: Path, target: Path) -> None:
    """Draw up to `FRAMES` frames of `video`, evenly spaced from first to last, in a row of a PNG file.

    Raises:
        ValueError: the file cannot be decoded.
    """
    import av  # noqa: PLC0415 - comes with the extras
    from PIL import Image  # noqa: PLC0415

    try:
        with av.open(str(video)) as container:
            frames: list[Any] = [frame.to_image() for frame in container.decode(video=0)]  # type: ignore[no-untyped-call]
    except av.FFmpegError as error:
        raise ValueError(f"{video.name} does not play: {error.strerror}") from error
    count = min(FRAMES, len(frames))
    chosen = [frames[round(index * (len(frames) - 1) / max(1, count - 1))] for index in range(count)]
    width = round(FRAME_SIDE * chosen[0].width / chosen[0].height)
    sheet = Image.new("RGB", (count * (width + GAP) - GAP, FRAME_SIDE), "white")
    for index, frame in enumerate(chosen):
        sheet.paste(frame.resize((width, FRAME_SIDE), Image.Resampling.NEAREST), (index * (width + GAP), 0))
    sheet.save(target)


def draw_spectrogram(sound: Path, target: Path, text: str) -> None:
    """Draw the short-time spectrum of `sound` (25 ms Hann windows, 0 to 8 kHz, decibels) above `text`, as a PNG file.

    Raises:
        ValueError: the file cannot be decoded.
    """
    import av  # noqa: PLC0415 - comes with the extras
    import numpy as np  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    try:
        with av.open(str(sound)) as container:
            rate = container.streams.audio[0].rate
            resampler = av.AudioResampler(format="flt", layout="mono")
            parts = [out.to_ndarray()[0] for frame in container.decode(audio=0) for out in resampler.resample(frame)]
    except av.FFmpegError as error:
        raise ValueError(f"{sound.name} does not play: {error.strerror}") from error
    samples = np.concatenate([np.zeros(0, np.float32), *parts])
    window, hop = round(WINDOW_S * rate), round(HOP_S * rate)
    samples = np.pad(samples, (0, max(0, window - len(samples))))
    pieces = np.lib.stride_tricks.sliding_window_view(samples, window)[::hop] * np.hanning(window)
    power = np.abs(np.fft.rfft(pieces, n=4 * window)) ** 2
    power = power[:, : max(1, round(power.shape[1] * min(1.0, TOP_HZ / (rate / 2))))]
    decibels = 10 * np.log10(power + 1e-12)
    loudness = np.clip((decibels - decibels.max()) / DECIBELS + 1, 0, 1)
    anchors = np.linspace(0, 1, len(_COLOURS))
    colours = np.stack([np.interp(loudness, anchors, channel) for channel in np.transpose(_COLOURS)], axis=-1)
    image = Image.fromarray(np.flipud(colours.transpose(1, 0, 2)).astype(np.uint8))
    image = image.resize((max(320, image.width), HEIGHT), Image.Resampling.BILINEAR)
    _labelled(image, len(samples) / rate, min(TOP_HZ, rate / 2), text).save(target)


def _labelled(image: Image, seconds: float, top_hz: float, text: str) -> Any:
    """The spectrogram with an axis of kilohertz at its side, and an axis of seconds and the text below."""
    from PIL import Image, ImageDraw  # noqa: PLC0415

    sheet = Image.new("RGB", (image.width + MARGIN, image.height + 2 * MARGIN), "white")
    sheet.paste(image, (MARGIN, 0))
    draw = ImageDraw.Draw(sheet)
    for kilohertz in range(0, int(top_hz / 1000) + 1, 2):
        y = image.height * (1 - kilohertz * 1000 / top_hz)
        draw.text(
            (MARGIN - 6, min(max(y, 6), image.height - 6)), f"{kilohertz} kHz", "black", anchor="rm", font_size=10
        )
    for second in range(int(seconds) + 1):
        x = MARGIN + image.width * second / seconds
        draw.text((x, image.height + 4), f"{second} s", "black", anchor="lt", font_size=10)
    draw.text((MARGIN, image.height + MARGIN), text, "black", anchor="lt", font_size=14)
    return sheet
