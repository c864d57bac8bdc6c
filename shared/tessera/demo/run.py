"""`tessera demo`: one request per modality against a running suite, through OpenAI's SDK, as any application would.

Asks `/v1/models` which models there are, uses them, and saves the results into a folder with a page to look at. Skips a
modality that is not offered; one that fails makes the demo fail at its end. Knows only the suite's public API.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
import time
import warnings
import wave
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tessera.demo import pictures as demo_pictures
from tessera.demo.page import Step, picture, render
from tessera.wire.models import Card, Task

if TYPE_CHECKING:
    import httpx
    import openai

QUESTION = "What is a mosaic? Answer in one sentence."
LOOK = "What is in this picture?"
SCENE = "a small boat on a calm sea at sunset"
SENTENCE = "Every large picture is made of small stones."
MADE = (
    "answer.txt",
    "description.txt",
    "frames.png",
    "spectrogram.png",
    "speech.wav",
    "transcript.txt",
    "video.mp4",
)
TIMEOUT_S = 600.0
WAV_BYTE_RATE_AT, WAV_DATA_AT = 28, 44


class Offer(msgspec.Struct, frozen=True):
    """A model that can do a task, with its card; a server that is not ours gives no card."""

    id: str
    card: Card | None

    @property
    def notice(self) -> str | None:
        """The card's notice, which one should know before judging an answer."""
        return self.card.notice if self.card else None

    def example(self, otherwise: str) -> str:
        """The prompt that shows best what the model can do; `otherwise` where its card names none."""
        return (self.card.example if self.card else None) or otherwise


