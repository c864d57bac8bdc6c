"""The service's side of an engine: starts its process, sends requests, hands out answers, restarts it when it dies.

When the process ends unexpectedly, requests that have no answer yet are sent to the next process, once; requests that
have one fail with `EngineDiedError`. The pauses between restarts grow. While an engine cannot load, `state()` is
`failed` and every request fails with the reason. Torch-free; does not know what the messages ask for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence

from tessera.engine.connection import frame, read_frame
from tessera.errors import EngineDiedError, TesseraError, UnavailableError, from_body
from tessera.processes import die_with_parent
from tessera.wire.engine import (
    Audio,
    Cancel,
    Embed,
    Encode,
    Failed,
    FromEngine,
    Generate,
    GeneratedTokens,
    Metrics,
    Ready,
    Shutdown,
    Stopped,
    Synthesize,
    Transcribe,
    Transcript,
    from_engine_decoder,
)

logger = logging.getLogger(__name__)

EngineRequest = Generate | Embed | Encode | Synthesize | Transcribe
MAX_RESENDS = 1
"""How often a request without an answer is sent again after its engine died."""
FIRST_BACKOFF_S = 0.2
"""Seconds before the first restart; each further restart waits twice as long."""
MAX_BACKOFF_S = 10.0
"""Most seconds before a restart."""
STABLE_S = 30.0
"""Seconds that a process must have run for the next restart to wait `FIRST_BACKOFF_S` again."""
LEAST_WAIT_S, MOST_WAIT_S = 1.0, 600.0
"""Bounds of the wait that clients are told while the engine is away."""
END_S = 5.0
"""Seconds that a process may take to end after its connection is closed."""


class _Pending:
    """A request that the engine has not finished.

    Attributes:
        message: the request.
        answers: what the engine has answered and the caller has not read.
        sent: whether the present process has the request.
        answered: whether any answer has come.
        resends: how often the request was sent again.
    """

    def __init__(self, message: EngineRequest) -> None:
        self.message = message
        self.answers: asyncio.Queue[FromEngine | TesseraError] = asyncio.Queue()
        self.sent = False
        self.answered = False
        self.resends = 0


class EngineClient:
    """One engine process and its requests.

    Args:
        command: starts the process; the socket's file descriptor is appended.
        name: of the engine in logs and errors.
        on_metrics: called with the values of each `Metrics` message, and with `start_<part>_seconds` after each start.
        environment: of the process; None inherits the service's.

    Attributes:
        ready: what the engine has loaded; None while it has not.
        problem: why the last start failed; None when it did not.
        restarts: number of restarts.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        on_metrics: Callable[[dict[str, float]], None] = lambda _: None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.command = list(command)
        self.name = name
        self.on_metrics = on_metrics
        self.environment = environment
        self.ready: Ready | None = None
        self.problem: TesseraError | None = None
        self.restarts = 0
        self._began_at = time.monotonic()
        self._load_s: float | None = None
        """Seconds from the beginning to the end of the last start that was measured."""
        self._was_ready = False
        self._changed = asyncio.Event()
        self._pending: dict[str, _Pending] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Process id of the running engine."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def state(self) -> str:
        """`ok`, `starting`, or `failed` when the engine could not load at its last start."""
        if self.ready is not None:
            return "ok"
        return "failed" if self.problem is not None else "starting"

    def ready_in_s(self) -> float:
        """Seconds until requests are expected to be answered again.

        The last start tells how long one takes. Before the first has ended, the time that it has taken is the best
        guess at what is left of it.
        """
        if self.ready is not None:
            return LEAST_WAIT_S
        now = time.monotonic()
        left = self._load_s - (now - self._began_at) if self._load_s is not None else now - self._began_at
        return max(LEAST_WAIT_S, min(left, MOST_WAIT_S))

    def _down(self, problem: TesseraError) -> UnavailableError:
        return UnavailableError(f"the {self.name} is down: {problem.message}", retry_after=self.ready_in_s())

    async def start(self) -> None:
        """Start the process and keep it running. Returns at once; `wait_ready` waits."""
        self._keeper = asyncio.create_task(self._keep())

    async def wait_ready(self, timeout_s: float | None = None) -> Ready:
        """Wait until the engine has loaded, and return what it has loaded.

        Raises:
            TesseraError: the engine cannot load.
            UnavailableError: it has not loaded within `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self.ready is None:
                    if self.problem is not None:
                        raise self.problem
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise UnavailableError(f"the {self.name} is still loading", retry_after=self.ready_in_s()) from error
        return self.ready

    async def request(self, message: EngineRequest) -> AsyncGenerator[FromEngine]:
        """Send a request and yield its answers up to the last. Closing the iterator early cancels the request.

        Use it inside `contextlib.aclosing`, so that leaving the loop closes it at once.

        Raises:
            TesseraError: the engine's own error, `EngineDiedError`, or `UnavailableError` while the engine starts.
        """
        if self.problem is not None:
            raise self._down(self.problem)
        if self._closing.is_set():
            raise UnavailableError(f"the {self.name} is shutting down", retry_after=LEAST_WAIT_S)
        if not self._was_ready:
            raise UnavailableError(f"the {self.name} is still loading its model", retry_after=self.ready_in_s())
        pending = _Pending(message)
        self._pending[message.request_id] = pending
        finished = False
        try:
            if self.ready is not None:
                self._submit(pending)
            while not finished:
                answer = await pending.answers.get()
                finished = is_last(answer)
                if isinstance(answer, TesseraError):
                    raise answer
                if isinstance(answer, Failed):
                    error = from_body(answer.error)
                    error.retry_after = answer.retry_after
                    raise error
                yield answer
        finally:
            self._pending.pop(message.request_id, None)
            if not finished and self.ready is not None:
                self._send(Cancel(request_id=message.request_id))

    async def close(self) -> None:
        """End the process: ask, then terminate, then kill. Requests that still run fail."""
        self._closing.set()
        self._send(Shutdown())
        process = self._process
        if process is not None:
            for sign in (None, signal.SIGTERM, signal.SIGKILL):
                if sign is not None:
                    process.send_signal(sign)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(process.wait, 2.0)
                    break
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._fail_all(UnavailableError(f"the {self.name} is shutting down"))

    def _send(self, message: EngineRequest | Cancel | Shutdown) -> None:
        """Write to the present process, if there is one. Requests made while it loads are sent when it is ready."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame(message))

    def _submit(self, pending: _Pending) -> None:
        pending.sent = True
        self._send(pending.message)

    async def _keep(self) -> None:
        backoff = FIRST_BACKOFF_S
        while not self._closing.is_set():
            started = self._began_at = time.monotonic()
            try:
                await self._run_once()
            except Exception:
                logger.exception("the %s could not be run", self.name)
            if self._closing.is_set():
                return
            backoff = FIRST_BACKOFF_S if time.monotonic() - started > STABLE_S else min(backoff * 2, MAX_BACKOFF_S)
            self._began_at = time.monotonic() + backoff
            self._resend_or_fail()
            self.restarts += 1
            await asyncio.sleep(backoff)

    async def _run_once(self) -> None:
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as failing, theirs:
            failing.callback(ours.close)
            self._process = subprocess.Popen(  # noqa: ASYNC220 - fork and exec, no waiting
                [*self.command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=self.environment,
                preexec_fn=die_with_parent(),  # noqa: PLW1509 - uvloop runs in the main thread
            )
            failing.pop_all()
        try:
            reader, self._writer = await asyncio.open_connection(sock=ours)
            while True:
                self._handle(from_engine_decoder.decode(await read_frame(reader)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ready = None
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            if not self._closing.is_set():  # closing ends the process; see `close`
                code = await asyncio.to_thread(_end, self._process)
                logger.error("the %s ended with status %d; starting it again", self.name, code)

    def _handle(self, message: FromEngine) -> None:
        if isinstance(message, Ready):
            self.ready, self.problem = message, None
            self._load_s = time.monotonic() - self._began_at
            parts = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in message.report.items())
            logger.info("the %s is ready on %s (%s)", self.name, message.device, parts)
            self.on_metrics({f"start_{part}_seconds": seconds for part, seconds in message.report.items()})
            self._was_ready = True
            for waiting in self._pending.values():
                self._submit(waiting)
            self._changed.set()
        elif isinstance(message, Stopped):
            self.problem = from_body(message.error)
            self._fail_all(self._down(self.problem))
            self._changed.set()
        elif isinstance(message, Metrics):
            self.on_metrics(message.values)
        else:
            pending = self._pending.get(message.request_id)
            if pending is not None:
                pending.answered = True
                pending.answers.put_nowait(message)

    def _resend_or_fail(self) -> None:
        """After the process died: fail the requests that have an answer, keep the others for the next process."""
        for pending in list(self._pending.values()):
            if not pending.sent:
                continue
            if pending.answered or pending.resends >= MAX_RESENDS:
                pending.answers.put_nowait(
                    EngineDiedError(
                        f"the {self.name} died while it worked on this request; please send it again",
                        retry_after=self.ready_in_s(),
                    )
                )
            else:
                pending.resends += 1
                pending.sent = False

    def _fail_all(self, error: TesseraError) -> None:
        for pending in list(self._pending.values()):
            pending.answers.put_nowait(error)


def is_last(answer: FromEngine | TesseraError) -> bool:
    """Whether an answer is the last one of its request."""
    if isinstance(answer, GeneratedTokens):
        return answer.finish_reason is not None
    if isinstance(answer, Audio | Transcript):
        return answer.last
    return True


def _end(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process whose connection is closed, and kill it if it does not end. Returns its exit status."""
    try:
        return process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def python_module(module: str) -> list[str]:
    """The command that runs a module in this interpreter."""
    return [sys.executable, "-m", module]
