"""Measures what one request and one chunk cost the gateway, beside a bare relay and LiteLLM's proxy, in one run.

All stand before the same mock upstream, one after the other. What counts is the processor time of the process, because
request rates drown in what the mock and the client can do.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from tessera_bench import streaming
from tessera_bench.front_door import cpu
from tessera_bench.front_door.load import KEY, ask
from tessera_bench.suite import Suite
from tessera_bench.workload import environment, make_workload, ratio

REQUESTS, CONNECTIONS = 3000, 8
STREAMS, CHUNKS, TICK_S = 16, 300, 0.01
START_LIMIT_S = 600.0
SERVER_CORE, OTHER_CORE = 0, 1


@dataclass(frozen=True)
class Door:
    """A server that stands before the upstream.

    Attributes:
        name: what the table calls it.
        command: makes its command for its port and the upstream's.
        variables: environment variables for its port and the upstream's.
        slowness: by how much fewer requests are sent to it than to others.
    """

    name: str
    command: Callable[[int, int], Sequence[str]]
    variables: Callable[[int, int], dict[str, str]] = lambda _, __: {}
    slowness: int = 1


@dataclass(frozen=True)
class DoorCost:
    """Microseconds of processor time."""

    request: float
    chunk: float


def gateway(name: str, checkout: Path | None = None) -> Door:
    """The gateway of this checkout, or of another one."""

    def variables(port: int, upstream_port: int) -> dict[str, str]:
        values = {
            "TESSERA_GATEWAY__PORT": str(port),
            "TESSERA_GATEWAY__SERVICES": "",
            "TESSERA_GATEWAY__API_KEYS": KEY,
            "TESSERA_GATEWAY__UPSTREAMS": json.dumps([{"name": "mock", "url": f"http://127.0.0.1:{upstream_port}"}]),
        }
        if checkout is not None:
            values["PYTHONPATH"] = os.pathsep.join(
                str(checkout.absolute() / root) for root in ("kernels", "shared", "services")
            )
        return values

    return Door(name, lambda _, __: [sys.executable, "-m", "tessera_gateway"], variables)


def bare_relay() -> Door:
    """asyncio's streams, which copy bytes."""
    module = "tessera_bench.front_door.bare_relay"
    return Door("bare asyncio relay", lambda port, upstream: [sys.executable, "-m", module, str(port), str(upstream)])


def litellm(folder: Path) -> Door:
    """LiteLLM's proxy with one worker, installed into an environment of its own."""
    python = environment("litellm", ["litellm[proxy]"])

    def command(port: int, upstream_port: int) -> list[str]:
        parameters = {"model": "openai/mock", "api_base": f"http://127.0.0.1:{upstream_port}/v1", "api_key": "x"}
        config = {"model_list": [{"model_name": "mock", "litellm_params": parameters}]}
        (folder / "litellm.yaml").write_text(json.dumps(config))  # JSON is YAML
        options = ["--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)]
        return [str(python.parent / "litellm"), *options, "--num_workers", "1"]

    # It does not start without a key.
    variables = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY}
    return Door("LiteLLM proxy", command, lambda _, __: variables, slowness=10)


def run(*, before: Path | None, peers: Sequence[str], rounds: int, real: bool, models: Path | None) -> None:
    """Measure and print a table.

    Args:
        before: another checkout whose gateway is measured too; None for none.
        peers: `relay` and `litellm`, or fewer.
        rounds: how often everything is measured; the median counts.
        real: whether to measure the gateway's share of a suite with real streams too.
        models: models directory of that suite; None takes this machine's.
    """
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as made:
        folder = Path(made)
        doors = [gateway("gateway")]
        if before is not None:
            doors.append(gateway(f"gateway of {before.name}", before))
        if "relay" in peers:
            doors.append(bare_relay())
        if "litellm" in peers:
            doors.append(litellm(folder))
        costs: dict[str, list[DoorCost]] = {door.name: [] for door in doors}
        with _mock() as upstream_port:
            for turn in range(rounds):
                # The order alternates, so that a change of load on a shared machine favours nobody.
                for door in doors[:: 1 if turn % 2 == 0 else -1]:
                    costs[door.name].append(_measured(door, upstream_port, folder))
        print(f"front door: µs of processor time, {rounds} rounds, medians; {STREAMS} streams of {CHUNKS} chunks")
        print(f"  {'':28} {'a request':>12} {'a chunk':>12}   gateway ÷ it")
        ours = _median(costs["gateway"])
        for name, found in costs.items():
            cost = _median(found)
            compared = f"{ratio(ours.request, cost.request)}, {ratio(ours.chunk, cost.chunk)}"
            print(f"  {name:28} {cost.request:12.1f} {cost.chunk:12.1f}   {compared if name != 'gateway' else ''}")
        if real:
            with Suite(folder / "suite", only="text,gateway", models=models) as suite:
                uvloop.run(_share(suite))


