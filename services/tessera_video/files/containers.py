"""Encodes frames to a video file: MP4 (H.264), WebM (VP9) or an animated GIF, with the request in its metadata.

Every frame of the clip is one frame of the file and is shown for one frame's time. Knows no jobs, and not where files
are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import av
import av.filter
from av.video.format import VideoFormat as PixelFormat
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from tessera.diffusion.request import Picture
from tessera.wire.videos import VideoFormat

COMMENT = "comment"
"""Name of the metadata field with the request; the one field that all three containers have."""
_GIF_CLOCK = Fraction(1, 100)
"""Seconds: unit of a GIF's frame times."""
_GIF_HEADER_BYTES = 13
"""Bytes of a GIF's header and logical screen descriptor."""
_GIF_BLOCK_BYTES = 255
"""Most bytes of a sub-block in a GIF extension."""


class FrameSequence(Protocol):
    """Frames of one size, in order: an array, or an object that yields them one by one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Frames, height, width, and 3 for RGB."""
        ...

    def __iter__(self) -> Iterator[Picture]:
        """Yield each frame: uint8 [height, width, 3], RGB."""
        ...


@dataclass(frozen=True)
class VideoContainer:
    """A file format: its content type and its encoder."""

    content_type: str
    write: Callable[[FrameSequence, int, Path, str], None]
    """Encoder with four arguments: frames of even width and height; frames per second (a GIF shows each frame for whole
    hundredths of a second, which together keep the time); path of the file to write; text of the metadata field
    `COMMENT`. Raises OSError as the operating system does, for example on a full disk."""


def _write_mp4(frames: FrameSequence, fps: int, path: Path, comment: str) -> None:
    """Write an MP4 that browsers play: H.264, yuv420p, with its index at the front."""
    _write_stream(
        frames,
        fps,
        path,
        comment,
        container="mp4",
        container_options={"movflags": "+faststart"},
        codec="libx264",
        # No B-frames: with them, equal clips gave different files at 4 of 7 sizes that were tried (64x64, 96x64,
        # 192x128 and 480x320), whatever the number of threads. B-frames would save a seventh of the bytes.
        codec_options={"crf": "18", "preset": "veryfast", "bf": "0"},
    )


def _write_webm(frames: FrameSequence, fps: int, path: Path, comment: str) -> None:
    """Write a WebM: VP9, yuv420p, constant quality. The muxer writes no random ids, so equal clips are equal files."""
    _write_stream(
        frames,
        fps,
        path,
        comment,
        container="webm",
        container_options={"fflags": "+bitexact"},
        codec="libvpx-vp9",
        codec_options={"crf": "28", "b": "0", "deadline": "good", "cpu-used": "5", "row-mt": "1"},
    )


def _write_stream(
    frames: FrameSequence,
    fps: int,
    path: Path,
    comment: str,
    *,
    container: str,
    container_options: Mapping[str, str],
    codec: str,
    codec_options: Mapping[str, str],
) -> None:
    _, height, width, _ = frames.shape
    with av.open(str(path), "w", format=container, options=dict(container_options)) as file:
        file.metadata[COMMENT] = comment
        stream = file.add_stream(codec, rate=Fraction(fps), options=dict(codec_options))
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        file.mux(stream.encode())


def _write_gif(frames: FrameSequence, fps: int, path: Path, comment: str) -> None:
    """Write a GIF that loops, with one palette for the whole clip that favours pixels that change."""
    _, height, width, _ = frames.shape
    with av.open(str(path), "w", format="gif", options={"loop": "0"}) as file:
        stream = file.add_stream("gif", rate=Fraction(fps))
        stream.width, stream.height, stream.pix_fmt = width, height, "pal8"
        stream.codec_context.time_base = _GIF_CLOCK
        for index, frame in enumerate(_in_one_palette(frames)):
            frame.pts, frame.time_base = round(index / _GIF_CLOCK / fps), _GIF_CLOCK
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    if comment:  # FFmpeg loses the frames after an empty comment
        _put_gif_comment(path, comment.encode())


def _in_one_palette(frames: FrameSequence) -> Iterator[av.VideoFrame]:
    graph = av.filter.Graph()
    _, height, width, _ = frames.shape
    source = graph.add_buffer(width=width, height=height, format=PixelFormat("rgb24"), time_base=Fraction(1))
    split, sink = graph.add("split"), graph.add("buffersink")
    palette = graph.add("palettegen", "stats_mode=diff")
    use = graph.add("paletteuse", "diff_mode=rectangle")
    source.link_to(split)
    split.link_to(use, 0, 0)
    split.link_to(palette, 1, 0)
    palette.link_to(use, 0, 1)
    use.link_to(sink)
    graph.configure()
    for index, pixels in enumerate(frames):
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        frame.pts, frame.time_base = index, Fraction(1)
        source.push(frame)
    source.push(None)
    for _ in range(frames.shape[0]):
        pulled = sink.pull()
        assert isinstance(pulled, VideoFrame)
        yield pulled


def _put_gif_comment(path: Path, comment: bytes) -> None:
    """Insert a comment extension (GIF89a, section 24) after the global colour table: FFmpeg's muxer writes none."""
    data = path.read_bytes()
    table = 3 << ((data[10] & 7) + 1) if data[10] & 0x80 else 0
    place = _GIF_HEADER_BYTES + table
    blocks = [comment[first : first + _GIF_BLOCK_BYTES] for first in range(0, len(comment), _GIF_BLOCK_BYTES)]
    extension = b"!\xfe" + b"".join(bytes([len(block)]) + block for block in blocks) + b"\0"
    path.write_bytes(data[:place] + extension + data[place:])


CONTAINERS: Mapping[VideoFormat, VideoContainer] = {
    "mp4": VideoContainer("video/mp4", _write_mp4),
    "webm": VideoContainer("video/webm", _write_webm),
    "gif": VideoContainer("image/gif", _write_gif),
}
"""File format by the name that requests use."""
