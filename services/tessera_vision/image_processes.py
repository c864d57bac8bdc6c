"""The service's side of the processes that decode images: starts them, asks them, replaces them.

A process that hangs, dies, or holds much memory after a large picture is ended, and the next request gets another. When
the client of a request leaves, the process that decodes its images is ended as well. Knows nothing about models.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from PIL import Image

from tessera.errors import TesseraError, UnavailableError, UnprocessableError, from_body
from tessera.processes import die_with_parent
from tessera.settings.vision import VisionSettings
from tessera.wire.image_decoding import DecodedImages, DecodeImages, EncodedImage, ImagesRefused
from tessera_vision.image_process import frame_of, receive_body, receive_into

logger = logging.getLogger(__name__)

RECYCLE_BYTES = 256 * 1024 * 1024
"""Memory of a process above which it is replaced: one that decoded photos of 12 megapixels holds half of it."""
COMMAND = (sys.executable, "-m", "tessera_vision.image_process")


def request_of(images: list[EncodedImage], settings: VisionSettings) -> DecodeImages:
    """Make the message that asks for the pixels of images, within the limits of the settings."""
    return DecodeImages(
        images=images,
        max_bytes=settings.max_image_bytes,
        max_pixels=settings.max_image_pixels,
        max_total_pixels=settings.max_request_pixels,
        exact_pixels=settings.exact_image_pixels,
    )


class ImageProcess:
    """One process and its socket. Its methods block, but for `end`.

    Args:
        command: starts it; the socket's file descriptor is appended.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent(),  # noqa: PLW1509 - the event loop runs in the main thread
            )

    @property
    def pid(self) -> int:
        """The id of the operating system's process, for its memory and for logs."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is still running, so that it can be asked."""
        return self._process.poll() is None

    def ask(self, message: DecodeImages) -> tuple[list[Image.Image], int]:
        """Have images decoded.

        Returns:
            The images, and the memory that the process holds.

        Raises:
            TesseraError: an image cannot be used.
            OSError: the process has ended.
        """
        self._connection.sendall(frame_of(message))
        head: DecodedImages | ImagesRefused = msgspec.msgpack.decode(
            receive_body(self._connection),
            type=DecodedImages | ImagesRefused,
        )
        if isinstance(head, ImagesRefused):
            raise from_body(head.error)
        images = [
            Image.frombuffer("RGB", size, receive_into(self._connection, size[0] * size[1] * 3), "raw", "RGB", 0, 1)
            for size in head.sizes
        ]
        return images, head.resident_bytes

    def end(self) -> None:
        """Kill it, if it runs, and wait for it. A thread that waits in `ask` gets an `OSError`."""
        self._process.kill()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._process.wait()


class ImageProcesses:
    """All processes that decode a service's images. Used from one event loop.

    Args:
        settings: limits of images, their number and their time.
        start: makes a process; for tests.
    """

    def __init__(
        self, settings: VisionSettings, start: Callable[[], ImageProcess] = lambda: ImageProcess(COMMAND)
    ) -> None:
        self._settings = settings
        self._start = start
        self._places = asyncio.Semaphore(settings.image_processes)
        self._idle: list[ImageProcess] = []
        self._busy: set[ImageProcess] = set()
        self._threads = ThreadPoolExecutor(settings.image_processes, "image-process")
        self.replaced = 0
        """Processes that were ended before the service was."""

    def start(self) -> None:
        """Start one process, so that the first image does not wait for it."""
        self._idle.append(self._start())

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that run."""
        return [process.pid for process in (*self._idle, *self._busy) if process.alive]

    async def decode(self, images: list[EncodedImage]) -> list[Image.Image]:
        """Decode the images of one request to RGB.

        Raises:
            TesseraError: an image cannot be used, or the process hung or died.
        """
        message = request_of(images, self._settings)
        async with self._places:
            process = self._take()
            try:
                found, resident = await asyncio.wait_for(
                    asyncio.get_running_loop().run_in_executor(self._threads, _ask, process, message),
                    self._settings.image_timeout_s,
                )
            except TimeoutError:
                raise UnprocessableError(
                    f"decoding the images takes longer than {self._settings.image_timeout_s:g} s; send fewer or "
                    "smaller ones",
                    param="messages",
                ) from None
            except OSError as error:
                logger.warning("a process that decodes images ended: %s", error)
                raise UnavailableError(
                    "the process that decodes images ended while it worked on this request; please send it again"
                ) from error
            else:
                if isinstance(found, Exception):
                    self._give_back(process, 0)
                    raise found
                self._give_back(process, resident)
                return found
            finally:
                if process in self._busy:  # it hung or died, or the client left
                    self._drop(process)

    def _take(self) -> ImageProcess:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                break
            self.replaced += 1
            process.end()
        else:
            process = self._start()
        self._busy.add(process)
        return process

    def _give_back(self, process: ImageProcess, resident: int) -> None:
        if resident > RECYCLE_BYTES:
            self._drop(process)
        else:
            self._busy.remove(process)
            self._idle.append(process)

    def _drop(self, process: ImageProcess) -> None:
        self._busy.discard(process)
        self.replaced += 1
        process.end()
        if not self._idle:
            self._idle.append(self._start())

    def close(self) -> None:
        """End all processes; requests that wait for one fail."""
        for process in (*self._idle, *self._busy):
            process.end()
        self._idle.clear()
        self._busy.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _ask(process: ImageProcess, message: DecodeImages) -> tuple[list[Image.Image] | Exception, int]:
    """Ask, and return a refusal rather than raise it, so that it is told from a process that failed."""
    try:
        return process.ask(message)
    except TesseraError as refusal:
        return refusal, 0
