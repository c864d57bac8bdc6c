"""Grammars on their way: compiled in threads beside the engine's loop, kept by content, given up after a time.

Requests of one grammar share its compilation. A compilation cannot be stopped, so one that takes too long fails its
requests and goes on in its thread; while every thread is held so, new grammars are refused as overload.
"""

from __future__ import annotations

import hashlib
import math
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Protocol

from tessera.errors import InvalidRequestError, OverloadedError
from tessera.sequence.grammar.matcher import Matcher, ThinkingMatcher
from tessera.wire.engine import Grammar

KEPT = 256
"""Compiled grammars that are kept, least recently used first to go."""
THREADS = 2

Make = Callable[[], Matcher]
Job = tuple["Future[Make]", Grammar]


class Compiler(Protocol):
    """What compiles; called from several threads."""

    def compile(self, grammar: Grammar) -> Make:
        """What makes matchers of `grammar`; raises `InvalidRequestError` when it cannot be compiled."""
        ...


@dataclass(frozen=True)
class _Waiting:
    grammar: Grammar
    future: Future[Make]
    since: float


class GrammarQueue:
    """The grammars of one engine. Its methods are called from the engine's thread.

    Args:
        compiler: of the model's vocabulary; called once, in a thread, when the first grammar comes.
        vocabulary: number of the model's token ids.
        stop_ids: ids that end an answer.
        timeout_s: seconds that a compilation may take, once the compiler is there.
    """

    def __init__(
        self, compiler: Callable[[], Compiler], *, vocabulary: int, stop_ids: list[int], timeout_s: float
    ) -> None:
        self._make_compiler = compiler
        self._compiler: Compiler | None = None
        self._ready_at = math.inf
        self._making = threading.Lock()
        self._vocabulary = vocabulary
        self._stop_ids = stop_ids
        self._timeout_s = timeout_s
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._kept: OrderedDict[bytes, Future[Make]] = OrderedDict()
        self._waiting: dict[str, _Waiting] = {}
        self.compiled = 0

    def __len__(self) -> int:
        """Requests that wait for their grammar."""
        return len(self._waiting)

    def start(self, request_id: str, grammar: Grammar) -> None:
        """Compile a request's grammar, or find it compiled; `take_ready` returns it then.

        Raises:
            InvalidRequestError: the model has no token that ends an answer, so a grammar could not end.
        """
        if not self._stop_ids:
            raise InvalidRequestError(
                f"`{grammar.param}`: this model has no token that ends an answer", param=grammar.param
            )
        key = _key(grammar)
        future = self._kept.pop(key, None)
        if future is None:
            future = Future()
            self._jobs.put((future, grammar))
            if len(self._threads) < THREADS:
                # Daemons, because one that never ends must not keep the process.
                thread = threading.Thread(target=self._work, name="grammar", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._kept[key] = future
        for old in list(self._kept)[: max(0, len(self._kept) - KEPT)]:
            del self._kept[old]
        self._waiting[request_id] = _Waiting(grammar, future, time.monotonic())

    def cancel(self, request_id: str) -> None:
        """Forget a request."""
        self._waiting.pop(request_id, None)

    def take_ready(self, wait_s: float = 0.0) -> list[tuple[str, Matcher | Exception]]:
        """Requests whose grammar is there, with a matcher of their own or what was wrong.

        Args:
            wait_s: how long to wait for one when there is none.
        """
        if wait_s > 0 and self._waiting:
            wait({waiting.future for waiting in self._waiting.values()}, timeout=wait_s, return_when="FIRST_COMPLETED")
        now = time.monotonic()
        found = []
        for request_id, waiting in list(self._waiting.items()):
            # The first grammar's time begins when there is something to compile it.
            late = now - max(waiting.since, self._ready_at) > self._timeout_s
            if waiting.future.done() or late:
                del self._waiting[request_id]
                found.append((request_id, self._result(waiting)))
        return found

    def _result(self, waiting: _Waiting) -> Matcher | Exception:
        grammar, future = waiting.grammar, waiting.future
        if not future.done():
            if not future.running():
                return OverloadedError("too many grammars are being compiled; try again later", retry_after=5.0)
            return InvalidRequestError(
                f"`{grammar.param}` takes longer than {self._timeout_s:g} s to compile; make it simpler",
                param=grammar.param,
            )
        try:
            matcher = future.result()()
        except Exception as error:  # noqa: BLE001 - it is this request's answer
            if isinstance(error, InvalidRequestError) and error.param != grammar.param:
                # Compiled for another request, which called it otherwise.
                return InvalidRequestError(error.message, param=grammar.param)
            return error
        if grammar.thinking is None:
            return matcher
        return ThinkingMatcher(matcher, grammar.thinking, self._stop_ids, self._vocabulary)

    def _work(self) -> None:
        while True:
            future, grammar = self._jobs.get()
            future.set_running_or_notify_cancel()
            try:
                future.set_result(self._ready_compiler().compile(grammar))
                self.compiled += 1
            except Exception as error:  # noqa: BLE001 - the requests that wait for it are told
                future.set_exception(error)

    def _ready_compiler(self) -> Compiler:
        with self._making:
            if self._compiler is None:
                self._compiler = self._make_compiler()
                self._ready_at = time.monotonic()
            return self._compiler


def _key(grammar: Grammar) -> bytes:
    text = "\0".join([grammar.kind, *grammar.markers, "", grammar.source])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
