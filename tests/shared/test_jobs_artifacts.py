"""The artifact directory: whole files or none, no way out of it; and byte ranges."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from tessera.errors import NotFoundError, StorageFullError
from tessera.jobs.artifacts import DirectoryArtifacts
from tessera.web.ranges import ByteRange, parse_range


@pytest.fixture
def artifacts(tmp_path: Path) -> DirectoryArtifacts:
    return DirectoryArtifacts(tmp_path / "artifacts")


def test_a_file_is_stored_with_its_size_type_and_checksum(artifacts: DirectoryArtifacts) -> None:
    stored = artifacts.put("job/1-video.mp4", b"clip", "video/mp4")
    assert (stored.bytes, stored.content_type) == (4, "video/mp4")
    assert stored.sha256 == hashlib.sha256(b"clip").hexdigest()
    with artifacts.open("job/1-video.mp4") as file:
        assert file.read() == b"clip"


def test_a_file_that_fails_half_way_is_not_there_and_leaves_nothing(artifacts: DirectoryArtifacts) -> None:
    def fail_half_way() -> None:
        with artifacts.create("job/video.mp4", "video/mp4") as pending:
            pending.path.write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    with pytest.raises(NotFoundError):
        artifacts.open("job/video.mp4")
    assert [path for path in artifacts.directory.rglob("*") if path.is_file()] == []


def test_a_reader_never_sees_a_file_between_two_contents(artifacts: DirectoryArtifacts) -> None:
    artifacts.put("job/file", b"a" * 100_000, "x")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for letter in (b"b", b"a"):
                artifacts.put("job/file", letter * 100_000, "x")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            with artifacts.open("job/file") as file:
                data = file.read()
            assert data in (b"a" * 100_000, b"b" * 100_000)
    finally:
        stop.set()
        writer.join()


def test_an_open_file_stays_readable_after_its_job_is_removed(artifacts: DirectoryArtifacts) -> None:
    artifacts.put("job/file", b"clip", "x")
    with artifacts.open("job/file") as file:
        artifacts.remove("job")
        assert file.read() == b"clip"
    artifacts.remove("job")


def test_no_room_is_said_so_and_publishes_nothing(artifacts: DirectoryArtifacts) -> None:
    def fill() -> None:
        with artifacts.create("job/file", "x") as pending:
            pending.path.unlink()
            pending.path.symlink_to("/dev/full")  # the kernel says ENOSPC to every write
            pending.path.write_bytes(b"clip")

    with pytest.raises(StorageFullError):
        fill()
    with pytest.raises(NotFoundError):
        artifacts.open("job/file")


@pytest.mark.parametrize("key", ["../x", "job/../../x", "/etc/passwd", "job//x", "", "_incoming/x", "a/.hidden", "a b"])
def test_a_key_cannot_leave_the_directory(artifacts: DirectoryArtifacts, key: str) -> None:
    with pytest.raises(NotFoundError):
        artifacts.open(key)
    with pytest.raises(NotFoundError):
        artifacts.put(key, b"x", "x")
    with pytest.raises(NotFoundError):
        artifacts.remove(key)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("bytes=0-0", ByteRange(0, 1)),
        ("bytes=2-5", ByteRange(2, 4)),
        ("bytes=5-", ByteRange(5, 5)),
        ("bytes=-3", ByteRange(7, 3)),
        ("bytes=-99", ByteRange(0, 10)),
        ("bytes=8-99", ByteRange(8, 2)),
        ("bytes=5-2", None),
        ("bytes=-", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
    ],
)
def test_ranges_mean_what_the_rfc_says(header: str | None, expected: ByteRange | None) -> None:
    assert parse_range(header, 10) == expected


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=99-100", "bytes=-0"])
def test_a_range_outside_the_file_cannot_be_satisfied(header: str) -> None:
    with pytest.raises(ValueError):
        parse_range(header, 10)
