"""The kept events of a response that a job makes: numbered here, over all attempts at the job.

An upstream numbers the events of one attempt from 0. What is kept has one numbering, and items of a later attempt come
behind those of an earlier one, which end as incomplete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec

from tessera.errors import UnavailableError
from tessera.web.sse import event
from tessera.wire.decoding import DAMAGED
from tessera_gateway.responses.background import last_event
from tessera_gateway.responses.store import ResponseStore

READ_AT_ONCE = 1000
"""Most events that are read at once."""
_END = b"\n\n"


class EventLog:
    """The events of one response.

    Args:
        store: where they are kept.
        owner: whose response it is.
        identity: id of the response.
        keep_s: seconds that they are kept while it is made.
    """

    def __init__(self, store: ResponseStore, owner: str, identity: str, *, keep_s: float) -> None:
        self._store = store
        self._owner = owner
        self._id = identity
        self._keep_s = keep_s
        self._number = 0
        self._items = 0
        self._created: dict[str, Any] = {}
        self._begun = False
        self._waiting: list[bytes] = []
        self._writing = asyncio.Lock()

    async def resume(self) -> None:
        """Go on behind the events that there are. Items that an earlier attempt left open are closed."""
        opened: dict[int, dict[str, Any]] = {}
        while found := await self._store.events(self._owner, self._id, self._number, READ_AT_ONCE):
            for one in (decoded for raw in found for decoded in events_in(bytearray(raw))):
                self._number += 1
                if one["type"] == "response.created":
                    self._created = one["response"]
                elif one["type"] == "response.in_progress":
                    self._begun = True
                elif one["type"] == "response.output_item.added":
                    opened[one["output_index"]] = one["item"]
                    self._items = one["output_index"] + 1
                elif one["type"] == "response.output_item.done":
                    opened.pop(one["output_index"], None)
                elif one["type"] == "response.output_text.delta" and one["output_index"] in opened:
                    _grow(opened[one["output_index"]], one["delta"])
        base = self._items
        self._items = 0
        for index, item in opened.items():
            shown = {"type": "response.output_item.done", "output_index": index}
            self.add({**shown, "item": {**item, "status": "incomplete"}})
        self._items = base
        await self.flush()

    def add(self, one: dict[str, Any]) -> None:
        """Add an event of this attempt. What an earlier one has said is not said again."""
        kind = one["type"]
        if kind in {"response.created", "response.queued"} or (kind == "response.in_progress" and self._begun):
            return
        self._begun = self._begun or kind == "response.in_progress"
        changed = {**one, "sequence_number": self._number}
        if "output_index" in one:
            changed["output_index"] = one["output_index"] + self._items
        if kind == "response.in_progress":
            changed["response"] = {**self._created, "status": "in_progress"}
        self._waiting.append(event(changed, kind))
        self._number += 1

    async def flush(self) -> None:
        """Keep what was added. What cannot be kept because Redis is down waits for the next time."""
        async with self._writing:
            waiting, self._waiting = self._waiting, []
            if not waiting:
                return
            try:
                await self._store.append(self._owner, self._id, waiting, keep_s=self._keep_s)
            except UnavailableError:
                self._waiting = [*waiting, *self._waiting]

    async def flush_always(self, every_s: float) -> None:
        """Keep what was added again and again, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await asyncio.shield(self.flush())

    async def close(self, response: dict[str, Any], keep_s: float) -> None:
        """Add the last event, and keep all of them for `keep_s` seconds from now.

        Raises:
            UnavailableError: Redis is down.
        """
        async with self._writing:
            waiting = [*self._waiting, last_event(response, self._number)]
            await self._store.append(self._owner, self._id, waiting, keep_s=keep_s)
            self._waiting = []


def events_in(held: bytearray) -> Iterator[dict[str, Any]]:
    """The whole events in `held`, decoded; they are taken out of it."""
    while (end := held.find(_END)) >= 0:
        block = bytes(held[:end])
        del held[: end + len(_END)]
        data = b"\n".join(line[5:].lstrip() for line in block.split(b"\n") if line.startswith(b"data:"))
        try:
            decoded = msgspec.json.decode(data)
        except DAMAGED:
            continue
        if isinstance(decoded, dict):
            yield decoded


def _grow(item: dict[str, Any], text: str) -> None:
    if item.get("type") == "message":
        content = item["content"] or [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
        item["content"] = [{**content[0], "text": content[0]["text"] + text}]
