"""Recordings and files in messages: what the model reads in their place, and what is refused by name."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.processes import free_port
from tests.shared.language.fake_speech import SpeechServer, speech_server

from tessera.errors import (
    BadGatewayError,
    GatewayTimeoutError,
    InvalidRequestError,
    OverloadedError,
    PayloadTooLargeError,
    TesseraError,
    UnavailableError,
    UnsupportedMediaError,
)
from tessera.language.attachments.reading import AttachmentReader, KeptTexts, open_attachments
from tessera.settings.attachments import AttachmentSettings
from tessera.settings.gateway import GatewaySettings
from tessera.settings.speech import SpeechSettings
from tessera.settings.tree import Settings
from tessera.web.tenant import tenant_var
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.conversation import ImagePart, TextPart
from tessera.wire.decoding import decode_json

WAV = b"RIFF....WAVEfmt "


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def audio(data: bytes | str = WAV, **more: Any) -> dict[str, Any]:
    text = data if isinstance(data, str) else b64(data)
    return {"type": "input_audio", "input_audio": {"data": text, "format": "wav", **more}}


def file(data: bytes | None, **more: Any) -> dict[str, Any]:
    content = {} if data is None else {"file_data": b64(data)}
    return {"type": "file", "file": {**content, **more}}


def request(*parts: dict[str, Any], role: str = "user") -> ChatCompletionRequest:
    message = {"role": role, "content": list(parts), **({"tool_call_id": "1"} if role == "tool" else {})}
    return decode_json(json.dumps({"model": "m", "messages": [message]}).encode(), ChatCompletionRequest)


def settings(url: str = "", *, services: tuple[str, ...] = ("text", "speech"), **attachments: Any) -> Settings:
    return Settings(
        gateway=GatewaySettings(services=list(services)),
        speech=SpeechSettings(url=url),
        attachments=AttachmentSettings(**attachments),
    )


def read(asked: ChatCompletionRequest, given: Settings | None = None, *, times: int = 1) -> list[Any]:
    """The parts of the first message once its attachments are read."""

    async def run() -> list[Any]:
        async with open_attachments(given or settings()) as reader:
            for _ in range(times):
                found = await reader.read(asked)
        assert isinstance(found.messages[0].content, list)
        return found.messages[0].content

    return asyncio.run(run())


@pytest.fixture
def speech() -> Iterator[SpeechServer]:
    with speech_server() as server:
        yield server


def test_a_request_without_attachments_is_passed_on_as_it_is():
    asked = request({"type": "text", "text": "x"})

    async def run() -> ChatCompletionRequest:
        return await AttachmentReader(AttachmentSettings(), None).read(asked)

    assert asyncio.run(run()) is asked


def test_the_model_reads_the_transcript_in_place_of_a_recording(speech):
    tenant_var.set("ada")
    parts = read(request({"type": "text", "text": "Listen:"}, audio(), audio(b"other")), settings(speech.url))
    assert parts == [TextPart("Listen:"), TextPart(speech.heard), TextPart(speech.heard)]
    assert set(speech.files) == {WAV, b"other"}
    assert {headers["x-tessera-tenant"] for headers in speech.headers} == {"ada"}


def test_a_recording_as_a_data_url_is_the_same_recording(speech):
    read(request(audio(f"data:audio/wav;codecs=1;base64,{b64(WAV)}")), settings(speech.url))
    assert speech.files == [WAV]


def test_silence_is_not_nothing(speech):
    speech.heard = "  "
    assert read(request(audio()), settings(speech.url)) == [TextPart("[inaudible]")]


def test_a_recording_that_comes_again_is_not_transcribed_again(speech):
    read(request(audio()), settings(speech.url), times=3)
    assert len(speech.files) == 1


def test_kept_texts_are_bounded_and_belong_to_a_tenant():
    async def run() -> list[bytes]:
        kept, asked = KeptTexts(64 * 10), []

        async def text(tenant: str, data: bytes, found: str) -> None:
            async def find() -> str:
                asked.append(data)
                return found

            tenant_var.set(tenant)
            assert await kept.text(data, find) == found

        await text("a", b"1", "one")
        await text("a", b"1", "one")
        await text("b", b"1", "one")
        await text("a", b"long", "x" * 640)
        await text("a", b"1", "one")
        return asked

    assert asyncio.run(run()) == [b"1", b"1", b"long", b"1"]


def refused(asked: ChatCompletionRequest, given: Settings | None = None) -> TesseraError:
    with pytest.raises(TesseraError) as found:
        read(asked, given)
    return found.value


AUDIO = "messages[0].content[0].input_audio"
FILE = "messages[0].content[0].file"


@pytest.mark.parametrize(
    ("parts", "kind", "param", "words"),
    [
        ([audio("%%%")], InvalidRequestError, f"{AUDIO}.data", "base64"),
        ([audio("https://example.com/a.wav")], InvalidRequestError, f"{AUDIO}.data", "not fetched"),
        ([audio("data:audio/wav;base64,")], InvalidRequestError, f"{AUDIO}.data", "empty"),
        ([audio(bytes(101))], PayloadTooLargeError, f"{AUDIO}.data", "100 bytes"),
        ([audio(bytes(5000))], PayloadTooLargeError, f"{AUDIO}.data", "100 bytes"),
        ([audio()] * 3, InvalidRequestError, "messages", "3 recordings; at most 2"),
        ([file(b"x")] * 3, InvalidRequestError, "messages", "3 files; at most 2"),
        ([file(None, file_id="file-1")], InvalidRequestError, f"{FILE}.file_id", "`file_data`"),
        ([file(None, filename="a.txt")], InvalidRequestError, f"{FILE}.file_data", "required"),
        ([file(bytes(101))], PayloadTooLargeError, f"{FILE}.file_data", "100 bytes"),
        ([file(b"x" * 51)], PayloadTooLargeError, f"{FILE}.file_data", "51 characters; at most 50"),
        ([file(b"\x7fELF\0\0\xff")], UnsupportedMediaError, f"{FILE}.file_data", "UTF-8"),
        ([file(b"a\0b")], UnsupportedMediaError, f"{FILE}.file_data", "UTF-8"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name_before_any_work(speech, parts, kind, param, words):
    limits = {"max_recordings": 2, "max_files": 2, "max_recording_bytes": 100, "max_file_bytes": 100}
    error = refused(request(*parts), settings(speech.url, **limits, max_file_characters=50))
    assert type(error) is kind
    assert error.body().param == param
    assert words in error.message
    assert speech.files == []


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_only_users_and_tools_attach(speech, role):
    assert "users and tools" in refused(request(file(b"x"), role=role), settings(speech.url)).message
    assert read(request(file(b"x"), role="tool"), settings(speech.url)) == [TextPart("<file>\nx\n</file>")]


def test_without_a_speech_service_the_error_says_so():
    error = refused(request(audio()), settings(services=("text",)))
    assert isinstance(error, InvalidRequestError)
    assert "no speech service" in error.message


def test_a_speech_service_that_is_down_is_unavailable_and_may_be_asked_again():
    error = refused(request(audio()), settings(f"http://127.0.0.1:{free_port()}"))
    assert isinstance(error, UnavailableError)
    assert error.retry_after is not None
    assert "cannot be reached" in error.message


def test_a_speech_service_without_a_model_that_transcribes_is_unavailable(speech):
    speech.tasks = ["speech"]
    assert "no model that transcribes" in refused(request(audio()), settings(speech.url)).message


def test_what_the_speech_service_says_of_a_recording_names_the_part(speech):
    message = {"message": "the file is damaged", "type": "invalid_request_error", "code": "invalid_value"}
    speech.refusal = (400, message, {})
    error = refused(request({"type": "text", "text": "x"}, audio()), settings(speech.url))
    assert isinstance(error, InvalidRequestError)
    assert error.body().param == "messages[0].content[1].input_audio.data"
    assert "the file is damaged" in error.message


def test_a_full_speech_service_says_when_to_come_again(speech):
    full = {"message": "the queue is full", "type": "rate_limit_error", "code": "overloaded"}
    speech.refusal = (429, full, {"retry-after": "7"})
    error = refused(request(audio()), settings(speech.url))
    assert (type(error), error.retry_after) == (OverloadedError, 7.0)


def test_an_answer_that_is_no_transcript_is_the_upstreams_fault(speech):
    speech.answer = b"<html>"
    assert isinstance(refused(request(audio()), settings(speech.url)), BadGatewayError)
    speech.refusal = (500, {"nothing": 1}, {})
    assert "answered 500" in refused(request(audio()), settings(speech.url)).message


def test_a_speech_service_that_is_silent_is_given_up(speech):
    speech.waits.clear()
    error = refused(request(audio()), settings(speech.url, recording_timeout_s=0.2))
    assert isinstance(error, GatewayTimeoutError)
    assert "within 0.2 seconds" in error.message


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a,b\r\n1,2\r\n", "a,b\n1,2"),
        ("\ufeffGrüße".encode(), "Grüße"),
        ("Grüße".encode("utf-16"), "Grüße"),
        (b'{"a": 1}', '{"a": 1}'),
        (b"# Title\n\ntext", "# Title\n\ntext"),
    ],
)
def test_a_text_file_is_read_as_it_is(data, text):
    assert read(request(file(data, filename='no"tes<1>.md'))) == [TextPart(f'<file name="notes1.md">\n{text}\n</file>')]
    url = {"type": "file", "file": {"file_data": f"data:text/csv;charset=utf-8;base64,{b64(data)}"}}
    assert read(request(url)) == [TextPart(f"<file>\n{text}\n</file>")]


@pytest.mark.parametrize(
    ("magic", "form"),
    [
        (b"\x89PNG\r\n\x1a\n", "png"),
        (b"\xff\xd8\xff\xe0", "jpeg"),
        (b"GIF89a", "gif"),
        (b"BM123", "bmp"),
        (b"RIFF1234WEBPVP8 ", "webp"),
    ],
)
def test_a_picture_becomes_an_image_whatever_its_name_says(magic, form):
    (part,) = read(request(file(magic, filename="a.pdf")))
    assert isinstance(part, ImagePart)
    assert part.url == f"data:image/{form};base64,{b64(magic)}"


FONTS = "/Resources << /Font << /F1 3 0 R >> >>"


def pdf(*pages: str, trailer: str = "", broken: bool = False) -> bytes:
    """A PDF file with a line of text on each page."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        content = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET" if text else ""
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents {5 + 2 * number} 0 R {FONTS} >>",
            f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        ]
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    start = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    out += b"".join(f"{place:010} 00000 n \n".encode() for place in places)
    out += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R {trailer} >>\nstartxref\n{start}\n%%EOF".encode()
    return out[: len(out) // 3] if broken else out


def bomb() -> bytes:
    """A PDF file of a few kilobytes whose page holds gigabytes once it is inflated."""
    zeros = zlib.compress(b" " * (1 << 24), 9)
    stream = zlib.compressobj(9)
    packed = b"".join(stream.compress(b" " * (1 << 24)) for _ in range(96)) + stream.flush()
    assert len(zeros) < len(packed) < 4_000_000
    head = pdf("x")
    content = b"<< /Length %d /Filter /FlateDecode >>\nstream\n" % len(packed)
    return head.replace(head[head.index(b"<< /Length") : head.index(b"\nendstream")], content + packed)


def test_a_pdf_is_read_by_its_text():
    (part,) = read(request(file(pdf("First page", "Second page"), filename="a.pdf")), times=2)
    assert part == TextPart('<file name="a.pdf">\nFirst page\nSecond page\n</file>')


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (pdf("x", "y", "z"), PayloadTooLargeError, "3 pages; at most 2"),
        (pdf("x" * 60), PayloadTooLargeError, "more than 50 characters"),
        (pdf(""), InvalidRequestError, "no text; send its pages as images"),
        (pdf("x", broken=True), InvalidRequestError, "damaged"),
        (b"%PDF-1.7\n" + bytes(range(256)) * 40, InvalidRequestError, "damaged"),
        (pdf("x", trailer="/Encrypt << /Filter /Standard /V 1 /R 2 /O (a) /U (b) /P -4 >>"), TesseraError, ""),
        (bomb(), InvalidRequestError, ""),
    ],
    ids=["pages", "characters", "empty", "cut", "noise", "encrypted", "bomb"],
)
def test_a_pdf_that_cannot_be_read_says_why(data, kind, words):
    error = refused(request(file(data)), settings(max_pages=2, max_file_characters=50, file_timeout_s=15))
    assert isinstance(error, kind)
    assert error.body().param == f"{FILE}.file_data"
    assert words in error.message


def test_a_pdf_that_takes_too_long_is_given_up_and_its_process_ended():
    error = refused(request(file(pdf("x"))), settings(file_timeout_s=0.001))
    assert isinstance(error, InvalidRequestError)
    assert "takes over 0.001 seconds" in error.message


def test_a_failure_of_one_attachment_ends_the_others(speech):
    speech.waits.clear()
    with contextlib.suppress(TesseraError):
        read(request(audio(), audio("%%%")), settings(speech.url))
    assert len(speech.files) <= 1
