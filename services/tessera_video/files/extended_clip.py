"""A clip that extends an older one: the older clip's frames from its file, then the new frames.

The older frames are decoded again in each iteration, so that memory holds only the new ones. Knows no jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import av
import numpy as np
from av.error import FFmpegError
from PIL import Image

from tessera.diffusion.request import Frames, Picture
from tessera.errors import InvalidRequestError

FORMATS = "mov,mp4,matroska,webm,gif"
"""Demuxers that FFmpeg may use to read a stored clip."""


class StoredClip:
    """A video file that this service has made before.

    Args:
        file: seekable file; must stay open while this object is used.
        frames: number of frames that the file must have.
    """

    def __init__(self, file: BinaryIO, frames: int) -> None:
        self.file = file
        self.frames = frames

    def __iter__(self) -> Iterator[Picture]:
        """Decode the frames.

        Raises:
            InvalidRequestError: the file cannot be decoded, or has another number of frames.
        """
        count = 0
        self.file.seek(0)
        try:
            options = {"format_whitelist": FORMATS, "protocol_whitelist": ""}
            with av.open(self.file, "r", options=options) as container:
                for frame in container.decode(video=0):
                    count += 1
                    pixels: Picture = np.asarray(frame.to_ndarray(format="rgb24"), dtype=np.uint8)
                    yield pixels
        except (FFmpegError, OSError, IndexError) as error:
            raise InvalidRequestError(f"the video that goes on cannot be decoded: {error}", param="video") from error
        if count != self.frames:
            raise InvalidRequestError(
                f"the video that goes on has {count} frames, not {self.frames} as its record says", param="video"
            )

    def last(self) -> Image.Image:
        """Return the last frame. Raises the errors of iteration."""
        last: Picture | None = None
        for frame in self:
            last = frame
        assert last is not None, "a clip has a frame"
        return Image.fromarray(last)


class ExtendedClip:
    """The older clip followed by the new frames: a `FrameSequence`.

    Args:
        old: the older clip.
        new: uint8 [frames, height, width, 3]; its first frame equals the last of `old` and is left out.
    """

    def __init__(self, old: StoredClip, new: Frames) -> None:
        self.old = old
        self.new = new[1:]
        self.shape: tuple[int, ...] = (old.frames + len(self.new), *new.shape[1:])

    def __len__(self) -> int:
        """Return the number of frames of both clips."""
        return self.shape[0]

    def __iter__(self) -> Iterator[Picture]:
        """Yield the frames of both clips. Raises the errors of `StoredClip`."""
        yield from self.old
        yield from self.new

    def chosen(self, places: set[int]) -> dict[int, Picture]:
        """Return the frames at some places, by their place."""
        return {place: frame for place, frame in enumerate(self) if place in places}


def stills_of(clip: ExtendedClip, most: int) -> tuple[Frames, Frames]:
    """Return the middle frame [1, …], and at most `most` frames evenly spread from the first to the last."""
    count, middle = len(clip), len(clip) // 2
    spread = sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})
    found = clip.chosen({middle, *spread})
    return found[middle][None], np.stack([found[place] for place in spread])
