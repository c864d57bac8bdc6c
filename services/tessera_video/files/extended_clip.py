"""A clip that goes on from an older one: the older one's frames from its file, then the new ones.

The older frames are decoded again for each look at them, so that memory holds the new ones alone. Does not know jobs.
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


class StoredClip:
    """A video file that was made here.

    Args:
        file: can be sought; stays open as long as this is used.
        frames: that it has to have.
    """

    def __init__(self, file: BinaryIO, frames: int) -> None:
        self.file = file
        self.frames = frames

    def __iter__(self) -> Iterator[Picture]:
        """Its frames.

        Raises:
            InvalidRequestError: it cannot be decoded, or has not as many as it should.
        """
        count = 0
        self.file.seek(0)
        try:
            options = {"format_whitelist": FORMATS, "protocol_whitelist": ""}
            with av.open(self.file, "r", options=options) as container:
                for frame in container.decode(video=0):
                    count += 1
                    yield frame.to_ndarray(format="rgb24")
        except (FFmpegError, OSError, IndexError) as error:
            raise InvalidRequestError(f"the video that goes on cannot be decoded: {error}", param="video") from error
        if count != self.frames:
            raise InvalidRequestError(
                f"the video that goes on has {count} frames, not {self.frames} as its record says", param="video"
            )

    def last(self) -> Image.Image:
        """Its last frame. Raises as iterating does."""
        last: Picture | None = None
        for frame in self:
            last = frame
        assert last is not None, "a clip has a frame"
        return Image.fromarray(last)


class ExtendedClip:
    """The older clip and what comes after: what a container writes, frame by frame.

    Args:
        old: the older one.
        new: [frames, height, width, 3]; its first frame stands for the last of `old`, and is not shown again.
    """

    def __init__(self, old: StoredClip, new: Frames) -> None:
        self.old = old
        self.new = new[1:]
        self.shape = (old.frames + len(self.new), *new.shape[1:])

    def __len__(self) -> int:
        """Frames of both."""
        return self.shape[0]

    def __iter__(self) -> Iterator[Picture]:
        """Frame by frame. Raises as `StoredClip` does."""
        yield from self.old
        yield from self.new

    def chosen(self, places: set[int]) -> dict[int, Picture]:
        """Some frames by their place."""
        return {place: frame for place, frame in enumerate(self) if place in places}


def stills_of(clip: ExtendedClip, most: int) -> tuple[Frames, Frames]:
    """The middle frame, and at most `most` frames evenly spread from the first to the last: what stills are made of."""
    count, middle = len(clip), len(clip) // 2
    spread = sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})
    found = clip.chosen({middle, *spread})
    return found[middle][None], np.stack([found[place] for place in spread])
