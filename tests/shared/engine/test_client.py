"""The line to an engine process: answers reach who asked, cancels arrive, a death is repaired and told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.processes import alive
from tests.waiting import until, until_async

from tessera.engine.client import EngineClient
from tessera.engine.connection import frame
from tessera.errors import EngineDiedError, InternalError, InvalidRequestError, ModelLoadError, UnavailableError
from tessera.wire.engine import Generate, Sampling

ECHO = [sys.executable, str(Path(__file__).with_name("echo_engine.py"))]
CRASH, WAIT, REFUSE, STUMBLE = 66, 77, 88, 99


@contextlib.asynccontextmanager
async def echo(folder: Path, **environment: str):
    """A running client, and the latest metrics."""
    metrics: dict[str, float] = {}
    client = EngineClient(
        ECHO,
        name="echo engine",
        on_metrics=metrics.update,
        environment={**os.environ, "ECHO_FOLDER": str(folder), **environment},
    )
    await client.start()
    try:
        yield client, metrics
    finally:
        await client.close()


async def say(client: EngineClient, name: str, tokens: list[int]) -> list[int]:
    message = Generate(request_id=name, token_ids=tokens, sampling=Sampling(max_tokens=1))
    async with contextlib.aclosing(client.request(message)) as answers:
        return [token async for answer in answers for token in answer.token_ids]


def test_concurrent_requests_get_their_own_answers(tmp_path):
    async def main() -> None:
        async with echo(tmp_path) as (client, _):
            await client.wait_ready(20)
            said = await asyncio.gather(*(say(client, str(n), [n, n + 1, n + 2]) for n in range(1, 30)))
            assert said == [[n, n + 1, n + 2] for n in range(1, 30)]

    asyncio.run(main())


def test_what_the_engine_refuses_comes_back_as_the_same_error(tmp_path):
    async def main() -> None:
        async with echo(tmp_path) as (client, _):
            await client.wait_ready(20)
            with pytest.raises(InvalidRequestError, match="not to be said") as caught:
                await say(client, "r", [REFUSE])
            assert caught.value.param == "prompt"
            assert await say(client, "s", [1]) == [1]

    asyncio.run(main())


def test_a_fault_on_arrival_ends_that_request_and_not_the_engine(tmp_path):
    async def main() -> None:
        async with echo(tmp_path) as (client, _):
            await client.wait_ready(20)
            first = client.pid
            with pytest.raises(InternalError) as caught:
                await say(client, "r", [STUMBLE])
            assert "nobody thought of this" not in caught.value.message
            assert await say(client, "s", [1]) == [1]
            assert client.pid == first

    asyncio.run(main())


def test_leaving_early_cancels_in_the_engine(tmp_path):
    async def main() -> None:
        async with echo(tmp_path) as (client, metrics):
            await client.wait_ready(20)
            # Long after it may go on, so that a busy machine has time to bring the cancel.
            token_ids = [1, WAIT, *[2] * 20_000]
            message = Generate(request_id="r", token_ids=token_ids, sampling=Sampling(max_tokens=1))
            async with contextlib.aclosing(client.request(message)) as answers:
                async for _ in answers:
                    break
            (tmp_path / "go").touch()
            await until_async(lambda: metrics.get("cancelled") == 1)

    asyncio.run(main())


def test_before_it_is_ready_requests_are_told_to_come_back(tmp_path):
    async def main() -> None:
        async with echo(tmp_path) as (client, _):
            with pytest.raises(UnavailableError, match="still loading"):
                await say(client, "r", [1])

    asyncio.run(main())


def test_a_request_that_had_no_answer_yet_is_run_again_after_a_crash(tmp_path):
    async def main() -> None:
        async with echo(tmp_path) as (client, _):
            await client.wait_ready(20)
            first = client.pid
            assert await say(client, "r", [CRASH, 5]) == [CRASH, 5]
            assert client.pid != first
            assert client.restarts == 1

    asyncio.run(main())


def test_a_request_that_had_begun_ends_with_a_clear_error_and_the_next_one_works(tmp_path):
    async def main() -> None:
        async with echo(tmp_path) as (client, _):
            await client.wait_ready(20)
            message = Generate(request_id="r", token_ids=[1, WAIT, 2], sampling=Sampling(max_tokens=1))
            async with contextlib.aclosing(client.request(message)) as answers:
                assert (await anext(answers)).token_ids == [1]
                os.kill(client.pid, signal.SIGKILL)
                with pytest.raises(EngineDiedError, match="died while it worked on this request") as died:
                    await anext(answers)
                assert died.value.retry_after
            (tmp_path / "go").touch()
            await client.wait_ready(20)
            assert await say(client, "s", [4]) == [4]

    asyncio.run(main())


def test_an_engine_that_is_away_is_expected_back_after_its_last_start_took(tmp_path):
    async def main() -> None:
        async with echo(tmp_path) as (client, _):
            await client.wait_ready(20)
            client._load_s = 42.0  # as a large model takes
            client.ready = None
            client._began_at = time.monotonic() - 12
            assert client.ready_in_s() == pytest.approx(30, abs=1)
            client._was_ready = False
            with pytest.raises(UnavailableError) as starting:
                await say(client, "early", [1])
            assert starting.value.retry_after == pytest.approx(30, abs=1)
            client._load_s = None
            assert client.ready_in_s() == pytest.approx(12, abs=1), "as long again as it has taken"

    asyncio.run(main())


def test_requests_made_while_it_restarts_wait_for_it(tmp_path):
    async def main() -> None:
        async with echo(tmp_path) as (client, _):
            await client.wait_ready(20)
            os.kill(client.pid, signal.SIGKILL)
            await until_async(lambda: client.ready is None)
            assert await say(client, "r", [1, 2]) == [1, 2]

    asyncio.run(main())


def test_an_engine_that_cannot_load_says_why(tmp_path):
    async def main() -> None:
        async with echo(tmp_path, ECHO_BROKEN="1") as (client, _):
            with pytest.raises(Exception, match="the echo is broken; mend it"):
                await client.wait_ready(20)
            assert client.state() == "failed"
            with pytest.raises(UnavailableError, match="the echo is broken; mend it"):
                await say(client, "r", [1])

    asyncio.run(main())


def test_waiting_for_it_has_an_end(tmp_path):
    async def main() -> None:
        async with echo(tmp_path) as (client, _):
            with pytest.raises(UnavailableError, match="still loading"):
                await client.wait_ready(0.001)

    asyncio.run(main())


@pytest.mark.slow
def test_an_engine_that_speaks_nonsense_is_started_again(tmp_path):
    async def main() -> None:
        async with echo(tmp_path, ECHO_NONSENSE="1") as (client, _):
            await client.wait_ready(20)
            assert client.restarts >= 1
            assert await say(client, "r", [1]) == [1]

    asyncio.run(main())


def test_closing_an_engine_that_ends_slowly_starts_no_other(tmp_path):
    async def main() -> None:
        async with echo(tmp_path, ECHO_LINGERS="1.2") as (client, _):
            await client.wait_ready(20)
            first = client._process
            await client.close()
            assert client._process is first
            with pytest.raises(UnavailableError, match="shutting down"):
                await say(client, "r", [1])

    asyncio.run(main())


def test_closing_leaves_no_process(tmp_path):
    async def main() -> int:
        async with echo(tmp_path) as (client, _):
            await client.wait_ready(20)
            return client.pid

    assert not alive(asyncio.run(main()))


def test_the_engine_dies_with_a_service_that_is_killed(tmp_path):
    script = f"""
