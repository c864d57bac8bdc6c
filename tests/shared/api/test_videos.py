"""`/v1/videos` over a real Redis, without a worker: what is accepted, refused, shown and handed out."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from litestar import Litestar
from litestar.testing import TestClient
from litestar.types import ASGIApp, Receive, Scope, Send
from PIL import Image
from prometheus_client import CollectorRegistry

from tessera.api.mounting import mount_videos
from tessera.api.videos.request import make_input
from tessera.errors import InvalidRequestError, ModelNotFoundError
from tessera.jobs.artifacts.store import DirectoryArtifacts
from tessera.jobs.records import Lease
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.jobs import JobSettings
from tessera.settings.suite import SuiteSettings
from tessera.settings.tree import Settings
from tessera.settings.video import VideoSettings
from tessera.web.app import build_app
from tessera.wire.jobs import JobError, VideoInput
from tessera.wire.models import Card
from tessera.wire.videos import VideoCreateRequest

TEXT_CARD = Card(
    id="tiny",
    family="WanPipeline",
    tasks=["video"],
    source="test",
    parameters=1,
    licence="none",
    sizes=["64x64"],
    fps=8,
    frames_multiple=4,
    size_multiple=16,
)
IMAGE_CARD = msgspec.structs.replace(TEXT_CARD, id="tiny-i2v", image_input="required")
EITHER_CARD = msgspec.structs.replace(TEXT_CARD, id="tiny-ti2v", image_input="optional")


@pytest.mark.parametrize(
    ("asked", "operator", "card", "made"),
    [
        ({"steps": 3, "guidance_scale": 0.0}, 5, (9, 2.5), (3, 0.0)),
        ({}, 5, (9, 2.5), (5, 2.5)),
        ({}, 0, (9, 2.5), (9, 2.5)),
        ({}, 0, (None, None), (30, 5.0)),
        ({}, 0, (50, None), (40, 5.0)),
    ],
    ids=["request", "operator", "card", "neither", "at most as many as may be"],
)
def test_steps_and_guidance_are_the_requests_the_operators_or_the_cards(
    asked: dict[str, Any], operator: int, card: tuple[int | None, float | None], made: tuple[int, float]
) -> None:
    given = make_input(
        VideoCreateRequest(prompt="a cat", **asked),
        msgspec.structs.replace(TEXT_CARD, steps=card[0], guidance_scale=card[1]),
        VideoSettings(steps=operator, max_steps=40),
    )
    assert (given.steps, given.guidance_scale) == made


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ({}, (4.0, 3.0)),
        ({"guidance_scale": 2.0}, (2.0, None)),
        ({"guidance_scale": 2.0, "guidance_scale_2": 1.5}, (2.0, 1.5)),
        ({"guidance_scale_2": 1.5}, (4.0, 1.5)),
    ],
)
def test_the_second_guidance_scale_is_the_requests_or_goes_with_the_cards_first(
    asked: dict[str, float], made: tuple[float, float | None]
) -> None:
    card = msgspec.structs.replace(TEXT_CARD, experts=2, guidance_scale=4.0, guidance_scale_2=3.0)
    request = VideoCreateRequest(prompt="a cat", **asked)
    given = make_input(request, card, VideoSettings())
    assert (given.guidance_scale, given.guidance_scale_2) == made


def test_a_second_guidance_scale_is_refused_for_a_model_with_one_expert() -> None:
    request = VideoCreateRequest(prompt="a cat", guidance_scale_2=3.0)
    with pytest.raises(InvalidRequestError, match="'tiny' has one") as refused:
        make_input(request, TEXT_CARD, VideoSettings())
    assert refused.value.param == "guidance_scale_2"


class House:
    """The routes in an app whose owner is the `x-owner` header, and a worker's hands on the store."""

    def __init__(self, data: str, redis_url: str) -> None:
        self.settings = Settings(
            suite=SuiteSettings(data=data),
            jobs=JobSettings(max_queued_per_key=8),
            video=VideoSettings(max_seconds=10, max_steps=20, max_pixels=512 * 512, max_image_bytes=20_000),
        )
        self.store = WorkerStore(redis_url, timeout_s=2, settings=self.settings.jobs)
        self.artifacts = DirectoryArtifacts(self.settings.artifacts_dir)

    async def cards(self, name: str | None) -> Card:
        for card in (TEXT_CARD, IMAGE_CARD, EITHER_CARD):
            if name in (card.id, None):
                return card
        raise ModelNotFoundError(f"there is no video model {name!r}", param="model")

    def app(self) -> Litestar:
        videos = mount_videos(self.settings, self.cards)
        app = build_app(
            "video",
            videos.route_handlers,
            ready=videos.ready,
            registry=CollectorRegistry(),
            description="",
            lifespan=videos.lifespan,
        )
        app.asgi_handler = _owned(app.asgi_handler)
        return app

    def claim(self, video_id: str) -> Lease:
        lease = self.store.claim(video_id, worker="w")
        assert isinstance(lease, Lease)
        return lease

    def complete(self, video_id: str, clip: bytes) -> None:
        lease = self.claim(video_id)
        video = self.artifacts.put(f"{video_id}/1-video.mp4", clip, "video/mp4")
        thumbnail = self.artifacts.put(f"{video_id}/1-thumbnail.jpg", b"jpeg", "image/jpeg")
        assert self.store.complete(lease, {"video": video, "thumbnail": thumbnail}) == "completed"


