"""Processes that decode images: the same pixels, limits before any work, and no harm from what hangs or is huge."""

from __future__ import annotations

import asyncio
import base64
import functools
import io
import os
import signal
import struct
import time
import zlib
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter
from tests.processes import alive
from tests.waiting import until

from tessera.engine.fair_gate import FairGate
from tessera.errors import InvalidRequestError, OverloadedError, PayloadTooLargeError, TesseraError, UnavailableError
from tessera.errors import UnprocessableError as TooSlowError
from tessera.settings.sequence import SequenceEngineSettings
from tessera.settings.vision import VisionSettings
from tessera.wire.image_decoding import EncodedImage
from tessera_vision.image_processes import RECYCLE_BYTES, ImageProcesses
from tessera_vision.images import ImageLimits, decode_data_url


def in_a_loop(test):
    """Run a test that is a coroutine."""

    @functools.wraps(test)
    def run(**arguments):
        asyncio.run(test(**arguments))

    return run


LIMITS = ImageLimits(count=8, bytes=20_000_000, pixels=33_554_432)


def data_url(image: Image.Image, form: str = "PNG", **options) -> str:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def picture(seed: int, width: int = 80, height: int = 50) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def smooth(width: int, height: int) -> Image.Image:
    """A large picture whose file is small."""
    return picture(1, 40, 30).resize((width, height)).filter(ImageFilter.BoxBlur(2))


def encoded(*urls: str, longest_side: int | None = None) -> list[EncodedImage]:
    return [
        EncodedImage(url=url, param=f"messages[0].content[{at}].image_url.url", longest_side=longest_side)
        for at, url in enumerate(urls)
    ]


