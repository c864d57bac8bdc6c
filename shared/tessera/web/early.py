"""Answers below ASGI: what a server's protocol calls for requests that are too common to pay for an app.

`EarlyAnswers` looks at the head of a request, and at its whole body; what it does not take goes to the app, as if
nobody had looked. What it takes is counted, logged, budgeted and drained like any other request, because the app's own
collaborators do it (`FrontDoor`). Knows no route.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from asyncio import Transport
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from uvicorn.server import ServerState

from tessera.telemetry import log_request, request_id_var
from tessera.web.bodies.budget import BodyBudget
from tessera.web.draining import Draining
from tessera.web.errors import ErrorShape
from tessera.web.metrics import HTTPMetrics
from tessera.web.sites import Sites

logger = logging.getLogger("tessera.access")
HeadT = TypeVar("HeadT")


class FrontDoor(msgspec.Struct, frozen=True):
    """What every request of an app passes."""

    metrics: HTTPMetrics
    sites: Sites
    budget: BodyBudget

    def count(self, path: str, status: int, seconds: float, request_id: str) -> None:
        """Count and log a POST request that the app has not seen."""
        self.metrics.requests.add(("POST", path), status, seconds)
        token = request_id_var.set(request_id)  # not `named`, which takes longer, because every request comes here
        log_request(logger, "%s %s %d %.0f ms", "POST", path, status, seconds * 1000)
        request_id_var.reset(token)


@contextmanager
def named(request_id: str) -> Iterator[None]:
    """Logs and errors within the context are of this request. A callback has no context of its own."""
    token = request_id_var.set(request_id)
    try:
        yield
    finally:
        request_id_var.reset(token)


class ClientConnection(Protocol):
    """What an early answer needs of the connection that its request came by (`tessera.web.protocol`)."""

    transport: Transport
    server_state: ServerState
    draining: Draining
    """Whether the server is about to stop."""
    keeps_alive: bool
    """Whether the client of the request that was read last keeps its connection open."""

    def early_answer_ended(self, answer: EarlyAnswer) -> None:
        """Called by an early answer at its end: the next request of the connection, or its end."""


class EarlyAnswer(ABC):
    """One request that is answered below ASGI, and its answer. It stands where uvicorn has a cycle.

    Args:
        client: the connection that the request came by.
        door: what the request passes.
        path: its path, which is its route too.
        request_id: its id.
        body_bytes: size of its body.
    """

    waiting_for_100_continue = False
    """uvicorn asks for it; a client that waits for it is answered by the app."""

    def __init__(self, client: ClientConnection, door: FrontDoor, path: str, request_id: str, body_bytes: int) -> None:
        self.client = client
        self.keep_alive = client.keeps_alive
        """Whether the connection is used again; uvicorn sets it to False when the server stops."""
        self.response_started = False
        self.response_complete = False
        self.disconnected = False
        """Whether uvicorn has seen the client leave; `left` is called too."""
        self.status = 500
        self.request_id = request_id
        self._door = door
        self._path = path
        self._body_bytes = body_bytes
        self._began = time.perf_counter()

    @property
    def message_event(self) -> EarlyAnswer:
        """What uvicorn sets when the client has left: this, because nobody waits for an event."""
        return self

    def set(self) -> None:  # noqa: B027 - there is nothing to do, for any answer
        """Do nothing; see `message_event`."""

    @abstractmethod
    def start(self) -> None:
        """Begin to answer; called once, when the connection belongs to this answer."""

    @abstractmethod
    def pause(self) -> None:
        """Send nothing for now: the client reads slowly."""

    @abstractmethod
    def resume(self) -> None:
        """Send again."""

    @abstractmethod
    def left(self) -> None:
        """The client has left."""

    @abstractmethod
    def end_early(self) -> None:
        """End, because the server stops."""

    def began(self) -> None:
        """Count the request; called before `start`."""
        self._door.metrics.in_flight += 1
        self._door.budget.take(self._body_bytes)
        self.client.draining.add(self.end_early)

    def ended(self) -> None:
        """Count and log the request, and give the connection back. Called once, at the end of the answer."""
        self.client.draining.discard(self.end_early)
        seconds = time.perf_counter() - self._began
        self._door.metrics.in_flight -= 1
        self._door.budget.end(self._body_bytes, seconds)
        self._door.count(self._path, self.status, seconds, self.request_id)
        self.client.early_answer_ended(self)


class EarlyAnswers(Protocol, Generic[HeadT]):
    """Takes requests before the app does."""

    @property
    def urls(self) -> Container[bytes]:
        """The targets of requests, without a query, that it looks at; of POST requests only."""

    most_bytes: int
    """Largest body that it takes."""

    budget: BodyBudget
    """Where bodies that have not arrived whole are counted."""

    def behind(self, door: FrontDoor) -> None:
        """Be told what requests pass; called before a request comes."""

    def head(self, url: bytes, headers: list[tuple[bytes, bytes]]) -> HeadT | None:
        """What is needed of a request's head; None if the app answers the request."""

    def left(self, head: HeadT) -> None:
        """Count a request whose client has left before its body was there."""

    def shape(self, head: HeadT) -> ErrorShape:
        """How the errors of a request are written."""

    def answer(self, client: ClientConnection, head: HeadT, body: bytes) -> EarlyAnswer | None:
        """The answer to a request, which has not begun; None if the app answers it."""


AnyEarlyAnswers = EarlyAnswers[Any]
