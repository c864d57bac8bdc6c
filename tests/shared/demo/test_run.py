"""`tessera demo` against a server that speaks as a suite does."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import threading
import wave
from typing import Any

import av
import msgspec
import numpy as np
import pytest
from aiohttp import web
from PIL import Image

from tessera.demo import pictures as demo_pictures
from tessera.demo import run as demo
from tessera.demo.page import SIDE, picture
from tessera.wire.models import Card, Model, ModelList

NOTICE = "random weights: the output is noise, only the way there is real"
TASKS = {
    "writer": ["chat", "completions"],
    "eyes": ["chat", "vision"],
    "films": ["video"],
    "voice": ["speech"],
    "ears": ["transcription"],
}


def wav() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(bytes(16000))
    return file.getvalue()


@functools.cache
def mp4() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=8)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for level in range(9):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 20 * level, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


class FakeSuite:
    """Answers each modality; `broken` answers 500."""

    def __init__(self, *models: str, broken: str = "", said: str = "Small <b>stones.", film: bytes = b"") -> None:
        self.film = film
        self.models = models
        self.broken = broken
        self.said = said
        self.asked: list[tuple[str, bytes]] = []
        self.looks = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FakeSuite:
        self._thread.start()
        assert self._started.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _run(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/videos", self._video)
        app.router.add_get("/v1/videos/v1", self._video)
        app.router.add_get("/v1/videos/v1/content", self._content)
        app.router.add_post("/v1/audio/speech", self._speech)
        app.router.add_post("/v1/audio/transcriptions", self._transcription)
        runner = web.AppRunner(app)
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
        self.port = runner.addresses[0][1]
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _asked(self, request: web.Request, model: str) -> None:
        self.asked.append((request.path, await request.read()))
        if self.broken == model:
            error = {"message": "it broke", "type": "server_error", "param": None, "code": None}
            raise web.HTTPBadRequest(text=json.dumps({"error": error}), content_type="application/json")

    async def _models(self, _: web.Request) -> web.Response:
        models = []
        for name in self.models:
            tasks: Any = TASKS[name]
            notice = None if name == "writer" else NOTICE
            example = "a red circle moves left" if name == "films" else None
            card = Card(
                id=name, family="F", tasks=tasks, source="s", parameters=1, licence="l", notice=notice, example=example
            )
            models.append(Model(id=name, created=1, card=card))
        return web.Response(body=msgspec.json.encode(ModelList(data=models)), content_type="application/json")

    async def _chat(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        await self._asked(request, body["model"])
        chunks = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in (self.said[:9], self.said[9:])]
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        return web.Response(text=text, content_type="text/event-stream")

    async def _video(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            await self._asked(request, "films")
        else:
            self.looks += 1
        done = self.looks == 3
        answer = {"id": "v1", "object": "video", "model": "films", "prompt": "p", "seconds": "1", "size": "64x64"}
        answer |= {
            "created_at": 1,
            "progress": self.looks * 33 + done,
            "status": "completed" if done else "in_progress",
        }
        return web.json_response(answer, headers={"openai-poll-after-ms": "10"})

    async def _content(self, _: web.Request) -> web.Response:
        return web.Response(body=self.film or mp4(), content_type="video/mp4")

    async def _speech(self, request: web.Request) -> web.Response:
        await self._asked(request, "voice")
        return web.Response(body=wav(), content_type="audio/wav")

    async def _transcription(self, request: web.Request) -> web.Response:
        await self._asked(request, "ears")
        return web.json_response({"text": "stones"})


def test_each_modality_is_asked_once_and_everything_is_saved(tmp_path, capsys):
    output = tmp_path / "new" / "folder"
    with FakeSuite(*TASKS) as suite:
        assert demo.run(suite.url, "none", output) == 0
    assert [path for path, _ in suite.asked] == [
        "/v1/chat/completions",
        "/v1/chat/completions",
        "/v1/videos",
        "/v1/audio/speech",
        "/v1/audio/transcriptions",
    ]
    assert [json.loads(body)["model"] for _, body in suite.asked[:2]] == ["writer", "eyes"]
    assert b"data:image/png;base64," in suite.asked[1][1]
    assert b"a red circle moves left" in suite.asked[2][1], "what its card says is asked"
    assert wav() in suite.asked[4][1], "what was spoken is what is transcribed"
    assert (output / "answer.txt").read_text() == "Small <b>stones.\n"
    assert (output / "description.txt").read_text() == "Small <b>stones.\n"
    assert (output / "video.mp4").read_bytes() == mp4()
    for name, smallest in {"frames.png": (300, 128), "spectrogram.png": (320, 192)}.items():
        with Image.open(output / name) as image:
            assert image.width >= smallest[0]
            assert image.height >= smallest[1]
    assert (output / "speech.wav").read_bytes() == wav()
    assert (output / "transcript.txt").read_text() == "stones\n"
    page = (output / "index.html").read_text()
    for part in ('src="picture.png"', 'src="video.mp4"', 'src="speech.wav"', "Small &lt;b&gt;stones.", NOTICE):
        assert part in page
    said = capsys.readouterr().out
    assert "answer · writer\n" in said
    assert f"video · films ({NOTICE})\n  > a red circle moves left\n" in said
    assert "completed 100 %" in said
    assert "1.00 s of audio" in said


def test_what_is_not_offered_is_skipped_and_said(tmp_path, capsys):
    with FakeSuite("writer", "ears") as suite:
        assert demo.run(suite.url, "none", tmp_path) == 0
    assert [path for path, _ in suite.asked] == ["/v1/chat/completions", "/v1/audio/transcriptions"]
    assert "video: skipped, no model for it is offered" in capsys.readouterr().out
    assert not (tmp_path / "video.mp4").exists()


@pytest.mark.parametrize("broken", list(TASKS))
def test_a_step_that_fails_makes_the_demo_fail_but_not_stop(tmp_path, capsys, broken):
    with FakeSuite(*TASKS, broken=broken) as suite:
        assert demo.run(suite.url, "none", tmp_path) == 1
        assert len(suite.asked) == 5
    assert "it broke" in capsys.readouterr().out
    assert "it broke" in (tmp_path / "index.html").read_text()


def test_a_video_that_does_not_play_makes_the_demo_fail(tmp_path, capsys):
    with FakeSuite(*TASKS, film=b"no film") as suite:
        assert demo.run(suite.url, "none", tmp_path) == 1
    assert "failed: " in capsys.readouterr().out
    assert "video.mp4 does not play" in (tmp_path / "index.html").read_text()


def test_without_the_libraries_there_are_no_pictures_and_the_rest_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_pictures, "find_spec", lambda name: None)
    with FakeSuite(*TASKS) as suite:
        assert demo.run(suite.url, "none", tmp_path) == 0
    assert not {"frames.png", "spectrogram.png"} & {path.name for path in tmp_path.iterdir()}
    assert "frames.png" not in (tmp_path / "index.html").read_text()


def test_what_a_model_says_cannot_command_the_terminal(tmp_path, capsys):
    said = "\x1b[2J\x07ok\u202e"
    with FakeSuite("writer", said=said) as suite:
        assert demo.run(suite.url, "none", tmp_path) == 0
    out = capsys.readouterr().out
    assert "ok" in out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)
    assert (tmp_path / "answer.txt").read_text() == said + "\n"


def test_a_suite_that_is_not_there_is_said_with_the_cure(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    assert demo.run("http://127.0.0.1:9", "none", tmp_path / "out") == 1
    assert "`tessera up` starts one" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_the_picture_is_a_png_that_decoders_take():
    image = Image.open(io.BytesIO(picture()))
    image.load()
    assert (image.size, image.mode, image.getpixel((36, 36))) == ((SIDE, SIDE), "RGB", (220, 30, 30))
