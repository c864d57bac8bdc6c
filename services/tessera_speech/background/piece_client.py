"""The client by which a job worker has pieces of a recording transcribed by the speech service. Knows nothing about
jobs."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
import msgspec

from tessera.errors import EngineDiedError, OverloadedError, TesseraError, UnavailableError, from_body
from tessera.web.errors import ErrorEnvelope
from tessera.wire.engine import Transcribe, Transcript
from tessera_speech.routes.pieces import CONTENT_TYPE, PATH

logger = logging.getLogger(__name__)

RETRY_EVERY_S = 1.0
"""Seconds between two attempts."""
MAX_AWAY_S = 300.0
"""Seconds that a service may be away (it restarts, or loads another model) before a piece fails."""
MAX_PIECE_S = 1800.0
"""Most seconds that one piece may take."""
MAX_LOST_CONNECTIONS = 2
"""Times that the service may end with a piece in flight before the piece is taken for the cause."""


class PieceClient:
    """One speech service.

    Args:
        session: its connections.
        url: address of the service.
        model: id of the model that the service must have loaded.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self.session = session
        self.url = url
        self.model = model

    async def transcribe(self, message: Transcribe) -> list[Transcript]:
        """The answers to a piece. Waits for a service that is away or busy; cancelling this cancels the work there.

        Raises:
            EngineDiedError: the engine, or the service itself, ended with this piece in flight, more than once.
            UnavailableError: the service stays away.
            TesseraError: the error that the service answered.
        """
        loop = asyncio.get_running_loop()
        until, lost = loop.time() + MAX_AWAY_S, 0
        while True:
            try:
                return await self._send(message)
            except EngineDiedError:
                raise
            except _ConnectionLostError as error:
                lost += 1
                if lost > MAX_LOST_CONNECTIONS:
                    raise EngineDiedError(
                        "the speech service ended again and again while it transcribed a piece"
                    ) from error
            except (UnavailableError, OverloadedError) as error:
                if loop.time() > until:
                    raise UnavailableError(f"the speech service was away too long: {error.message}") from error
            await asyncio.sleep(RETRY_EVERY_S)

    async def _send(self, message: Transcribe) -> list[Transcript]:
        limit = aiohttp.ClientTimeout(total=MAX_PIECE_S, sock_connect=RETRY_EVERY_S * 5)
        try:
            async with self.session.post(
                self.url + PATH,
                params={"model": self.model},
                data=msgspec.msgpack.encode(message),
                headers={"content-type": CONTENT_TYPE},
                timeout=limit,
                allow_redirects=False,
            ) as answer:
                data = await answer.read()
        except aiohttp.ClientConnectorError as error:
            raise UnavailableError("the speech service cannot be reached") from error
        except TimeoutError as error:
            raise UnavailableError(f"the speech service did not transcribe a piece in {MAX_PIECE_S:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            logger.warning("the speech service ended with a piece in flight: %s", error)
            raise _ConnectionLostError from error
        if answer.status != 200:
            raise _error_of(data, answer.status)
        return msgspec.msgpack.decode(data, type=list[Transcript])


class _ConnectionLostError(Exception):
    """The connection was lost before the answer."""


def _error_of(data: bytes, status: int) -> TesseraError:
    try:
        return from_body(msgspec.json.decode(data, type=ErrorEnvelope).error)
    except msgspec.MsgspecError:
        return UnavailableError(f"the speech service answered {status}, and nothing that can be read")
