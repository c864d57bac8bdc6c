"""Compilation of grammars, in threads beside the engine's loop: cached by content, given up after a time limit.

Requests with the same grammar share its compilation. A compilation cannot be stopped, so one that takes too long fails
its requests and goes on in its thread; while every thread is held that way, new grammars are refused as overload.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Protocol

from tessera.engine.waits import WaitMeter
from tessera.errors import InvalidRequestError, OverloadedError
from tessera.sequence.grammar.matcher import Matcher, ThinkingMatcher
from tessera.wire.engine import Grammar

MAX_CACHED = 256
"""Compiled grammars that are cached; the least recently used one is dropped first."""
THREADS = 2
"""Threads that compile, so that one slow grammar does not hold up the others."""

MatcherFactory = Callable[[], Matcher]
_Task = tuple["Future[MatcherFactory]", Grammar]


class Compiler(Protocol):
    """Compiles grammars; called from several threads."""

    def compile(self, grammar: Grammar) -> MatcherFactory:
        """Return a factory of matchers of `grammar`.

        Raises:
            InvalidRequestError: The grammar cannot be compiled.
        """
        ...


@dataclass(frozen=True)
class _WaitingRequest:
    grammar: Grammar
    future: Future[MatcherFactory]
    since: float
    """Time of the monotonic clock, in seconds."""


class GrammarQueue:
    """The grammars of one engine. All methods are called from the engine's thread.

    Args:
        compiler: Makes the compiler; called once, in a thread, when the first grammar comes.
        vocabulary: Number of token ids of the model.
        stop_ids: Ids that end an answer.
        timeout_s: Seconds that a compilation may take, once the compiler is made.
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
        self._tasks: queue.PriorityQueue[tuple[float, int, _Task]] = queue.PriorityQueue()
        """Grammars to compile, by their tenant's turn and their order."""
        self._turns: dict[str, float] = {}
        """Turn of the last grammar of each tenant that waits."""
        self._now_at = 0.0
        """Turn of the grammar that was begun last."""
        self._order = itertools.count()
        self._meter = WaitMeter()
        self._threads: list[threading.Thread] = []
        self._cached: OrderedDict[bytes, Future[MatcherFactory]] = OrderedDict()
        self._waiting: dict[str, _WaitingRequest] = {}
        self.compiled = 0
        """Grammars compiled since the start."""

    def __len__(self) -> int:
        """Return the number of requests that wait for their grammar."""
        return len(self._waiting)

    def start(self, request_id: str, grammar: Grammar, tenant: str = "") -> None:
        """Compile a request's grammar, unless it is cached; `take_ready` returns the request when it is compiled.

        Tenants take turns, so that the grammars of one do not hold up another's.

        Raises:
            InvalidRequestError: The model has no token that ends an answer, so a grammar could not end.
        """
        if not self._stop_ids:
            raise InvalidRequestError(
                f"`{grammar.param}`: this model has no token that ends an answer", param=grammar.param
            )
        key = _key(grammar)
        future = self._cached.pop(key, None)
        if future is None:
            future = Future()
            self._turns = {name: turn for name, turn in self._turns.items() if turn > self._now_at}
            turn = self._turns[tenant] = max(self._now_at, self._turns.get(tenant, 0.0)) + 1
            self._tasks.put((turn, next(self._order), (future, grammar)))
            self._meter.came(1, self._tasks.qsize())
            if len(self._threads) < THREADS:
                # Daemons, because one that never ends must not keep the process.
                thread = threading.Thread(target=self._work, name="grammar", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._cached[key] = future
        for old in list(self._cached)[: max(0, len(self._cached) - MAX_CACHED)]:
            del self._cached[old]
        self._waiting[request_id] = _WaitingRequest(grammar, future, time.monotonic())

    def cancel(self, request_id: str) -> None:
        """Forget a request."""
        self._waiting.pop(request_id, None)

    def take_ready(self, wait_s: float = 0.0) -> list[tuple[str, Matcher | Exception]]:
        """Take the requests whose grammar is compiled or has failed, with a matcher of their own or the error.

        Args:
            wait_s: Seconds to wait if there is none.
        """
        if wait_s > 0 and self._waiting:
            wait({waiting.future for waiting in self._waiting.values()}, timeout=wait_s, return_when="FIRST_COMPLETED")
        now = time.monotonic()
        found = []
        for request_id, waiting in list(self._waiting.items()):
            # The time limit of the first grammars begins when the compiler is made.
            late = now - max(waiting.since, self._ready_at) > self._timeout_s
            if waiting.future.done() or late:
                del self._waiting[request_id]
                found.append((request_id, self._result(waiting)))
        return found

    def _result(self, waiting: _WaitingRequest) -> Matcher | Exception:
        grammar, future = waiting.grammar, waiting.future
        if not future.done():
            if not future.running():
                wait_s = self._meter.wait(self._tasks.qsize())
                return OverloadedError(
                    f"too many grammars are being compiled; try again in about {wait_s:.0f} s", retry_after=wait_s
                )
            return InvalidRequestError(
                f"`{grammar.param}` takes longer than {self._timeout_s:g} s to compile; make it simpler",
                param=grammar.param,
            )
        try:
            matcher = future.result()()
        except Exception as error:  # noqa: BLE001 - it is this request's answer
            same_field = grammar.kind == "calls_or_json"  # its source names the field of its other part
            if isinstance(error, InvalidRequestError) and error.param != grammar.param and not same_field:
                # The grammar was compiled for another request, which has it in another field.
                return InvalidRequestError(error.message, param=grammar.param)
            return error
        if grammar.thinking is None:
            return matcher
        return ThinkingMatcher(matcher, grammar.thinking, self._stop_ids, self._vocabulary)

    def _work(self) -> None:
        while True:
            self._now_at, _, (future, grammar) = self._tasks.get()
            future.set_running_or_notify_cancel()
            try:
                future.set_result(_compiled(self._ready_compiler(), grammar))
                self.compiled += 1
            except Exception as error:  # noqa: BLE001 - the requests that wait for it are told
                future.set_exception(error)

    def _ready_compiler(self) -> Compiler:
        with self._making:
            if self._compiler is None:
                self._compiler = self._make_compiler()
                self._ready_at = time.monotonic()
            return self._compiler


def _compiled(compiler: Compiler, grammar: Grammar) -> MatcherFactory:
    """Compile a grammar. The error of one that is calls or JSON names the field of the part that is at fault."""
    try:
        return compiler.compile(grammar)
    except InvalidRequestError:
        if grammar.kind == "calls_or_json":
            answer = json.loads(grammar.source)["answer"]
            compiler.compile(Grammar(kind="json_schema", source=json.dumps(answer["schema"]), param=answer["param"]))
        raise


def _key(grammar: Grammar) -> bytes:
    text = "\0".join([grammar.kind, *grammar.markers, "", grammar.source])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