def _median(costs: Sequence[DoorCost]) -> DoorCost:
    return DoorCost(statistics.median(one.request for one in costs), statistics.median(one.chunk for one in costs))


@contextmanager
def _mock() -> Iterator[int]:
    (port,) = _free_ports(1)
    module = "tessera_bench.front_door.mock_upstream"
    with _process([sys.executable, "-m", module, str(port), str(TICK_S)], {}) as process:
        _until_ready(process, f"http://127.0.0.1:{port}/v1/models", "")
        cpu.pin(process.pid, OTHER_CORE)
        yield port


def _measured(door: Door, upstream_port: int, folder: Path) -> DoorCost:
    (port,) = _free_ports(1)
    with ExitStack() as held:
        said = held.enter_context((folder / "said.txt").open("wb"))
        variables = {"TESSERA_SUITE__DATA": str(folder), **door.variables(port, upstream_port)}
        process = held.enter_context(_process(door.command(port, upstream_port), variables, said.fileno()))
        _until_ready(process, f"http://127.0.0.1:{port}/v1/models", '"mock"')
        cpu.pin(process.pid, SERVER_CORE)
        cpu.pin(os.getpid(), OTHER_CORE)
        many = REQUESTS // door.slowness
        uvloop.run(ask(port, requests=many // 10, connections=CONNECTIONS))
        before = cpu.seconds(process.pid)
        uvloop.run(ask(port, requests=many, connections=CONNECTIONS))
        request = (cpu.seconds(process.pid) - before) / many
        uvloop.run(ask(port, requests=2, connections=2, tokens=10))
        before = cpu.seconds(process.pid)
        uvloop.run(ask(port, requests=STREAMS, connections=STREAMS, tokens=CHUNKS))
        chunk = (cpu.seconds(process.pid) - before - STREAMS * request) / (STREAMS * CHUNKS)
    return DoorCost(request * 1e6, chunk * 1e6)


async def _share(suite: Suite) -> None:
    """Print the gateway's share of the processor time of a suite that generates."""
    model = "smollm2-135m-instruct"
    workload = make_workload(suite.models / model, streams=STREAMS, words=150, tokens=128)
    _until_ready(None, suite.url("gateway") + "/v1/models", model)
    pids = cpu.family(suite.pid)
    async with streaming.client() as session:
        await streaming.at_once(session, suite.url("gateway"), model, workload.first, 4, {"ignore_eos": True})
        before = {pid: cpu.seconds(pid) for pid in pids}
        for questions in workload.rounds:
            await streaming.at_once(session, suite.url("gateway"), model, questions, 128, {"ignore_eos": True})
        used = {pid: cpu.seconds(pid) - before[pid] for pid in pids}
    gateways = sum(seconds for pid, seconds in used.items() if "tessera_gateway" in cpu.command(pid))
    share = gateways / sum(used.values())
    print(f"  {STREAMS} real streams of {model}: the gateway takes {share:.1%} of the suite's processor time")


@contextmanager
def _process(
    command: Sequence[str], variables: dict[str, str], output: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    process = subprocess.Popen(command, env={**kept, **variables}, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_ready(process: subprocess.Popen[bytes] | None, address: str, says: str) -> None:
    request = urllib.request.Request(address, headers={"authorization": f"Bearer {KEY}"})  # noqa: S310 - ours
    ends = time.monotonic() + START_LIMIT_S
    while (process is None or process.poll() is None) and time.monotonic() < ends:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
                if says in answer.read().decode():
                    return
        except OSError:
            pass  # not listening yet
        time.sleep(0.1)
    raise SystemExit(f"{address} does not answer")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
