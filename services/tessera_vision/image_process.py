"""The process that decodes a service's images: one request after another, from a socket; Pillow and nothing heavier.

What a picture takes of memory is given back when the process ends, and a picture that crashes or hangs a decoder takes
only this process with it. Knows nothing about models or HTTP.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
from pathlib import Path

import msgspec
from PIL import Image

from tessera.errors import TesseraError
from tessera.wire.image_decoding import DecodedImages, DecodeImages, ImagesRefused
from tessera_vision.images import ImageLimits, check_total, open_data_url, pixels_of

LENGTH = struct.Struct(">I")
"""Length of a message, before it."""


def frame_of(message: DecodeImages | DecodedImages | ImagesRefused) -> bytes:
    """Encode a message with its length before it."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


def receive_into(connection: socket.socket, size: int) -> bytearray:
    """Receive exactly `size` bytes.

    Raises:
        ConnectionError: the other side has closed the connection.
    """
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        count = connection.recv_into(view[at:])
        if count == 0:
            raise ConnectionError("the connection is closed")
        at += count
    return data


def receive_body(connection: socket.socket) -> bytearray:
    """Receive one message's body. Raises what `receive_into` raises."""
    (length,) = LENGTH.unpack(receive_into(connection, LENGTH.size))
    return receive_into(connection, length)


def decode(message: DecodeImages) -> list[Image.Image]:
    """Decode all images of a request; their headers are checked before the first is decoded.

    Raises:
        TesseraError: one of them, or all together, cannot be used.
    """
    limits = ImageLimits(
        count=len(message.images),
        bytes=message.max_bytes,
        pixels=message.max_pixels,
        total_pixels=message.max_total_pixels,
        exact_pixels=message.exact_pixels,
    )
    opened = [open_data_url(one.url, limits, param=one.param) for one in message.images]
    check_total(opened, limits, param="messages")
    decoded = []
    for one in message.images:
        image = pixels_of(opened.pop(0), limits, param=one.param)
        if one.longest_side is not None:
            image.thumbnail((one.longest_side, one.longest_side))
        decoded.append(image)
    return decoded


def answer(connection: socket.socket) -> None:
    """Receive one request and answer it.

    Raises:
        ConnectionError: the service has closed the connection.
    """
    message = msgspec.msgpack.decode(receive_body(connection), type=DecodeImages)
    try:
        images = decode(message)
    except TesseraError as error:
        connection.sendall(frame_of(ImagesRefused(error=error.body())))
        return
    except MemoryError:
        os._exit(1)  # the service says that the process ended
    head = DecodedImages(sizes=[image.size for image in images], resident_bytes=resident_bytes())
    connection.sendall(frame_of(head))
    while images:
        connection.sendall(images.pop(0).tobytes())


def resident_bytes() -> int:
    """Memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Serve the socket whose file descriptor is the first argument, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the service, which ends this process
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        while True:
            try:
                answer(connection)
            except ConnectionError:
                return


if __name__ == "__main__":
    main()
