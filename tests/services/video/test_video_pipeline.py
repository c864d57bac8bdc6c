"""From a job to its files, and errors that name their cause. `test_video_outputs` checks the files' content."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import msgspec
import numpy as np
import pytest
import torch
from PIL import Image

from tessera.diffusion.request import DiffusionRequest, Frames, OnStep, Resume, ResumeError
from tessera.errors import EngineDiedError, InvalidRequestError, StorageFullError, UnavailableError
from tessera.jobs.artifacts.store import DirectoryArtifacts, UnfinishedArtifact
from tessera.jobs.records import Lease
from tessera.jobs.worker.runner import JobContext, JobStoppedError
from tessera.settings.video import VideoSettings
from tessera.telemetry import request_id_var
from tessera.wire.jobs import Job, VideoInput
from tessera_video.pipeline import VideoPipeline

GIVEN = VideoInput(
    model="m",
    prompt="a cat",
    negative_prompt="",
    width=64,
    height=48,
    frames=9,
    fps=8,
    seconds="1",
    steps=4,
    guidance_scale=5.0,
    seed=1,
    request_id="req_1",
)


class Painter:
    """A model that paints a moving ramp, and remembers what it was asked for."""

    max_requests = 1

    def __init__(self) -> None:
        self.requests: list[DiffusionRequest] = []
        self.resumed: list[Resume | None] = []
        self.request_id: str | None = None

    def generate(self, request: DiffusionRequest, on_step: OnStep, resume: Resume | None = None) -> Frames:
        self.requests.append(request)
        self.resumed.append(resume)
        self.request_id = request_id_var.get()
        first = 0
        if resume is not None:
            if not resume.data.isdigit():
                raise ResumeError("it cannot be read")
            first = int(resume.data)
        for step in range(first, request.steps + 1):
            on_step(step, request.steps, lambda step=step: _Step(step))
        return _clip(request.frames, request.height, request.width)

    def close(self) -> None:
        pass


class _Step:
    """The number of a step, as a frozen request."""

    def __init__(self, step: int) -> None:
        self.step = step

    def encode(self, identity: str) -> bytes:
        assert len(identity) == 64
        return str(self.step).encode()


class FullDisk(DirectoryArtifacts):
    """Every file it hands out for writing is one to which the kernel says ENOSPC."""

    @contextmanager
    def create(self, key: str, content_type: str) -> Iterator[UnfinishedArtifact]:
        with super().create(key, content_type) as pending:
            pending.path.unlink()
            pending.path.symlink_to("/dev/full")
            yield pending


def _clip(frames: int = 9, height: int = 48, width: int = 64) -> Frames:
    ramp = np.linspace(0, 200, width, dtype=np.uint8)
    return np.stack([np.broadcast_to((ramp + 4 * i)[None, :, None], (height, width, 3)) for i in range(frames)])


def _job(
    given: VideoInput = GIVEN, *, checkpoint: str | None = None, draining: threading.Event | None = None
) -> tuple[Job, JobContext]:
    job = Job(
        id="video_1",
        kind="video",
        owner="me",
        queue="q",
        status="in_progress",
        input=msgspec.Raw(msgspec.json.encode(given)),
        created_at=0.0,
        checkpoint=checkpoint,
    )
    return job, JobContext(Lease(job, 3), draining or threading.Event())


def test_a_job_becomes_its_files_under_its_token(tmp_path: Path) -> None:
    artifacts = DirectoryArtifacts(tmp_path)
    painter = Painter()
    made = VideoPipeline(painter, "m", artifacts, VideoSettings())(*_job())
    assert {name: (file.key, file.content_type) for name, file in made.items()} == {
        "video": ("video_1/3-video.mp4", "video/mp4"),
        "thumbnail": ("video_1/3-thumbnail.jpg", "image/jpeg"),
        "spritesheet": ("video_1/3-spritesheet.jpg", "image/jpeg"),
    }
    assert all((tmp_path / file.key).stat().st_size == file.bytes for file in made.values())
    assert (painter.requests[0].frames, painter.requests[0].steps, painter.request_id) == (9, 4, "req_1")
    assert request_id_var.get() is None


def test_a_full_disk_while_encoding_is_told_as_one_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageFullError, match="room"):
        VideoPipeline(Painter(), "m", FullDisk(tmp_path), VideoSettings())(*_job())
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


def test_a_device_that_fails_ends_the_worker_and_the_job_is_tried_elsewhere(tmp_path: Path) -> None:
    class Broken:
        max_requests = 1

        def generate(self, *_: Any) -> Frames:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    ended: list[bool] = []
    pipeline = VideoPipeline(
        Broken(), "m", DirectoryArtifacts(tmp_path), VideoSettings(), on_broken_device=lambda: ended.append(True)
    )
    with pytest.raises(EngineDiedError) as failed:
        pipeline(*_job())
    assert failed.value.retryable
    assert ended == [True]


def test_too_little_memory_is_told_with_what_to_do(tmp_path: Path) -> None:
    class Full(Painter):
        def generate(self, *_: Any) -> Frames:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    with pytest.raises(UnavailableError, match="smaller `size`") as failed:
        VideoPipeline(Full(), "m", DirectoryArtifacts(tmp_path), VideoSettings())(*_job())
    assert failed.value.body().code == "out_of_memory"


def test_a_job_for_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="'other'"):
        VideoPipeline(Painter(), "other", DirectoryArtifacts(tmp_path), VideoSettings())(*_job())


def _noise_png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def _with_image(tmp_path: Path, data: bytes, **settings: Any) -> Painter:
    artifacts = DirectoryArtifacts(tmp_path)
    artifacts.put("video_1/input", data, "image/png")
    painter = Painter()
    given = msgspec.structs.replace(GIVEN, image="video_1/input")
    VideoPipeline(painter, "m", artifacts, VideoSettings(**settings))(*_job(given))
    return painter


def _png(width: int, height: int, mode: str = "RGBA") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, "PNG")
    return file.getvalue()


def test_a_first_frame_reaches_the_model_as_rgb(tmp_path: Path) -> None:
    image = _with_image(tmp_path, _png(20, 10)).requests[0].image
    assert image is not None
    assert (image.mode, image.size) == ("RGB", (20, 10))


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n" + b"x" * 50, _noise_png()[:2000], b"GIF89a" + b"\0" * 50])
def test_a_damaged_first_frame_is_named(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be decoded"):
        _with_image(tmp_path, data)


def test_a_first_frame_of_too_many_pixels_is_refused_from_its_header(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="200x200") as refused:
        _with_image(tmp_path, _png(200, 200), max_pixels=100 * 100)
    assert refused.value.param == "input_reference"


KEY = "video_1/3-checkpoint.safetensors"


def test_a_checkpoint_is_kept_every_few_steps_and_told_to_the_keeper_of_the_lease(tmp_path: Path) -> None:
    job, context = _job(msgspec.structs.replace(GIVEN, steps=7))
    VideoPipeline(Painter(), "m", DirectoryArtifacts(tmp_path), VideoSettings(checkpoint_steps=3))(job, context)
    assert context.checkpoint == KEY
    # The one of step 6 is skipped when that of step 3 is still being written: no step waits.
    assert (tmp_path / KEY).read_bytes() in (b"3", b"6")


def test_without_checkpoints_none_is_written_nor_read(tmp_path: Path) -> None:
    artifacts, painter = DirectoryArtifacts(tmp_path), Painter()
    artifacts.put("video_1/2-checkpoint.safetensors", b"2", "application/octet-stream")
    job, context = _job(checkpoint="video_1/2-checkpoint.safetensors")
    VideoPipeline(painter, "m", artifacts, VideoSettings(checkpoint_steps=0))(job, context)
    assert context.checkpoint is None
    assert painter.resumed == [None]


def test_draining_keeps_the_step_it_stopped_at(tmp_path: Path) -> None:
    draining = threading.Event()

    class Drained(Painter):
        def generate(self, request: DiffusionRequest, on_step: OnStep, resume: Resume | None = None) -> Frames:
            on_step(1, request.steps, lambda: _Step(1))
            draining.set()
            on_step(2, request.steps, lambda: _Step(2))
            raise AssertionError("it has to stop")

    job, context = _job(draining=draining)
    with pytest.raises(JobStoppedError, match="draining"):
        VideoPipeline(Drained(), "m", DirectoryArtifacts(tmp_path), VideoSettings(checkpoint_steps=100))(job, context)
    assert context.checkpoint == KEY
    assert (tmp_path / KEY).read_bytes() == b"2"


@pytest.mark.parametrize(
    ("left", "resumed"),
    [(b"3", [b"3"]), (b"rubbish", [b"rubbish", None]), (None, [None])],
    ids=["sound", "damaged", "gone"],
)
def test_a_job_goes_on_from_a_sound_checkpoint_and_else_begins_anew(
    tmp_path: Path, left: bytes | None, resumed: list[bytes | None]
) -> None:
    artifacts, painter = DirectoryArtifacts(tmp_path), Painter()
    key = "video_1/2-checkpoint.safetensors"
    if left is not None:
        artifacts.put(key, left, "application/octet-stream")
    made = VideoPipeline(painter, "m", artifacts, VideoSettings())(*_job(checkpoint=key))
    assert set(made) == {"video", "thumbnail", "spritesheet"}
    assert [None if each is None else each.data for each in painter.resumed] == resumed


def test_a_disk_too_full_for_checkpoints_costs_no_video(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class NoRoomForCheckpoints(DirectoryArtifacts):
        def put(self, key: str, data: bytes, content_type: str) -> Any:
            if "checkpoint" in key:
                return FullDisk(self.directory).put(key, data, content_type)
            return super().put(key, data, content_type)

    job, context = _job()
    made = VideoPipeline(Painter(), "m", NoRoomForCheckpoints(tmp_path), VideoSettings(checkpoint_steps=1))(
        job, context
    )
    assert set(made) == {"video", "thumbnail", "spritesheet"}
    assert context.checkpoint is None
    assert caplog.text.count("no checkpoint of video_1 is kept") == 1


@pytest.mark.parametrize("output_format", ["mp4", "webm", "gif"])
def test_an_extension_is_one_clip_whose_first_part_is_the_old_one(tmp_path: Path, output_format: str) -> None:
    artifacts = DirectoryArtifacts(tmp_path)
    first = msgspec.structs.replace(GIVEN, output_format=output_format)
    old = VideoPipeline(Painter(), "m", artifacts, VideoSettings())(*_job(first))["video"]
    with artifacts.open(old.key) as file:
        artifacts.put("video_1/input", file.read(), old.content_type)
    given = msgspec.structs.replace(first, frames=5, image="video_1/input", extends="video_0", before=9)
    painter = Painter()
    made = VideoPipeline(painter, "m", artifacts, VideoSettings())(*_job(given))
    before, after = (_decoded(tmp_path / each) for each in ("video_1/input", made["video"].key))
    assert after.shape == (13, 48, 64, 3)
    assert np.abs(after[:9].astype(int) - before).mean() < 2, "encoded again, and no more changed than by that"
    assert np.abs(after[9:].astype(int) - _clip(5)[1:]).mean() < 4, "then what is new"
    image = painter.requests[0].image
    assert image is not None
    assert np.array_equal(np.asarray(image), before[-1]), "which begins with the last frame"
    assert painter.requests[0].frames == 5
    with Image.open(tmp_path / made["thumbnail"].key) as thumbnail:
        middle = np.asarray(thumbnail.convert("RGB")).astype(int)
    assert np.abs(middle - after[6]).mean() < 4


def test_a_clip_that_cannot_go_on_is_refused(tmp_path: Path) -> None:
    artifacts = DirectoryArtifacts(tmp_path)
    artifacts.put("video_1/input", b"no video", "video/mp4")
    given = msgspec.structs.replace(GIVEN, image="video_1/input", extends="video_0", before=9)
    with pytest.raises(InvalidRequestError, match="cannot be decoded"):
        VideoPipeline(Painter(), "m", artifacts, VideoSettings())(*_job(given))
    clip = VideoPipeline(Painter(), "m", artifacts, VideoSettings())(*_job(GIVEN))["video"]
    with artifacts.open(clip.key) as file:
        artifacts.put("video_1/input", file.read(), clip.content_type)
    shorter = msgspec.structs.replace(given, before=8)
    with pytest.raises(InvalidRequestError, match="has 9 frames, not 8"):
        VideoPipeline(Painter(), "m", artifacts, VideoSettings())(*_job(shorter))


def _decoded(path: Path) -> Frames:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
