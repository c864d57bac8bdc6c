"""Benchmark of text generation over HTTP: many streams against one, gateway against service, ours against peers.

All numbers come from one run on one machine with one model; read the ratios.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tessera_bench import streaming
from tessera_bench.peers import PEERS
from tessera_bench.streaming import Round
from tessera_bench.suite import Suite
from tessera_bench.workload import Speeds, Workload, fresh_workload, make_workload, mean_speeds, ratio

OURS = "Tessera, through the gateway (HTTP)"


async def run(suite: Suite, *, model: str, streams: int, tokens: int, words: int, peers: Sequence[str]) -> None:
    """Measure, and print a table with ratios.

    Args:
        suite: a running suite with text and gateway.
        model: name of the language model.
        streams: number of streams that run at once.
        tokens: tokens that each stream generates, no fewer.
        words: words of each prompt.
        peers: names in `PEERS`, which are measured while the suite is idle.
    """
    workload = make_workload(suite.models / model, streams=streams, words=words, tokens=tokens)
    async with streaming.client() as session:

        async def ask(part: str, questions: Sequence[str], count: int) -> Round:
            return await streaming.at_once(session, suite.url(part), model, questions, count, {"ignore_eos": True})

        await ask("text", workload.first, 4)
        first = await _measured(ask, workload, 0)
        print(f"text: {model}, prompts of {words} words, {tokens} tokens each, greedy")
        print(f"  {'':44} {'1 stream':>10} {f'{streams} streams':>12} {'TTFT cold':>10} {'warm':>8}   (long prompt)")
        _line(OURS, first.speeds)
        print(f"    1 stream: {_detail(first.one)}; {streams} streams: {_detail(first.many)}")
        print(f"    {streams} streams, gateway ÷ service: {ratio(first.many.rate, first.direct.rate)}")
        print(f"    {streams} streams ÷ 1 stream: {ratio(first.many.rate, first.one.rate)}")
        for number, name in enumerate(peers, start=1):
            label, measure = PEERS[name]
            theirs = await asyncio.to_thread(measure, workload)
            _line(label, theirs)
            # Ours runs before and after the peer, so that a change of load on a shared machine favours neither.
            last = await _measured(ask, workload, number)
            ours = mean_speeds([first.speeds, last.speeds])
            _line(f"{OURS}, again", last.speeds)
            first = last
            for what, value, peer in (
                ("1 stream", ours.one, theirs.one),
                (f"{streams} streams", ours.many, theirs.many),
                ("TTFT cold", ours.ttft_cold, theirs.ttft_cold),
                ("TTFT warm", ours.ttft_warm, theirs.ttft_warm),
            ):
                print(f"    ours before and after ÷ {name}, {what}: {ratio(value, peer)}")


@dataclass(frozen=True)
class _Measured:
    one: Round
    many: Round
    direct: Round
    speeds: Speeds


async def _measured(
    ask: Callable[[str, Sequence[str], int], Awaitable[Round]], workload: Workload, time: int
) -> _Measured:
    """Measure our suite with questions that it has not seen; `time` counts these measurements."""
    asked = workload if time == 0 else fresh_workload(workload, 2 * time)
    one = await ask("gateway", [asked.single], workload.tokens)
    # The order alternates, for the same reason as above.
    ways = [("gateway", asked.rounds), ("text", fresh_workload(workload, 2 * time + 1).rounds)]
    rounds: dict[str, list[Round]] = {"gateway": [], "text": []}
    for turn in range(len(workload.rounds)):
        for part, questions in ways[:: 1 if turn % 2 == 0 else -1]:
            rounds[part].append(await ask(part, questions[turn], workload.tokens))
    many, direct = (streaming.joined(rounds[part]) for part in ("gateway", "text"))
    cold = await ask("gateway", [asked.long_question], 2)
    warm = await ask("gateway", [asked.long_question], 2)
    speeds = Speeds(one.rate, many.rate, cold.streams[0].ttft, warm.streams[0].ttft)
    return _Measured(one, many, direct, speeds)


def _line(name: str, speeds: Speeds) -> None:
    print(
        f"  {name:<44} {speeds.one:6.1f} t/s {speeds.many:8.1f} t/s {speeds.ttft_cold:8.2f} s {speeds.ttft_warm:6.2f} s"
    )


def _detail(measured: Round) -> str:
    ttft = statistics.median(stream.ttft for stream in measured.streams) * 1000
    tpot = statistics.median(stream.tpot for stream in measured.streams) * 1000
    return f"TTFT {ttft:.0f} ms, TPOT {tpot:.1f} ms (medians)"
