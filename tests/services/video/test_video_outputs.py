"""The result files, decoded again: every frame once and for its time, and the request in the metadata."""

from __future__ import annotations

import io
import json
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import msgspec
import numpy as np
import pytest
from PIL import Image

from tessera.diffusion.request import DiffusionRequest, Frames, OnStep, Resume
from tessera.errors import InvalidRequestError
from tessera.jobs.artifacts.store import DirectoryArtifacts
from tessera.jobs.records import Lease
from tessera.jobs.worker.runner import JobContext, JobStoppedError
from tessera.wire.jobs import ImageInput, Job, VideoInput
from tessera_video.files.containers import CONTAINERS
from tessera_video.files.provenance import provenance_comment
from tessera_video.files.stills import image_file, spritesheet_jpeg, thumbnail_jpeg
from tessera_video.images import ImagePipeline

PROMPT = 'Ein "Bär" 🐻 on\na boat; \\n = x'
VIDEO = VideoInput(
    model="m",
    prompt=PROMPT,
    negative_prompt="",
    width=64,
    height=48,
    frames=9,
    fps=8,
    seconds="1",
    steps=4,
    guidance_scale=5.0,
    seed=2**62,
)
IMAGES = ImageInput(
    model="m",
    prompt=PROMPT,
    negative_prompt="fog",
    width=64,
    height=48,
    count=3,
    steps=4,
    guidance_scale=5.0,
    seed=7,
    output_format="png",
    compression=None,
)


