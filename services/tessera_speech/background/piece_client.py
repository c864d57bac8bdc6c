"""Has pieces of a recording heard by the speech service's engine. Does not know jobs, or what a piece is part of."""

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

AGAIN_S = 1.0
AWAY_S = 300.0
"""So long a service may be away (it is started again, or loads another model) before a piece is given up."""
PIECE_S = 1800.0
"""So long one piece may take."""
MOST_CUTS = 2
"""Times that the service may end with a piece in work before the piece is taken for what ends it."""


class PieceClient:
    """One speech service.

    Args:
        session: connections.
        url: of the service.
        model: that it is to have loaded.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self.session = session
        self.url = url
        self.model = model

    async def transcribe(self, message: Transcribe) -> list[Transcript]:
        """The answers to a piece. Waits for a service that is away or has much to do; cancelling it cancels there.

        Raises:
            EngineDiedError: the engine, or the service itself, ended with this piece in work, more than once.
            UnavailableError: the service stays away.
            TesseraError: what it answered.
        """
        loop = asyncio.get_running_loop()
        until, cuts = loop.time() + AWAY_S, 0
        while True:
            try:
                return await self._ask(message)
            except EngineDiedError:
                raise
            except _ConnectionLostError as error:
                cuts += 1
                if cuts > MOST_CUTS:
                    raise EngineDiedError("the speech service ended again and again while it heard a piece") from error
            except (UnavailableError, OverloadedError) as error:
                if loop.time() > until:
                    raise UnavailableError(f"the speech service was away too long: {error.message}") from error
            await asyncio.sleep(AGAIN_S)

    async def _ask(self, message: Transcribe) -> list[Transcript]:
        limit = aiohttp.ClientTimeout(total=PIECE_S, sock_connect=AGAIN_S * 5)
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
            raise UnavailableError(f"the speech service did not hear a piece in {PIECE_S:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            logger.warning("the speech service ended with a piece in work: %s", error)
            raise _ConnectionLostError from error
        if answer.status != 200:
            raise _error_of(data, answer.status)
        return msgspec.msgpack.decode(data, type=list[Transcript])


class _ConnectionLostError(Exception):
    """The connection ended before the answer."""


def _error_of(data: bytes, status: int) -> TesseraError:
    try:
        return from_body(msgspec.json.decode(data, type=ErrorEnvelope).error)
    except msgspec.MsgspecError:
        return UnavailableError(f"the speech service answered {status}, and nothing that can be read")
