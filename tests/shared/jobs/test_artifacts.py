"""The contract of artifact stores, over a directory and over a bucket of a real S3 server: whole files or none."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar import Litestar
from litestar.testing import TestClient
from prometheus_client import CollectorRegistry
from tests.shared.jobs.cutting_proxy import CuttingProxy
from tests.shared.jobs.s3_server import S3Server

from tessera.api.mounting import mount_videos
from tessera.errors import NotFoundError, SettingsError, StorageFullError, UnavailableError
from tessera.jobs.artifacts.s3 import S3Artifacts
from tessera.jobs.artifacts.selection import make_artifact_store
from tessera.jobs.artifacts.store import ArtifactStore, DirectoryArtifacts
from tessera.jobs.records import Lease
from tessera.jobs.worker.runner import JobContext, JobRunner
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.jobs import ArtifactSettings, JobSettings
from tessera.settings.load import load
from tessera.settings.suite import SuiteSettings
from tessera.settings.tree import Settings
from tessera.suite.doctor import examine
from tessera.suite.parts import select
from tessera.web.app import build_app
from tessera.web.ranges import ByteRange, parse_range
from tessera.wire.jobs import Artifact, Job
from tessera.wire.models import Card

CARD = Card(id="tiny", family="x", tasks=["video"], source="test", parameters=1, licence="none", sizes=["64x64"])


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3") / "log")
    yield server
    server.close()


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest) -> str:
    name = f"bucket-{hashlib.sha256(request.node.name.encode()).hexdigest()[:20]}"
    s3.client.create_bucket(Bucket=name)
    return name


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryArtifacts:
    return DirectoryArtifacts(tmp_path / "artifacts")


@pytest.fixture(params=["directory", "bucket"])
def artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    if request.param == "directory":
        return DirectoryArtifacts(tmp_path / "artifacts")
    server, name = request.getfixturevalue("s3"), request.getfixturevalue("bucket")
    return S3Artifacts(server.settings(name), tmp_path / "outgoing")


def _leftovers(tmp_path: Path) -> list[Path]:
    return [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_a_file_is_stored_with_its_size_type_and_checksum(artifacts: ArtifactStore) -> None:
    stored = artifacts.put("job/1-video.mp4", b"clip", "video/mp4")
    assert (stored.key, stored.bytes, stored.content_type) == ("job/1-video.mp4", 4, "video/mp4")
    assert stored.sha256 == hashlib.sha256(b"clip").hexdigest()
    with artifacts.open("job/1-video.mp4") as file:
        assert file.read() == b"clip"


def test_a_file_is_read_from_any_place_in_pieces_of_any_size(artifacts: ArtifactStore) -> None:
    data = bytes(range(256)) * 40
    artifacts.put("job/file", data, "x")
    with artifacts.open("job/file") as file:
        assert file.seek(1000) == 1000
        assert file.read(24) == data[1000:1024]
        assert file.tell() == 1024
        assert file.read() == data[1024:]
        assert file.read(1) == b""
        assert file.seek(-3, io.SEEK_END) == len(data) - 3
        assert file.read(100) == data[-3:]


def test_an_empty_and_a_large_file_come_back_as_they_were(artifacts: ArtifactStore) -> None:
    for key, data in (("job/empty", b""), ("job/large", os.urandom(3 << 20))):
        assert artifacts.put(key, data, "x").bytes == len(data)
        with artifacts.open(key) as file:
            assert file.read() == data


def test_a_file_that_fails_half_way_is_not_there_and_leaves_nothing(artifacts: ArtifactStore, tmp_path: Path) -> None:
    def fail_half_way() -> None:
        with artifacts.create("job/video.mp4", "video/mp4") as pending:
            pending.path.write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    with pytest.raises(NotFoundError):
        artifacts.open("job/video.mp4")
    assert _leftovers(tmp_path) == []


@pytest.mark.slow
def test_a_reader_never_sees_a_file_between_two_contents(artifacts: ArtifactStore) -> None:
    artifacts.put("job/file", b"a" * 100_000, "x")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for letter in (b"b", b"a"):
                artifacts.put("job/file", letter * 100_000, "x")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(30):
            with artifacts.open("job/file") as file:
                data = file.read()
            assert data in (b"a" * 100_000, b"b" * 100_000)
    finally:
        stop.set()
        writer.join()


def test_removing_takes_one_file_or_all_of_a_job_and_nothing_else(artifacts: ArtifactStore) -> None:
    for key in ("job/one", "job/two", "job/three", "job2/one"):
        artifacts.put(key, b"x", "x")
    artifacts.discard("job/one")
    artifacts.discard("job/one")
    artifacts.discard("never/was")
    with pytest.raises(NotFoundError):
        artifacts.open("job/one")
    with artifacts.open("job/two") as file:
        assert file.read() == b"x"
    artifacts.remove("job")
    artifacts.remove("job")
    for key in ("job/two", "job/three"):
        with pytest.raises(NotFoundError):
            artifacts.open(key)
    with artifacts.open("job2/one") as file:
        assert file.read() == b"x"


def test_only_jobs_without_a_young_file_are_stale(artifacts: ArtifactStore) -> None:
    artifacts.put("job/one", b"x", "x")
    artifacts.put("other/one", b"x", "x")
    assert sorted(artifacts.stale(-5)) == ["job", "other"]
    assert list(artifacts.stale(3600)) == []


@pytest.mark.parametrize("key", ["../x", "job/../../x", "/etc/passwd", "job//x", "", "_incoming/x", "a/.hidden", "a b"])
def test_a_key_leads_nowhere_else(artifacts: ArtifactStore, key: str) -> None:
    for touch in (artifacts.open, artifacts.discard, artifacts.remove, lambda key: artifacts.put(key, b"x", "x")):
        with pytest.raises(NotFoundError):
            touch(key)


def test_no_room_is_said_so_and_publishes_nothing(artifacts: ArtifactStore, tmp_path: Path) -> None:
    def fill() -> None:
        with artifacts.create("job/file", "x") as pending:
            pending.path.unlink()
            pending.path.symlink_to("/dev/full")  # the kernel says ENOSPC to every write
            pending.path.write_bytes(b"clip")

    with pytest.raises(StorageFullError):
        fill()
    with pytest.raises(NotFoundError):
        artifacts.open("job/file")
    assert _leftovers(tmp_path) == []


def test_an_open_file_of_a_directory_stays_readable_after_its_job_is_removed(directory: DirectoryArtifacts) -> None:
    directory.put("job/file", b"clip", "x")
    with directory.open("job/file") as file:
        directory.remove("job")
        assert file.read() == b"clip"


def test_what_a_killed_process_left_half_written_is_removed_once_it_is_old(
    artifacts: ArtifactStore, tmp_path: Path
) -> None:
    pending = artifacts.create("job/file", "x")
    left = pending.__enter__().path  # and nobody leaves it
    assert list(artifacts.stale(3600)) == []
    assert left.exists()
    os.utime(left, (0, 0))
    assert list(artifacts.stale(3600)) == []
    assert not left.exists()


def test_an_object_of_a_bucket_has_its_type_and_checksum(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    stored = S3Artifacts(s3.settings(bucket), tmp_path / "outgoing").put("job/1-video.mp4", b"clip", "video/mp4")
    head = s3.client.head_object(Bucket=bucket, Key="some/prefix/job/1-video.mp4")
    assert (head["ContentType"], head["ContentLength"]) == ("video/mp4", 4)
    assert head["Metadata"] == {"sha256": stored.sha256}


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[CuttingProxy]:
    found = CuttingProxy(("127.0.0.1", s3.port))
    yield found
    found.close()


def _break(proxy: CuttingProxy, how: str) -> None:
    proxy.refuses = how == "refuses"
    proxy.silent = how == "is silent"
    proxy.left = 700_000 if how == "cuts half way" else None


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refuses", "is silent", "cuts half way"])
def test_a_bucket_that_breaks_while_a_file_is_sent_publishes_nothing_and_works_again_after(
    s3: S3Server, bucket: str, proxy: CuttingProxy, how: str, tmp_path: Path
) -> None:
    artifacts = S3Artifacts(s3.settings(bucket, url=f"http://127.0.0.1:{proxy.port}", timeout_s=1), tmp_path / "out")
    _break(proxy, how)
    began = time.monotonic()
    with pytest.raises(UnavailableError) as failed:
        artifacts.put("job/video.mp4", os.urandom(1 << 20), "video/mp4")
    assert time.monotonic() - began < 15
    assert (failed.value.retryable, failed.value.body().code) == (True, "artifacts_unavailable")
    assert s3.keys(bucket) == []
    assert _leftovers(tmp_path / "out") == []
    _break(proxy, "")
    proxy.cut()
    artifacts.put("job/video.mp4", b"clip", "video/mp4")
    assert s3.keys(bucket) == ["some/prefix/job/video.mp4"]


def test_a_bucket_that_is_not_there_or_refuses_is_no_missing_file(s3: S3Server, tmp_path: Path) -> None:
    artifacts = S3Artifacts(s3.settings("no-such-bucket"), tmp_path / "out")
    with pytest.raises(UnavailableError):
        artifacts.put("job/file", b"x", "x")


@pytest.mark.slow
def test_a_job_whose_bucket_is_dead_is_tried_again_and_completed_when_it_is_back(
    s3: S3Server, bucket: str, proxy: CuttingProxy, redis_server: Any
) -> None:
    settings = JobSettings(lease_s=5, reap_every_s=0.05, backoff_s=0, max_attempts=2)
    url = f"http://127.0.0.1:{proxy.port}"
    artifacts = S3Artifacts(s3.settings(bucket, url=url, timeout_s=1), redis_server.data / "outgoing")
    store = WorkerStore(redis_server.url, timeout_s=2, settings=settings)
    proxy.left = 700_000

    def handle(job: Job, context: JobContext) -> dict[str, Artifact]:
        made = {"video": artifacts.put(context.key("video.mp4"), os.urandom(1 << 20), "video/mp4")}
        assert job.attempts == 2
        return made

    class Bell:
        def ring(self, job_id: str, queue: str) -> None:
            assert s3.keys(bucket) == [], "half a file"
            _break(proxy, "")

    with _client(redis_server, s3.settings(bucket), settings) as client:
        video_id = client.post("/v1/videos", json={"prompt": "a"}).json()["id"]
        outcomes = JobRunner(store, artifacts, Bell(), {"video": handle}, worker="w", queue="video.tiny").run()
        assert outcomes == ["queued", "completed", "gone"]
        assert client.get(f"/v1/videos/{video_id}").json()["status"] == "completed"
        assert len(client.get(f"/v1/videos/{video_id}/content").content) == 1 << 20
    store.close()


def _client(redis_server: Any, place: ArtifactSettings, jobs: JobSettings) -> TestClient[Litestar]:
    settings = Settings(
        suite=SuiteSettings(data=str(redis_server.data)),
        redis=msgspec.structs.replace(Settings().redis, url=redis_server.url),
        jobs=jobs,
        artifacts=place,
    )

    async def card(_: str | None) -> Card:
        return CARD

    videos = mount_videos(settings, card)
    return TestClient(
        build_app(
            "video",
            videos.route_handlers,
            ready=videos.ready,
            registry=CollectorRegistry(),
            description="",
            lifespan=videos.lifespan,
        )
    )


@pytest.mark.slow
def test_content_of_a_bucket_comes_whole_in_parts_or_not_at_all(
    s3: S3Server, bucket: str, proxy: CuttingProxy, redis_server: Any
) -> None:
    jobs = JobSettings()
    place = s3.settings(bucket, url=f"http://127.0.0.1:{proxy.port}", timeout_s=1)
    artifacts = S3Artifacts(place, redis_server.data / "outgoing")
    store = WorkerStore(redis_server.url, timeout_s=2, settings=jobs)
    data = os.urandom((1 << 20) + 5)
    with _client(redis_server, place, jobs) as client:
        video_id = client.post("/v1/videos", json={"prompt": "a"}).json()["id"]
        lease = store.claim(video_id, worker="w")
        assert isinstance(lease, Lease)
        store.complete(lease, {"video": artifacts.put(f"{video_id}/1-video.webm", data, "video/webm")})
        path = f"/v1/videos/{video_id}/content"
        whole = client.get(path)
        assert (whole.status_code, whole.content, whole.headers["content-type"]) == (200, data, "video/webm")
        part = client.get(path, headers={"range": "bytes=10-19"})
        assert (part.status_code, part.content) == (206, data[10:20])
        assert client.get(path, headers={"range": "bytes=-5"}).content == data[-5:]
        assert client.get(path, headers={"range": f"bytes={len(data)}-"}).status_code == 416

        _break(proxy, "refuses")
        proxy.cut()
        down = client.get(path)
        assert (down.status_code, down.json()["error"]["code"]) == (503, "artifacts_unavailable")
        assert client.delete(f"/v1/videos/{video_id}").status_code == 200, "the record is gone; its files go later"
        _break(proxy, "")
        assert client.get(path).status_code == 404
        assert list(artifacts.stale(-5)) == [video_id]
    store.close()


def test_the_settings_say_where_files_are(tmp_path: Path) -> None:
    suite = SuiteSettings(data=str(tmp_path))
    assert isinstance(make_artifact_store(Settings(suite=suite)), DirectoryArtifacts)
    place = ArtifactSettings(url="s3://bucket", endpoint_url="http://127.0.0.1:1")
    assert isinstance(make_artifact_store(Settings(suite=suite, artifacts=place)), S3Artifacts)


def test_a_bucket_without_its_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tessera.jobs.artifacts.s3", None)
    monkeypatch.delitem(sys.modules, "s3fs", raising=False)
    settings = Settings(suite=SuiteSettings(data=str(tmp_path)), artifacts=ArtifactSettings(url="s3://bucket"))
    with pytest.raises(SettingsError, match=r"pip install 'tessera\[s3\]'"):
        make_artifact_store(settings)


def test_the_doctor_tries_the_bucket(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    def found(place: ArtifactSettings) -> tuple[str, str]:
        settings = Settings(suite=SuiteSettings(data=str(tmp_path)), artifacts=place)
        (finding,) = [each for each in examine(settings, select("video", settings)) if each.subject == "artifacts"]
        return finding.level, finding.message

    assert found(s3.settings(bucket)) == ("ok", f"s3://{bucket}/some/prefix can be written and read")
    assert s3.keys(bucket) == []
    level, said = found(s3.settings("no-such-bucket"))
    assert level == "fail"
    assert "no-such-bucket" in said
    settings = Settings(suite=SuiteSettings(data=str(tmp_path)))
    assert not [each for each in examine(settings, select("video", settings)) if each.subject == "artifacts"]


@pytest.mark.parametrize("url", ["bucket", "s3:/bucket", "s3://", "s3://B", "s3://bucket/../x", "https://bucket"])
def test_an_address_that_is_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"artifacts\.url"):
        load(environment={"TESSERA_ARTIFACTS__URL": url})


def test_half_a_pair_of_keys_is_refused_and_not_shown() -> None:
    with pytest.raises(SettingsError, match="set both") as refused:
        load(environment={"TESSERA_ARTIFACTS__SECRET_KEY": "verysecret"})
    assert "verysecret" not in str(refused.value)


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


@pytest.mark.slow
@pytest.mark.parametrize("header", ["bytes=10-", "bytes=99-100", "bytes=-0"])
def test_a_range_outside_the_file_cannot_be_satisfied(header: str) -> None:
    with pytest.raises(ValueError):
        parse_range(header, 10)