def _clip(frames: int = 9, height: int = 48, width: int = 64) -> Frames:
    """A ramp that moves in every second frame: two equal frames in a row are two frames all the same."""
    ramp = np.linspace(0, 200, width, dtype=np.uint8)
    return np.stack([np.broadcast_to((ramp + 4 * (i // 2))[None, :, None], (height, width, 3)) for i in range(frames)])


@pytest.mark.parametrize("fps", [8, 16, 24, 30, 50])
@pytest.mark.parametrize("output_format", ["mp4", "webm", "gif"])
def test_every_frame_is_there_once_and_shown_for_its_time(output_format: Any, fps: int, tmp_path: Path) -> None:
    path = tmp_path / f"clip.{output_format}"
    CONTAINERS[output_format].write(_clip(17), fps, path, provenance_comment(VIDEO, seed=VIDEO.seed))
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        assert (stream.width, stream.height) == (64, 48)
        if output_format != "gif":  # whose rate is a mean of whole hundredths of a second
            assert stream.average_rate == fps
        frames = list(file.decode(stream))
        assert file.duration is not None
        length = Fraction(file.duration, av.time_base)
    clock = Fraction(1, 100) if output_format == "gif" else Fraction(1, 1000)
    assert len(frames) == 17
    for index, frame in enumerate(frames):
        assert frame.pts is not None
        assert abs(frame.pts * frame.time_base - Fraction(index, fps)) <= clock / 2 + Fraction(1, 10**6)
    assert abs(length - Fraction(17, fps)) <= clock + Fraction(1, 10**6)
    error = np.abs(np.stack([frame.to_ndarray(format="rgb24") for frame in frames]).astype(int) - _clip(17)).mean()
    assert error < 6


@pytest.mark.parametrize("output_format", ["mp4", "webm", "gif"])
def test_a_file_says_what_was_asked_for(output_format: Any, tmp_path: Path) -> None:
    path = tmp_path / f"clip.{output_format}"
    CONTAINERS[output_format].write(_clip(), 8, path, provenance_comment(VIDEO, seed=VIDEO.seed))
    with av.open(str(path)) as file:
        known = {name.lower(): value for name, value in file.metadata.items()}
    said = json.loads(known["comment"])
    assert said == {
        "software": "tessera",
        "model": "m",
        "prompt": PROMPT,
        "seed": 2**62,
        "steps": 4,
        "guidance_scale": 5.0,
    }


@pytest.mark.parametrize("length", [0, 1, 254, 255, 256, 510, 9000])
def test_a_comment_of_any_length_costs_a_gif_no_frame(length: int, tmp_path: Path) -> None:
    CONTAINERS["gif"].write(_clip(), 50, tmp_path / "clip.gif", "x" * length)
    with av.open(str(tmp_path / "clip.gif")) as file:
        assert [frame.pts for frame in file.decode(video=0)] == list(range(0, 18, 2))


@pytest.mark.parametrize("output_format", ["mp4", "webm", "gif"])
def test_equal_clips_are_equal_files_and_one_frame_is_a_clip(output_format: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        CONTAINERS[output_format].write(_clip(1), 8, tmp_path / name, "same")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with av.open(str(tmp_path / "one")) as file:
        assert len(list(file.decode(video=0))) == 1


def test_an_mp4_is_played_from_its_first_bytes_and_a_gif_for_ever(tmp_path: Path) -> None:
    CONTAINERS["mp4"].write(_clip(), 8, tmp_path / "clip.mp4", "")
    data = (tmp_path / "clip.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    with av.open(str(tmp_path / "clip.mp4")) as file:
        codec = file.streams.video[0].codec_context
        assert (codec.name, codec.pix_fmt) == ("h264", "yuv420p")
    CONTAINERS["webm"].write(_clip(), 8, tmp_path / "clip.webm", "")
    with av.open(str(tmp_path / "clip.webm")) as file:
        assert file.streams.video[0].codec_context.name == "vp9"
    CONTAINERS["gif"].write(_clip(), 8, tmp_path / "clip.gif", "x" * 1000)
    gif = Image.open(tmp_path / "clip.gif")
    assert (gif.n_frames, gif.info["loop"], gif.info["comment"]) == (9, 0, b"x" * 1000)


def test_a_thumbnail_is_a_jpeg_of_bounded_size() -> None:
    image = Image.open(io.BytesIO(thumbnail_jpeg(_clip(frames=3, height=1024, width=2048))))
    assert (image.format, image.size) == ("JPEG", (512, 256))


@pytest.mark.parametrize(
    ("frames", "shown"), [(1, [0]), (3, [0, 1, 2]), (6, [0, 1, 2, 3, 4, 5]), (97, list(range(0, 97, 4)))]
)
def test_a_spritesheet_is_read_like_a_page(frames: int, shown: list[int]) -> None:
    clip = np.stack([np.full((48, 64, 3), 2 * i + 20, dtype=np.uint8) for i in range(frames)])
    sheet = Image.open(io.BytesIO(spritesheet_jpeg(clip)))
    columns = min(len(shown), 5)
    assert (sheet.format, sheet.size) == ("JPEG", (columns * 64, -(-len(shown) // columns) * 48))
    for place, index in enumerate(shown):
        red, _, _ = sheet.getpixel((place % columns * 64 + 32, place // columns * 48 + 24))
        assert abs(red - (2 * index + 20)) <= 1


def test_tiles_of_a_spritesheet_are_small() -> None:
    sheet = Image.open(io.BytesIO(spritesheet_jpeg(_clip(frames=2, height=720, width=1280))))
    assert sheet.size == (512, 144)


@pytest.mark.parametrize(("output_format", "compression"), [("png", None), ("jpeg", 90), ("jpeg", 10), ("webp", 90)])
def test_an_image_file_says_what_was_asked_for(output_format: Any, compression: int | None) -> None:
    pixels = _clip(1)[0]
    data = image_file(pixels, output_format, compression=compression, comment=provenance_comment(IMAGES, seed=8))
    image = Image.open(io.BytesIO(data))
    assert (image.format, image.size) == (output_format.upper(), (64, 48))
    assert json.loads(image.getexif()[0x010E]) == {
        "software": "tessera",
        "model": "m",
        "prompt": PROMPT,
        "negative_prompt": "fog",
        "seed": 8,
        "steps": 4,
        "guidance_scale": 5.0,
    }
    if output_format == "png":
        assert np.array_equal(np.asarray(image), pixels)


class Painter:
    """Paints each image in a grey of its seed; images of one job meet at each step, so they have to run at once."""

    max_requests = 4

    def __init__(self, count: int) -> None:
        self.requests: list[DiffusionRequest] = []
        self.meeting = threading.Barrier(count, timeout=20)

    def generate(self, request: DiffusionRequest, on_step: OnStep, resume: Resume | None = None) -> Frames:
        assert resume is None
        self.requests.append(request)
        for step in range(request.steps + 1):
            self.meeting.wait()
            on_step(step, request.steps, None)
        return np.full((1, request.height, request.width, 3), request.seed, dtype=np.uint8)

    def close(self) -> None:
        pass


def _job(given: ImageInput = IMAGES) -> tuple[Job, JobContext]:
    job = Job(
        id="image_1",
        kind="image",
        owner="me",
        queue="q",
        status="in_progress",
        input=msgspec.Raw(msgspec.json.encode(given)),
        created_at=0.0,
    )
    return job, JobContext(Lease(job, 3), threading.Event())


def test_the_images_of_a_job_are_made_at_once_with_seeds_in_a_row(tmp_path: Path) -> None:
    painter = Painter(3)
    job, context = _job()
    made = ImagePipeline(painter, "m", DirectoryArtifacts(tmp_path))(job, context)
    assert sorted(request.seed for request in painter.requests) == [7, 8, 9]
    assert {request.frames for request in painter.requests} == {1}
    assert list(made) == ["image-0", "image-1", "image-2"]
    for index, artifact in enumerate(made.values()):
        assert (artifact.key, artifact.content_type) == (f"image_1/3-image-{index}.png", "image/png")
        assert Image.open(tmp_path / artifact.key).getpixel((0, 0)) == (7 + index,) * 3
    assert context.wait_for_step(0) == 95


def test_one_image_that_fails_ends_the_others_and_nothing_is_stored(tmp_path: Path) -> None:
    class Clumsy(Painter):
        def generate(self, request: DiffusionRequest, on_step: OnStep, resume: Resume | None = None) -> Frames:
            if request.seed == 8:
                raise InvalidRequestError("not this one")
            while True:
                on_step(1, 4, None)

    with pytest.raises(Exception, match="not this one"):
        ImagePipeline(Clumsy(3), "m", DirectoryArtifacts(tmp_path))(*_job())
    assert list(tmp_path.iterdir()) == []


def test_a_cancel_stops_all_images_at_their_next_step(tmp_path: Path) -> None:
    job, context = _job()

    class Cancelled(Painter):
        def generate(self, request: DiffusionRequest, on_step: OnStep, resume: Resume | None = None) -> Frames:
            self.requests.append(request)
            self.meeting.wait()
            context.stop("cancelled")
            on_step(1, 4, None)
            raise AssertionError("it has to stop")

    painter = Cancelled(3)
    with pytest.raises(JobStoppedError, match="cancelled"):
        ImagePipeline(painter, "m", DirectoryArtifacts(tmp_path))(job, context)
    assert len(painter.requests) == 3


def test_an_image_job_for_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="'other'"):
        ImagePipeline(Painter(3), "other", DirectoryArtifacts(tmp_path))(*_job())


def test_equal_clips_are_equal_files(tmp_path: Path) -> None:
    """Also of sizes at which x264 reads memory that it never wrote: every time after other work."""
    y, x = np.mgrid[:64, :96]
    frames = np.stack([np.where(np.hypot(x - 20 - 3 * t, y - 32)[..., None] < 12, 220, 30) for t in range(17)])
    clip = np.repeat(frames.astype(np.uint8), 3, axis=-1)
    random = np.random.default_rng(0)
    for name, container in CONTAINERS.items():
        files = set()
        for turn in range(6):
            junk = [np.full(int(random.integers(1, 60_000)), turn, np.uint8) for _ in range(300)]
            del junk
            path = tmp_path / f"{turn}.{name}"
            container.write(clip, 4, path, "")
            files.add(path.read_bytes())
        assert len(files) == 1, name