import asyncio, os, sys
from tessera.engine.client import EngineClient
async def main():
    client = EngineClient({ECHO!r}, name="echo engine")
    await client.start()
    await client.wait_ready(20)
    print(client.pid, flush=True)
    await asyncio.Event().wait()  # until it is killed
asyncio.run(main())
"""
    service = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    engine = int(service.stdout.readline())
    service.kill()
    service.wait()
    until(lambda: not alive(engine), what="the end of the engine of a killed service")


def test_garbage_on_the_line_ends_the_engine_and_a_new_one_serves(tmp_path):
    async def main() -> None:
        async with echo(tmp_path) as (client, _):
            await client.wait_ready(20)
            first = client.pid
            client._writer.write(b"\x00\x00\x00\x05hello")
            await until_async(lambda: client.pid not in {first, None} and client.ready is not None)
            assert await say(client, "r", [1]) == [1]

    asyncio.run(main())


def test_a_load_error_keeps_its_kind_across_the_line(tmp_path):
    async def main() -> None:
        async with echo(tmp_path, ECHO_BROKEN="1") as (client, _):
            with pytest.raises(ModelLoadError):
                await client.wait_ready(20)

    asyncio.run(main())


def test_frames_have_their_length_in_front():
    message = Generate(request_id="r", token_ids=[1], sampling=Sampling(max_tokens=1))
    data = frame(message)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
