"""The store of responses: keep one, read it, its conversation and its items, delete it.

Every change is one script of `tessera_gateway.responses.scripts`. Every method raises `UnavailableError` when Redis is
down. Knows no HTTP and no upstream.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec

from tessera.errors import UnavailableError
from tessera.jobs.connection import connect_async, redis_errors_translated
from tessera.jobs.disk import JobDisks
from tessera_gateway.responses.scripts import PRELUDE, SCRIPTS

MOST_RESPONSES = 1024
"""Most responses of one conversation."""
DOWN_S = 1.0
"""Seconds for which a Redis that was down is not asked again whether it is up, so that a Redis that does not answer
delays one request and not all."""
Kept = Literal["kept", "large", "gone", "ended", "unnamed"]
"""What became of a response: `large` if it is over the owner's bytes, `gone` if it was deleted before, `ended` if it
was kept with its end before, `unnamed` if its upstream gave it an id that is none."""
_ID = re.compile(r"^[A-Za-z0-9_.-]{1,128}$")
"""Ids of responses. Others could be taken for another key of Redis."""


class KeptResponse(msgspec.Struct, frozen=True):
    """A response as it was kept."""

    response: dict[str, Any]
    input: list[dict[str, Any]]
    """The items of its own request; those of the responses before it are theirs."""
    previous: str | None
    ended: bool


class Turn(msgspec.Struct, frozen=True):
    """One response of a conversation."""

    id: str
    input: list[dict[str, Any]]
    output: list[dict[str, Any]]
    status: str


class Chain(msgspec.Struct, frozen=True):
    """The responses of a conversation, the first one first, and whether they are all of it."""

    turns: list[Turn]
    outcome: Literal["whole", "gone", "long", "large"]
    last: str
    """Id of the response at which it ended."""


class _Output(msgspec.Struct, frozen=True):
    output: list[dict[str, Any]]
    status: str


class ResponseStore:
    """Responses in Redis.

    Args:
        url: address of Redis.
        timeout_s: seconds after which a Redis that does not answer counts as down.
        keep_s: seconds that a response is kept.
        most_bytes: most bytes that are kept of one owner.
        disks: where Redis keeps them, to say why it does not answer.
    """

    def __init__(
        self, url: str, *, timeout_s: float, keep_s: int, most_bytes: int, disks: JobDisks | None = None
    ) -> None:
        self._disks = disks
        self.keep_ms = keep_s * 1000
        self.most_bytes = most_bytes
        self.redis = connect_async(url, timeout_s)
        self._scripts = {name: self.redis.register_script(PRELUDE + text) for name, text in SCRIPTS.items()}
        self._down_until = 0.0

    async def available(self) -> bool:
        """Whether Redis answers now."""
        if time.monotonic() < self._down_until:
            return False
        try:
            with redis_errors_translated():
                await self.redis.ping()
        except UnavailableError:
            self._down_until = time.monotonic() + DOWN_S
            return False
        return True

    async def keep(
        self,
        owner: str,
        response: dict[str, Any],
        items: list[dict[str, Any]] | None,
        previous: str | None,
        *,
        ended: bool = True,
        known: bool = False,
    ) -> Kept:
        """Keep a response.

        Args:
            owner: whose response it is; nobody else sees it.
            response: the response object; its `id` is the name under which it is found.
            items: of its request; None leaves those that are kept.
            previous: id of the response whose conversation it goes on with.
            ended: whether it has its last status. Nothing changes it afterwards.
            known: whether it must be kept already.
        """
        if not _ID.match(str(response.get("id"))):
            return "unnamed"
        named = [*(items or []), *response["output"]]
        ids = [item["id"] for item in named if isinstance(item.get("id"), str)]
        reply = await self._run(
            "KEEP",
            owner,
            response["id"],
            msgspec.json.encode(response),
            "" if items is None else msgspec.json.encode(items),
            previous or "",
            msgspec.json.encode(ids),
            int(ended),
            self.keep_ms,
            self.most_bytes,
            int(known),
        )
        return cast("Kept", bytes(reply).decode())

    async def get(self, owner: str, identity: str) -> KeptResponse | None:
        """A response; None if there is none of this owner."""
        if not _ID.match(identity):
            return None
        response, items, previous, ended = await self._run("GET", owner, identity)
        if response is None:
            return None
        decode = msgspec.json.decode
        return KeptResponse(decode(response), decode(items), previous.decode() or None, ended == b"1")

    async def chain(self, owner: str, identity: str, most_bytes: int) -> Chain:
        """The conversation that ends with a response."""
        if not _ID.match(identity):
            return Chain([], "gone", identity)
        reply = await self._run("CHAIN", owner, identity, MOST_RESPONSES, most_bytes)
        outcome, last = (bytes(value).decode() for value in reply[-2:])
        turns = []
        for place in range(0, len(reply) - 2, 4):
            name, items, response, ended = reply[place : place + 4]
            made = msgspec.json.decode(response, type=_Output)
            status = made.status if ended == b"1" else "in progress"
            turns.append(Turn(bytes(name).decode(), msgspec.json.decode(items), made.output, status))
        turns.reverse()
        return Chain(turns, cast("Literal['whole', 'gone', 'long', 'large']", outcome), last)

    async def items(self, owner: str, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Items of kept responses by their ids; those that there are."""
        reply = await self._run("ITEMS", owner, *ids)
        found: dict[str, dict[str, Any]] = {}
        for identity, given, response in zip(ids, reply[::2], reply[1::2], strict=True):
            if given is not None and response is not None:
                both = [*msgspec.json.decode(given), *msgspec.json.decode(response, type=_Output).output]
                found |= {item["id"]: item for item in both if item.get("id") == identity}
        return found

    async def delete(self, owner: str, identity: str) -> bool:
        """Remove a response. Returns whether there was one."""
        return bool(await self._run("DELETE", owner, identity))

    async def append(self, owner: str, identity: str, events: Sequence[bytes], *, keep_s: float) -> int:
        """Add events to those of a response that a job makes, and wake who watches.

        Returns:
            How many there are now; -1 if the response is gone.
        """
        return int(await self._run("APPEND", owner, identity, round(keep_s * 1000), *events))

    async def events(self, owner: str, identity: str, first: int, most: int) -> list[bytes] | None:
        """The events of a response from number `first` on, at most `most`; None if they are not kept (any more)."""
        there, logged, found = await self._run("EVENTS", owner, identity, first, most)
        return [bytes(event) for event in found] if there and logged else None

    async def close(self) -> None:
        """Close all connections."""
        await self.redis.aclose()

    async def _run(self, name: str, *arguments: str | bytes | int) -> Any:
        with redis_errors_translated(self._disks):
            return await self._scripts[name](args=list(arguments))