def _owned(app: ASGIApp) -> ASGIApp:
    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        for name, value in scope.get("headers", []):
            if name == b"x-owner":
                scope["tessera.owner"] = value.decode()  # type: ignore[typeddict-unknown-key]
        await app(scope, receive, send)

    return handle


@pytest.fixture
def house(redis_server: Any) -> House:
    return House(str(redis_server.data), redis_server.url)


@pytest.fixture
def client(house: House) -> Iterator[TestClient[Litestar]]:
    with TestClient(house.app()) as found:
        yield found


def _create(client: TestClient[Litestar], **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/videos", json={"prompt": "a cat", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def _input(house: House, video_id: str) -> VideoInput:
    return msgspec.json.decode(house.claim(video_id).job.input, type=VideoInput)


def _png(width: int = 8, height: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(file, "PNG")
    return file.getvalue()


def test_json_and_the_sdks_multipart_make_the_same_job(house: House, client: TestClient[Litestar]) -> None:
    fields = {"prompt": "a cat", "seconds": "2", "size": "128x64", "seed": "7", "steps": "3", "negative_prompt": "dogs"}
    by_form = client.post("/v1/videos", files={name: (None, value) for name, value in fields.items()})
    by_json = client.post("/v1/videos", json={**fields, "seed": 7, "steps": 3, "seconds": 2})
    inputs = [
        msgspec.structs.replace(_input(house, answer.json()["id"]), request_id=None) for answer in (by_form, by_json)
    ]
    assert inputs[0] == inputs[1]
    assert (inputs[0].width, inputs[0].height, inputs[0].frames, inputs[0].seed) == (128, 64, 17, 7)
    shown = by_form.json()
    assert {key: shown[key] for key in ("object", "status", "progress", "seconds", "size", "model", "prompt")} == {
        "object": "video",
        "status": "queued",
        "progress": 0,
        "seconds": "2",
        "size": "128x64",
        "model": "tiny",
        "prompt": "a cat",
    }


@pytest.mark.parametrize(("seconds", "frames"), [("0.1", 1), ("1", 9), ("2", 17), ("4", 33), ("0.5", 5)])
def test_seconds_become_frames_by_the_cards_rule(
    house: House, client: TestClient[Litestar], seconds: str, frames: int
) -> None:
    assert _input(house, _create(client, seconds=seconds)["id"]).frames == frames


@pytest.mark.parametrize(
    ("asked", "frames", "fps", "seconds"),
    [
        ({"frames": 13}, 13, 8, "1.625"),
        ({"frames": 81, "fps": 30}, 81, 30, "2.7"),
        ({"seconds": "2", "fps": 16}, 33, 16, "2"),
        ({"frames": 1}, 1, 8, "0.125"),
    ],
)
def test_frames_and_their_rate_may_be_said(
    house: House, client: TestClient[Litestar], asked: dict[str, Any], frames: int, fps: int, seconds: str
) -> None:
    given = _input(house, _create(client, **asked)["id"])
    assert (given.frames, given.fps, given.seconds) == (frames, fps, seconds)


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "prompt", "required"),
        ({"prompt": ""}, "prompt", "length >= 1"),
        ({"prompt": "x" * 9000}, "prompt", "8192"),
        ({"prompt": "a", "size": "63x64"}, "size", "multiples of 16, the nearest below is 48x64"),
        ({"prompt": "a", "frames": 8}, "frames", "nearest are 5 and 9"),
        ({"prompt": "a", "frames": 9, "seconds": "1"}, "frames", "one of them"),
        ({"prompt": "a", "frames": 85}, "frames", "limit is 81"),
        ({"prompt": "a", "frames": 81, "fps": 4}, "frames", "limit is 41 at 4"),
        ({"prompt": "a", "seconds": "10", "fps": 24}, "fps", "limit is 81"),
        ({"prompt": "a", "fps": 0}, "fps", ">= 1"),
        ({"prompt": "a", "fps": 60, "seconds": "1", "output_format": "gif"}, "fps", "at most 50"),
        ({"prompt": "a", "output_format": "avi"}, "output_format", "avi"),
        ({"prompt": "a", "size": "0x0"}, "size", "at least 16"),
        ({"prompt": "a", "size": "1024x1024"}, "size", "262144"),
        ({"prompt": "a", "size": "large"}, "size", "regex"),
        ({"prompt": "a", "seconds": "11"}, "seconds", "at most 10"),
        ({"prompt": "a", "seconds": "0"}, "seconds", "over 0"),
        ({"prompt": "a", "steps": 21}, "steps", "limit is 20"),
        ({"prompt": "a", "steps": 0}, "steps", ">= 1"),
        ({"prompt": "a", "guidance_scale": -1}, "guidance_scale", ">= 0"),
        ({"prompt": "a", "colour": "red"}, "colour", "not a parameter"),
        ({"prompt": "a", "input_reference": {"image_url": "data:image/png;base64,AAAA"}}, "input_reference", "text to"),
    ],
)
def test_what_cannot_be_is_refused_by_name_before_there_is_a_record(
    client: TestClient[Litestar], body: dict[str, Any], param: str, says: str
) -> None:
    answer = client.post("/v1/videos", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert says in error["message"]
    assert client.get("/v1/videos").json()["data"] == []


def test_an_unknown_model_is_404_and_another_content_type_415(client: TestClient[Litestar]) -> None:
    assert client.post("/v1/videos", json={"prompt": "a", "model": "sora-2"}).status_code == 404
    assert client.post("/v1/videos", content=b"a", headers={"content-type": "text/plain"}).status_code == 415


def test_a_first_frame_comes_as_a_file_or_a_data_url_and_is_stored_for_the_worker(
    house: House, client: TestClient[Litestar]
) -> None:
    url = "data:image/png;base64," + base64.b64encode(_png()).decode()
    form = {"prompt": (None, "a"), "model": (None, "tiny-i2v")}
    answers = [
        client.post("/v1/videos", files={**form, "input_reference": ("x.png", _png(), "image/png")}),
        client.post("/v1/videos", files={**form, "input_reference[image_url]": (None, url)}),
        client.post("/v1/videos", json={"prompt": "a", "model": "tiny-i2v", "input_reference": {"image_url": url}}),
    ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        image = _input(house, answer.json()["id"]).image
        assert image is not None
        with house.artifacts.open(image) as file:
            assert file.read() == _png()


def test_a_first_frame_may_be_left_out_where_it_is_optional(house: House, client: TestClient[Litestar]) -> None:
    without = client.post("/v1/videos", json={"prompt": "a", "model": "tiny-ti2v"})
    form = {"prompt": (None, "a"), "model": (None, "tiny-ti2v"), "input_reference": ("x.png", _png(), "image/png")}
    given = client.post("/v1/videos", files=form)
    assert (without.status_code, given.status_code) == (200, 200)
    assert _input(house, without.json()["id"]).image is None
    assert _input(house, given.json()["id"]).image is not None


@pytest.mark.parametrize(
    ("reference", "status"),
    [
        (None, 400),
        ({"image_url": "https://example.com/x.png"}, 400),
        ({"image_url": "data:image/png;base64,@@@"}, 400),
        ({"image_url": "data:image/png;base64," + base64.b64encode(b"GIF89a").decode()}, 415),
        ({"image_url": "data:image/png;base64," + base64.b64encode(b"\x89PNG" + b"x" * 20_001).decode()}, 413),
    ],
)
def test_a_bad_first_frame_is_refused_and_leaves_no_file(
    house: House, client: TestClient[Litestar], reference: Any, status: int
) -> None:
    body = {"prompt": "a", "model": "tiny-i2v", **({"input_reference": reference} if reference else {})}
    assert client.post("/v1/videos", json=body).status_code == status
    assert not house.artifacts.directory.exists()


def test_a_refused_job_leaves_no_uploaded_file(house: House, client: TestClient[Litestar]) -> None:
    for _ in range(house.settings.jobs.max_queued_per_key):
        _create(client)
    form = {"prompt": (None, "a"), "model": (None, "tiny-i2v"), "input_reference": ("x.png", _png(), "image/png")}
    answer = client.post("/v1/videos", files=form)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert [path for path in house.artifacts.directory.rglob("*") if path.is_file()] == []


def test_a_body_over_the_limit_is_413(client: TestClient[Litestar]) -> None:
    answer = client.post("/v1/videos", content=b" " * 400_000, headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_status_progress_and_the_time_to_poll_again_are_shown(house: House, client: TestClient[Litestar]) -> None:
    video_id = _create(client)["id"]
    assert client.get(f"/v1/videos/{video_id}").headers["openai-poll-after-ms"] == "500"
    lease = house.claim(video_id)
    house.store.renew(lease, progress=42)
    shown = client.get(f"/v1/videos/{video_id}").json()
    assert (shown["status"], shown["progress"], shown["completed_at"]) == ("in_progress", 42, None)
    house.store.fail(lease, JobError(code="internal_error", message="it broke"), again=False)
    answer = client.get(f"/v1/videos/{video_id}")
    assert answer.json()["error"] == {"code": "internal_error", "message": "it broke"}
    assert "openai-poll-after-ms" not in answer.headers


def test_an_earlier_attempts_error_is_not_shown_while_the_job_is_tried_again(
    house: House, client: TestClient[Litestar]
) -> None:
    video_id = _create(client)["id"]
    house.store.fail(house.claim(video_id), JobError(code="x", message="y"), again=True)
    shown = client.get(f"/v1/videos/{video_id}").json()
    assert (shown["status"], shown["error"]) == ("queued", None)


def test_cancelling_keeps_the_record_as_failed_with_the_reason(house: House, client: TestClient[Litestar]) -> None:
    video_id = _create(client)["id"]
    shown = client.post(f"/v1/videos/{video_id}/cancel").json()
    assert (shown["status"], shown["error"]["code"]) == ("failed", "cancelled")
    assert client.post(f"/v1/videos/{video_id}/cancel").status_code == 409
    assert client.get(f"/v1/videos/{video_id}/content").status_code == 409


def test_nobody_sees_or_touches_another_owners_video(house: House, client: TestClient[Litestar]) -> None:
    mine = client.post("/v1/videos", json={"prompt": "a"}, headers={"x-owner": "me"}).json()["id"]
    house.complete(mine, b"clip")
    you = {"x-owner": "you"}
    assert client.get("/v1/videos", headers=you).json()["data"] == []
    for method, path in (("GET", ""), ("GET", "/content"), ("HEAD", "/content"), ("POST", "/cancel"), ("DELETE", "")):
        assert client.request(method, f"/v1/videos/{mine}{path}", headers=you).status_code == 404
    assert client.get(f"/v1/videos/{mine}/content", headers={"x-owner": "me"}).content == b"clip"


@pytest.mark.parametrize("video_id", ["video_1", "..%2f..", "video_" + "g" * 32, "tessera:jobs:queued"])
def test_an_id_that_none_of_ours_can_be_is_404(client: TestClient[Litestar], video_id: str) -> None:
    assert client.get(f"/v1/videos/{video_id}").status_code == 404


def test_content_comes_whole_in_parts_or_not_at_all(house: House, client: TestClient[Litestar]) -> None:
    video_id = _create(client)["id"]
    path = f"/v1/videos/{video_id}/content"
    assert client.get(path).status_code == 409
    house.complete(video_id, bytes(range(100)))

    whole = client.get(path)
    assert (whole.status_code, whole.content) == (200, bytes(range(100)))
    assert whole.headers["content-type"] == "video/mp4"
    assert whole.headers["accept-ranges"] == "bytes"
    assert whole.headers["content-length"] == "100"

    part = client.get(path, headers={"range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, bytes(range(10, 20)))
    assert part.headers["content-range"] == "bytes 10-19/100"

    outside = client.get(path, headers={"range": "bytes=100-"})
    assert (outside.status_code, outside.headers["content-range"]) == (416, "bytes */100")
    assert outside.json()["error"]["code"] == "range_not_satisfiable"

    etag = whole.headers["etag"]
    assert client.get(path, headers={"if-none-match": etag}).status_code == 304
    assert client.get(path, headers={"range": "bytes=0-1", "if-range": etag}).status_code == 206
    assert client.get(path, headers={"range": "bytes=0-1", "if-range": '"old"'}).status_code == 200

    head = client.head(path)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "100")

    thumbnail = client.get(path, params={"variant": "thumbnail"})
    assert (thumbnail.content, thumbnail.headers["content-type"]) == (b"jpeg", "image/jpeg")
    assert client.get(path, params={"variant": "spritesheet"}).status_code == 400


def test_a_remix_is_a_new_job_that_differs_in_its_prompt(house: House, client: TestClient[Litestar]) -> None:
    form = {"prompt": (None, "a"), "model": (None, "tiny-ti2v"), "seed": (None, "9"), "output_format": (None, "webm")}
    source = client.post("/v1/videos", files={**form, "input_reference": ("x.png", _png(), "image/png")}).json()["id"]
    path = f"/v1/videos/{source}/remix"
    early = client.post(path, json={"prompt": "b"})
    assert (early.status_code, early.json()["error"]["code"]) == (409, "conflict")
    lease = house.claim(source)
    house.store.complete(lease, {})

    answers = [
        client.post(path, json={"prompt": "b"}),
        client.post(path, files={"prompt": (None, "b")}),
    ]
    for answer in answers:
        shown = answer.json()
        assert (shown["status"], shown["prompt"], shown["remixed_from_video_id"]) == ("queued", "b", source)
        assert "openai-poll-after-ms" in answer.headers
        given = _input(house, shown["id"])
        before = msgspec.json.decode(lease.job.input, type=VideoInput)
        changed = {"prompt": "b", "remixed_from": source, "image": f"{shown['id']}/input"}
        assert msgspec.structs.replace(given, request_id=None) == msgspec.structs.replace(
            before, request_id=None, **changed
        )
    client.delete(f"/v1/videos/{source}")
    for answer in answers:
        with house.artifacts.open(f"{answer.json()['id']}/input") as file:
            assert file.read() == _png(), "it has a first frame of its own"
    assert client.post(path, json={"prompt": "b"}).status_code == 404


def test_a_remix_is_checked_and_an_idempotency_key_makes_it_one(house: House, client: TestClient[Litestar]) -> None:
    source = _create(client)["id"]
    house.complete(source, b"clip")
    path = f"/v1/videos/{source}/remix"
    for body, param in (({}, "prompt"), ({"prompt": ""}, "prompt"), ({"prompt": "b", "seed": 1}, "seed")):
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    file = client.post(path, files={"prompt": (None, "b"), "input_reference": ("x.png", _png(), "image/png")})
    assert (file.status_code, file.json()["error"]["param"]) == (400, "input_reference")
    assert client.post(path, json={"prompt": "b"}, headers={"x-owner": "you"}).status_code == 404
    key = {"idempotency-key": "k"}
    first, second = (client.post(path, json={"prompt": "b"}, headers=key) for _ in range(2))
    assert first.json()["id"] == second.json()["id"]
    assert second.headers["idempotent-replayed"] == "true"


def test_what_is_not_allowed_any_more_is_not_remixed(house: House, redis_server: Any) -> None:
    with TestClient(house.app()) as client:
        source = _create(client, seconds="8", size="256x256")["id"]
        house.complete(source, b"clip")
    for stricter, param in (({"max_seconds": 4}, "video_id"), ({"max_pixels": 64 * 64}, "size")):
        video = msgspec.structs.replace(house.settings.video, **stricter)
        other = House(str(redis_server.data), redis_server.url)
        other.settings = msgspec.structs.replace(house.settings, video=video)
        with TestClient(other.app()) as client:
            answer = client.post(f"/v1/videos/{source}/remix", json={"prompt": "b"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_deleting_removes_record_and_files(house: House, client: TestClient[Litestar]) -> None:
    video_id = _create(client)["id"]
    house.complete(video_id, b"clip")
    assert client.delete(f"/v1/videos/{video_id}").json() == {
        "id": video_id,
        "object": "video.deleted",
        "deleted": True,
    }
    assert client.get(f"/v1/videos/{video_id}").status_code == 404
    assert client.delete(f"/v1/videos/{video_id}").status_code == 404
    assert not (house.artifacts.directory / video_id).exists()


def test_lists_page_as_openai_does(client: TestClient[Litestar]) -> None:
    made = [_create(client)["id"] for _ in range(3)]
    first = client.get("/v1/videos", params={"limit": 2}).json()
    assert [video["id"] for video in first["data"]] == made[:0:-1]
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, made[2], made[1])
    rest = client.get("/v1/videos", params={"limit": 2, "after": first["last_id"]}).json()
    assert ([video["id"] for video in rest["data"]], rest["has_more"]) == ([made[0]], False)
    for query, param in (({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"order": "up"}, "order")):
        answer = client.get("/v1/videos", params=query)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_an_idempotency_key_makes_a_repeated_request_the_same_job(house: House, client: TestClient[Litestar]) -> None:
    key = {"idempotency-key": "k1"}
    form = {"prompt": (None, "a"), "model": (None, "tiny-i2v"), "input_reference": ("x.png", _png(), "image/png")}
    first, again = (client.post("/v1/videos", files=form, headers=key) for _ in range(2))
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["idempotent-replayed"] == "true"
    assert len(client.get("/v1/videos").json()["data"]) == 1
    assert len([path for path in house.artifacts.directory.rglob("*") if path.is_file()]) == 1
    other = client.post("/v1/videos", json={"prompt": "b"}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    theirs = client.post("/v1/videos", json={"prompt": "b"}, headers={**key, "x-owner": "you"})
    assert theirs.status_code == 200


def test_a_redis_that_is_down_is_503_at_once_and_back_again_after(
    client: TestClient[Litestar], redis_server: Any
) -> None:
    video_id = _create(client)["id"]
    redis_server.kill()
    answer = client.post("/v1/videos", json={"prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert answer.headers["x-should-retry"] == "true"
    assert client.get("/ready").json()["parts"] == {"redis": "failed"}
    redis_server.start()
    assert client.get(f"/v1/videos/{video_id}").json()["status"] == "queued"
    assert client.get("/ready").status_code == 200
