"""Recordings in messages: their bytes, and their transcript by the speech service.

Does not know formats of audio: the speech service decodes, within its own limits. Knows no messages.
"""

from __future__ import annotations

import contextlib

import aiohttp
import msgspec

from tessera.errors import (
    BadGatewayError,
    ErrorBody,
    GatewayTimeoutError,
    InvalidRequestError,
    PayloadTooLargeError,
    TesseraError,
    UnavailableError,
    UnsupportedMediaError,
    from_body,
)
from tessera.language.attachments.base64_data import decoded
from tessera.telemetry import request_id_var
from tessera.web.tenant import TENANT_HEADER, tenant_var
from tessera.wire.conversation import InputAudio
from tessera.wire.decoding import DAMAGED
from tessera.wire.models import ModelList

CONNECT_TIMEOUT_S = 5.0
"""Seconds to connect to the speech service, and to list its models."""
MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Most bytes of a transcript."""
_OF_THE_RECORDING = (InvalidRequestError, PayloadTooLargeError, UnsupportedMediaError)
"""Errors of the speech service that are about the recording, and so the client's."""


class _Transcribed(msgspec.Struct, frozen=True):
    text: str


class _Failed(msgspec.Struct, frozen=True):
    error: ErrorBody


def recording_bytes(audio: InputAudio, most_bytes: int, param: str) -> bytes:
    """The bytes of a recording.

    Raises:
        PayloadTooLargeError: there are more than `most_bytes`.
        InvalidRequestError: the base64 is damaged.
    """
    return decoded(audio.data, most_bytes, param, what="a recording")


class SpeechTranscriber:
    """The client of a speech service.

    Args:
        session: its connections.
        url: address of the service, without `/v1`.
        timeout_s: most seconds of one recording.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, *, timeout_s: float) -> None:
        self._session = session
        self._url = url
        self._timeout_s = timeout_s
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)

    async def transcribe(self, data: bytes, param: str) -> str:
        """What is said in a recording; empty if nobody speaks.

        Raises:
            InvalidRequestError, PayloadTooLargeError, UnsupportedMediaError: what the service says of the recording.
            TesseraError: the service is away, full, or did not answer in time.
        """
        form = aiohttp.FormData()
        form.add_field("model", await self._model())
        form.add_field("response_format", "json")
        form.add_field("file", data, filename="recording", content_type="application/octet-stream")
        headers = {"x-request-id": request_id_var.get() or ""}
        if tenant := tenant_var.get():
            headers[TENANT_HEADER] = tenant
        try:
            async with self._session.post(
                f"{self._url}/v1/audio/transcriptions", data=form, headers=headers, timeout=self._timeout
            ) as response:
                body = await response.content.read(MAX_ANSWER_BYTES)
                while more := await response.content.read(MAX_ANSWER_BYTES - len(body)):
                    body += more
                if response.status != 200:
                    raise _refused(response, body, param)
                return msgspec.json.decode(body, type=_Transcribed).text.strip()
        except aiohttp.ConnectionTimeoutError as error:
            raise _away(error) from error
        except TimeoutError as error:
            raise GatewayTimeoutError(
                f"`{param}`: the speech service did not transcribe it within {self._timeout_s:g} seconds", param=param
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _away(error) from error
        except DAMAGED as error:
            raise BadGatewayError(f"the speech service answered what is no transcript: {error}") from error

    async def _model(self) -> str:
        """Id of the first model that transcribes.

        Raises:
            UnavailableError: the service is away, or has no such model yet.
        """
        try:
            timeout = aiohttp.ClientTimeout(total=CONNECT_TIMEOUT_S)
            async with self._session.get(f"{self._url}/v1/models", timeout=timeout) as response:
                listed = msgspec.json.decode(await response.read(), type=ModelList)
        except (aiohttp.ClientError, TimeoutError, OSError, *DAMAGED) as error:
            raise _away(error) from error
        for model in listed.data:
            if model.card is not None and "transcription" in model.card.tasks:
                return model.id
        raise UnavailableError("the speech service has no model that transcribes yet; try again", retry_after=2)


def _away(error: Exception) -> UnavailableError:
    reason = str(error) or type(error).__name__
    return UnavailableError(f"the speech service, which hears recordings, cannot be reached: {reason}", retry_after=2)


def _refused(response: aiohttp.ClientResponse, body: bytes, param: str) -> TesseraError:
    try:
        error = from_body(msgspec.json.decode(body, type=_Failed).error)
    except DAMAGED:
        return BadGatewayError(f"the speech service answered {response.status}")
    if isinstance(error, _OF_THE_RECORDING):
        return type(error)(f"`{param}`: {error.message}", param=param, code=error.own_code)
    with contextlib.suppress(ValueError):
        error.retry_after = float(response.headers.get("retry-after", ""))
    return error