class Demo:
    """The requests of the demo. Each saves its files and returns a line about its result.

    Args:
        client: client of OpenAI's SDK.
        output: an existing folder for the files.
    """

    def __init__(self, client: openai.OpenAI, output: Path) -> None:
        self.client = client
        self.output = output

    def chat(self, offer: Offer, asked: str) -> str:
        """Stream a chat answer, and print it as it arrives."""
        return self._converse(offer, "answer.txt", [{"role": "user", "content": asked}], max_tokens=96)

    def describe(self, offer: Offer, asked: str) -> str:
        """Ask a vision-language model about a picture that is part of the message."""
        image = picture()
        (self.output / "picture.png").write_bytes(image)
        url = "data:image/png;base64," + base64.b64encode(image).decode()
        parts = [{"type": "text", "text": asked}, {"type": "image_url", "image_url": {"url": url}}]
        return self._converse(offer, "description.txt", [{"role": "user", "content": parts}], max_tokens=48)

    def video(self, offer: Offer, asked: str) -> str:
        """Run a video job from its creation to its file."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the SDK warns about OpenAI's own video service
            made = self.client.videos.create_and_poll(model=offer.id, prompt=asked)
            _say("\n")
            if made.status != "completed":
                raise DemoError(made.error.message if made.error else f"the job ended as {made.status}")
            self.client.videos.download_content(made.id).write_to_file(self.output / "video.mp4")
        size = (self.output / "video.mp4").stat().st_size
        if demo_pictures.possible():
            demo_pictures.draw_frames(self.output / "video.mp4", self.output / "frames.png")
        return f"{made.seconds} s at {made.size}, {size:,} bytes → video.mp4"

    def speak(self, offer: Offer, asked: str) -> str:
        """Synthesize a sentence, and write its audio as it arrives."""
        voice = offer.card.voices[0] if offer.card and offer.card.voices else "default"
        started, first = time.perf_counter(), 0.0
        path = self.output / "speech.wav"
        with (
            self.client.audio.speech.with_streaming_response.create(
                model=offer.id, voice=voice, input=asked, response_format="wav"
            ) as response,
            path.open("wb") as file,
        ):
            for piece in response.iter_bytes():
                first = first or time.perf_counter() - started
                file.write(piece)
        data = path.read_bytes()
        if len(data) <= WAV_DATA_AT or not data.startswith(b"RIFF"):
            raise DemoError(f"the answer is no WAV file ({len(data)} bytes)")
        (rate,) = struct.unpack_from("<I", data, WAV_BYTE_RATE_AT)
        seconds = (len(data) - WAV_DATA_AT) / max(1, rate)
        return f"{seconds:.2f} s of audio, first of it after {first:.2f} s → speech.wav"

    def transcribe(self, offer: Offer, _asked: str) -> str:
        """Transcribe the spoken sentence; a second of silence when there is no voice."""
        path = self.output / "speech.wav"
        if not path.is_file():
            path = self.output / "silence.wav"
            _write_silence(path)
        with path.open("rb") as file:
            text = self.client.audio.transcriptions.create(model=offer.id, file=file).text
        (self.output / "transcript.txt").write_text(text + "\n", encoding="utf-8")
        _say(f"  {_printable(text)}\n")
        if demo_pictures.possible():
            demo_pictures.draw_spectrogram(path, self.output / "spectrogram.png", _printable(text))
        return f"of {path.name} → transcript.txt"

    def _converse(self, offer: Offer, name: str, messages: list[Any], *, max_tokens: int) -> str:
        started, first, text = time.perf_counter(), 0.0, ""
        stream = self.client.chat.completions.create(
            model=offer.id, messages=messages, max_tokens=max_tokens, temperature=0, stream=True
        )
        _say("  ")
        for chunk in stream:
            piece = chunk.choices[0].delta.content if chunk.choices else None
            if piece:
                first = first or time.perf_counter() - started
                text += piece
                _say(_printable(piece).replace("\n", "\n  "))
        _say("\n")
        (self.output / name).write_text(text + "\n", encoding="utf-8")
        return f"first words after {first:.2f} s → {name}" if text else f"the answer is empty → {name}"


class DemoError(Exception):
    """The answer to a request is not what it should be."""


def run(url: str, api_key: str, output: Path) -> int:
    """Run the demo, and print what happens.

    Args:
        url: address of the gateway (or of one service), without `/v1`.
        api_key: bearer token to send; any text when the server asks for none.
        output: folder for the results, which is made when it is missing; files of an earlier demo are replaced.

    Returns:
        An exit code: 0 when everything that is offered worked, 1 when a step failed or nothing could be asked.
    """
    try:
        import httpx  # noqa: PLC0415
        import openai  # noqa: PLC0415
    except ImportError:
        _say("the demo speaks through OpenAI's SDK: pip install openai\n")
        return 1
    client = openai.OpenAI(
        base_url=url.rstrip("/") + "/v1",
        api_key=api_key,
        timeout=TIMEOUT_S,
        http_client=openai.DefaultHttpxClient(event_hooks={"response": [_show_progress]}),
    )
    with client:
        try:
            models = [Offer(model.id, _card(model)) for model in client.models.list() if not _is_alias(model)]
        except openai.OpenAIError as error:
            _say(f"{url} does not answer as a suite does: {error}\n`tessera up` starts one.\n")
            return 1
        output.mkdir(parents=True, exist_ok=True)
        demo = Demo(client, output)
        plan: list[tuple[str, str, Callable[[Offer, str], str], Offer | None]] = [
            ("answer", QUESTION, demo.chat, _offer(models, "chat", but="vision")),
            ("description", LOOK, demo.describe, _offer(models, "vision")),
            ("video", SCENE, demo.video, _offer(models, "video")),
            ("speech", SENTENCE, demo.speak, _offer(models, "speech")),
            ("transcript", "", demo.transcribe, _offer(models, "transcription")),
        ]
        for name in MADE:
            (output / name).unlink(missing_ok=True)
        _say(f"{url} offers {len(models)} models; results go to {output}\n")
        failures = (openai.OpenAIError, httpx.HTTPError, OSError, ValueError, DemoError)
        steps = [_do(title, asked, action, offer, failures) for title, asked, action, offer in plan]
    (output / "index.html").write_text(render(steps, output, url), encoding="utf-8")
    failed = [step.title for step in steps if step.state == "failed"]
    total = sum(step.seconds for step in steps)
    _say(
        f"\n{output / 'index.html'} shows it all; {total:.1f} s" + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    _say("\n")
    return 1 if failed or all(step.state == "skipped" for step in steps) else 0


def _do(
    title: str,
    asked: str,
    action: Callable[[Offer, str], str],
    offer: Offer | None,
    failures: tuple[type[Exception], ...],
) -> Step:
    if offer is None:
        _say(f"\n{title}: skipped, no model for it is offered\n")
        return Step(title, asked, "skipped", detail="no model for it is offered")
    _say(f"\n{title} · {offer.id}" + (f" ({offer.notice})" if offer.notice else "") + "\n")
    if asked:
        asked = offer.example(asked)
        _say(f"  > {asked}\n")
    started = time.perf_counter()
    try:
        detail, state = action(offer, asked), "ok"
    except failures as error:
        detail, state = str(error) or type(error).__name__, "failed"
    seconds = time.perf_counter() - started
    _say(f"  {'failed: ' if state == 'failed' else ''}{seconds:.2f} s; {detail}\n")
    return Step(title, asked, state, detail=detail, model=offer.id, notice=offer.notice, seconds=seconds)


def _offer(models: list[Offer], task: Task, *, but: Task | None = None) -> Offer | None:
    """The first model whose card lists `task`, preferably without `but`; for chat also a model without a card."""
    able = [model for model in models if model.card is not None and task in model.card.tasks]
    if task == "chat":
        able += [model for model in models if model.card is None]
    special = [model for model in able if but is None or model.card is None or but not in model.card.tasks]
    return next(iter(special or able), None)


def _is_alias(model: Any) -> bool:
    return (model.model_extra or {}).get("root") not in {None, model.id}


def _card(model: Any) -> Card | None:
    try:
        return msgspec.convert((model.model_extra or {}).get("card"), Card | None)
    except msgspec.ValidationError:
        return None


def _show_progress(response: httpx.Response) -> None:
    """Print the progress of a video job; called for every response of the client."""
    if "/v1/videos" not in response.request.url.path or not response.headers.get("content-type", "").startswith(
        "application/json"
    ):
        return
    job = json.loads(response.read())
    if isinstance(job, dict) and "progress" in job:
        _say(f"\r  {job['status']} {job['progress']:3d} %")


def _printable(text: str) -> str:
    """`text` without control characters, which a terminal would obey: a model may write anything."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _write_silence(path: Path) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(2 * 16_000))


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
