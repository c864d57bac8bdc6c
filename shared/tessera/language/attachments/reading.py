"""Reads the recordings and files of a request's messages, so that the model gets their text in their place.

Counts before it works. A text that was found is kept for a while, because a conversation sends its attachments again
with every turn. Does not know how a recording is transcribed or how a file is read.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import msgspec

from tessera.errors import InvalidRequestError
from tessera.language.attachments.files import FileReader
from tessera.language.attachments.recordings import SpeechTranscriber, recording_bytes
from tessera.language.together import run_bounded
from tessera.settings.attachments import AttachmentSettings
from tessera.settings.tree import Settings
from tessera.web.tenant import tenant_var
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.conversation import AudioPart, FilePart, Message, Part, TextPart

AT_ONCE = 4
"""Most attachments of one request that are read at the same time."""
NOTHING_HEARD = "[inaudible]"
"""The transcript of a recording in which nobody speaks."""


class AttachmentReader:
    """Reads attachments within limits.

    Args:
        settings: the limits.
        transcriber: transcribes recordings; None where there is no speech service.
    """

    def __init__(self, settings: AttachmentSettings, transcriber: SpeechTranscriber | None) -> None:
        self._settings = settings
        self._transcriber = transcriber
        self._files = FileReader(settings)
        self._kept = KeptTexts(settings.cached_characters)

    async def read(self, request: ChatCompletionRequest) -> ChatCompletionRequest:
        """The request with a text (or an image) in place of each recording and file; itself if it has none.

        Raises:
            TesseraError: an attachment is over a limit or cannot be read; names the part.
        """
        parts = [
            (index, place, part)
            for index, message in enumerate(request.messages)
            if isinstance(message.content, list)
            for place, part in enumerate(message.content)
            if isinstance(part, AudioPart | FilePart)
        ]
        if not parts:
            return request
        self._check(request, parts)
        calls = [partial(self._read, part, f"messages[{index}].content[{place}]") for index, place, part in parts]
        texts = await run_bounded(calls, at_once=AT_ONCE)
        read = {(index, place): text for (index, place, _), text in zip(parts, texts, strict=True)}
        messages = [_with(message, index, read) for index, message in enumerate(request.messages)]
        return msgspec.structs.replace(request, messages=messages)

    def _check(self, request: ChatCompletionRequest, parts: list[tuple[int, int, AudioPart | FilePart]]) -> None:
        for index, place, _ in parts:
            if request.messages[index].role not in ("user", "tool"):
                param = f"messages[{index}].content[{place}]"
                raise InvalidRequestError(
                    f"`{param}`: recordings and files are for messages of users and tools", param=param
                )
        for kind, most, name in (
            (AudioPart, self._settings.max_recordings, "recordings"),
            (FilePart, self._settings.max_files, "files"),
        ):
            count = sum(isinstance(part, kind) for _, _, part in parts)
            if count > most:
                raise InvalidRequestError(
                    f"`messages` have {count} {name}; at most {most} are allowed", param="messages"
                )

    async def _read(self, part: AudioPart | FilePart, param: str) -> Part:
        if isinstance(part, AudioPart):
            return TextPart(await self._heard(part, param))
        file = self._files.opened(part.file, f"{param}.file")
        if file.image is not None:
            return file.image
        if file.text is None:
            file.text = await self._kept.text(file.data, partial(self._files.pdf_text, file.data, f"{param}.file"))
        return TextPart(file.as_prompt())

    async def _heard(self, part: AudioPart, param: str) -> str:
        param = f"{param}.input_audio"
        if self._transcriber is None:
            raise InvalidRequestError(
                f"`{param}`: there is no speech service here that could transcribe it; send text", param=param
            )
        data = recording_bytes(part.input_audio, self._settings.max_recording_bytes, f"{param}.data")
        heard = await self._kept.text(data, partial(self._transcriber.transcribe, data, f"{param}.data"))
        return heard or NOTHING_HEARD


class KeptTexts:
    """Texts by the bytes that they were found in, the longest unused given up first. Each tenant has its own.

    Args:
        most_characters: of all texts together.
    """

    def __init__(self, most_characters: int) -> None:
        self._most = most_characters
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._characters = 0

    async def text(self, data: bytes, find: Callable[[], Awaitable[str]]) -> str:
        """The text of `data`: kept, or what `find` finds, which is kept if it does not raise."""
        key = hashlib.sha256(tenant_var.get().encode() + b"\0" + data).digest()
        if key in self._texts:
            self._texts.move_to_end(key)
            return self._texts[key]
        found = await find()
        if key not in self._texts:
            self._texts[key] = found
            self._characters += len(found)
        while self._characters > self._most or len(self._texts) > self._most // 64:
            self._characters -= len(self._texts.popitem(last=False)[1])
        return found


@asynccontextmanager
async def open_attachments(settings: Settings) -> AsyncIterator[AttachmentReader]:
    """The reader of a service, with connections to the speech service that the settings name."""
    async with aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as session:
        transcriber = None
        if "speech" in settings.gateway.services:
            timeout = settings.attachments.recording_timeout_s
            transcriber = SpeechTranscriber(session, settings.service_url("speech"), timeout_s=timeout)
        yield AttachmentReader(settings.attachments, transcriber)


def _with(message: Message, index: int, read: dict[tuple[int, int], Part]) -> Message:
    if not isinstance(message.content, list):
        return message
    content = [read.get((index, place), part) for place, part in enumerate(message.content)]
    return msgspec.structs.replace(message, content=content)