def claims(width: int, height: int) -> str:
    """A small PNG file whose header claims a size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


@asynccontextmanager
async def processes(**settings):
    made = ImageProcesses(VisionSettings(**({"image_processes": 1} | settings)))
    made.start()
    try:
        yield made
    finally:
        pids = made.pids
        made.close()
        until(lambda: not any(map(alive, pids)), what="the processes to end")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@in_a_loop
async def test_ordinary_images_have_the_same_pixels_to_the_bit():
    exif = Image.Exif()
    exif[0x0112] = 6
    urls = [
        *(data_url(picture(seed), form) for seed, form in enumerate(("PNG", "JPEG", "WEBP", "GIF", "BMP"))),
        data_url(picture(7), exif=exif),
        data_url(picture(8).convert("RGBA").rotate(20)),
        data_url(picture(9).convert("L")),
    ]
    async with processes() as decoders:
        for side in (None, 33):
            found = await decoders.decode(encoded(*urls, longest_side=side))
            for url, image in zip(urls, found, strict=True):
                expected = decode_data_url(url, LIMITS, param="p")
                if side:
                    expected.thumbnail((side, side))
                assert (image.mode, image.size, image.tobytes()) == ("RGB", expected.size, expected.tobytes())


@in_a_loop
async def test_a_photo_of_twelve_megapixels_is_decoded_as_it_is():
    url = data_url(smooth(4000, 3000), "JPEG")
    async with processes() as decoders:
        (image,) = await decoders.decode(encoded(url))
    assert image.tobytes() == decode_data_url(url, LIMITS, param="p").tobytes()


@in_a_loop
async def test_eight_pictures_of_thirty_three_megapixels_are_refused_by_their_headers():
    async with processes() as decoders:
        await decoders.decode(encoded(data_url(picture(1))))
        before = resident(decoders.pids[0])
        began = time.monotonic()
        with pytest.raises(PayloadTooLargeError, match="8 images have 268352000 pixels together; at most 67108864"):
            await decoders.decode(encoded(*[claims(7000, 4792) for _ in range(8)]))
        assert time.monotonic() - began < 2
        assert resident(decoders.pids[0]) - before < 16 << 20, "nothing was decoded"
        assert decoders.replaced == 0


@pytest.mark.slow
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@in_a_loop
async def test_a_huge_picture_is_made_smaller_and_its_memory_is_given_back(form):
    large = smooth(7000, 4700)
    url = data_url(large, form)
    async with processes() as decoders:
        ours = resident(os.getpid())
        (image,) = await decoders.decode(encoded(url))
        grown = resident(os.getpid()) - ours
        assert 0.8 * 16_777_216 < image.width * image.height <= 16_777_216
        assert image.width / image.height == pytest.approx(7000 / 4700, rel=0.01)
        near = np.asarray(image, dtype=float) - np.asarray(large.resize(image.size), dtype=float)
        assert np.abs(near).mean() < 3
        assert grown < 150 << 20, "here is the small picture, received and as an image"
        until(lambda: decoders.pids and resident(decoders.pids[0]) < RECYCLE_BYTES, what="a small process")


@in_a_loop
async def test_a_killed_process_is_said_and_replaced():
    async with processes() as decoders:
        os.kill(decoders.pids[0], signal.SIGSTOP)
        asked = asyncio.create_task(decoders.decode(encoded(data_url(picture(1)))))
        await asyncio.sleep(0.1)  # it has been asked; a stopped process cannot say so
        os.kill(decoders.pids[0], signal.SIGKILL)
        with pytest.raises(UnavailableError, match="ended while it worked on this request"):
            await asked
        (image,) = await decoders.decode(encoded(data_url(picture(1))))
        assert image.size == (80, 50)


@in_a_loop
async def test_a_process_that_died_while_it_was_idle_costs_nobody_an_answer():
    async with processes() as decoders:
        pid = decoders.pids[0]
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), what="the process to end")
        assert len(await decoders.decode(encoded(data_url(picture(1))))) == 1


@in_a_loop
async def test_a_process_that_hangs_is_given_up_and_replaced():
    async with processes(image_timeout_s=0.5) as decoders:
        hung = decoders.pids[0]
        os.kill(hung, signal.SIGSTOP)
        with pytest.raises(TooSlowError, match=r"takes longer than 0.5 s"):
            await decoders.decode(encoded(data_url(picture(1))))
        assert not alive(hung)
        until(lambda: decoders.pids, what="another process")


@in_a_loop
async def test_when_the_client_leaves_its_process_ends():
    async with processes() as decoders:
        busy = decoders.pids[0]
        os.kill(busy, signal.SIGSTOP)
        asked = asyncio.create_task(decoders.decode(encoded(data_url(picture(1)))))
        await asyncio.sleep(0.1)  # it has been asked
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert not alive(busy)
        assert len(await decoders.decode(encoded(data_url(picture(1))))) == 1


@in_a_loop
async def test_a_refused_picture_costs_no_process():
    async with processes() as decoders:
        pids = decoders.pids
        with pytest.raises(InvalidRequestError, match="damaged") as caught:
            await decoders.decode(encoded(data_url(picture(1)), claims(100, 100)))
        assert caught.value.param == "messages[0].content[1].image_url.url"
        assert isinstance(caught.value, TesseraError)
        assert decoders.pids == pids


async def passing(gate: FairGate, tenant: str, order: list[str], go: asyncio.Event) -> None:
    async with gate.turn(tenant):
        order.append(tenant)
        await go.wait()


async def started(gate: FairGate, tenants: list[str], order: list[str], go: asyncio.Event) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(passing(gate, tenant, order, go)) for tenant in tenants]
    await asyncio.sleep(0)
    return tasks


@in_a_loop
async def test_tenants_take_turns_at_the_gate():
    gate, order, go = FairGate(1, 100), [], asyncio.Event()
    tasks = await started(gate, [*["many"] * 6, "new", "other"], order, go)
    go.set()
    await asyncio.gather(*tasks)
    assert order.index("new") <= 2
    assert order.index("other") <= 3
    assert len(order) == 8


@in_a_loop
async def test_a_full_gate_still_takes_who_has_less_than_a_share():
    gate, order, go = FairGate(1, 4), [], asyncio.Event()
    tasks = await started(gate, ["many"] * 5, order, go)
    with pytest.raises(OverloadedError):
        await passing(gate, "many", order, go)
    tasks += await started(gate, ["new"] * 2, order, go)
    with pytest.raises(OverloadedError):
        await passing(gate, "new", order, go)
    go.set()
    await asyncio.gather(*tasks)
    assert order.count("new") == 2


@in_a_loop
async def test_who_is_refused_at_the_gate_is_told_how_long_the_images_before_it_take():
    now = 0.0
    gate = FairGate(1, 4, lambda: now)
    turns = [gate.turn("a", work=3) for _ in range(6)]
    entered = [asyncio.ensure_future(turn.__aenter__()) for turn in turns[:5]]
    await entered[0]
    now = 6.0
    await turns[0].__aexit__(None, None, None)
    entered.append(asyncio.ensure_future(turns[5].__aenter__()))
    await entered[1]
    with pytest.raises(OverloadedError, match="about 30 s") as refused:
        await gate.turn("a").__aenter__()
    assert refused.value.retry_after == pytest.approx(30), "5 requests of 3 images, 2 s an image"
    for task in entered[2:]:
        task.cancel()
    await asyncio.gather(*entered, return_exceptions=True)


@in_a_loop
async def test_who_leaves_the_gate_while_it_waits_takes_nobodys_place():
    gate, order, go = FairGate(1, 10), [], asyncio.Event()
    tasks = await started(gate, ["a", "b", "c", "b"], order, go)
    tasks[1].cancel()
    go.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(order) == ["a", "b", "c"]
    async with asyncio.timeout(1), gate.turn("d"):
        pass


def test_the_settings_hold_two_of_the_largest_images():
    settings = VisionSettings(engine=SequenceEngineSettings())
    assert settings.max_request_pixels == 2 * settings.max_image_pixels
