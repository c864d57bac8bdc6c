"""Renders the results of a benchmark as Markdown. Measures nothing and knows nothing of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
"""One object of the JSON results: an op with its `checks` and `times`, or one of these rows (`bench.run`)."""


def markdown(device: Mapping[str, Any], ops: Sequence[Row]) -> str:
    """The report: the device and its peaks, a table for each op, and the failed checks, if any.

    Args:
        device: name, versions of torch and Triton, and measured peaks, as `bench` writes them.
        ops: results of each op, as `BenchResults.ops` returns them.
    """
    return "\n".join(_lines(device, ops)) + "\n"


def _lines(device: Mapping[str, Any], ops: Sequence[Row]) -> Iterator[str]:
    yield f"# {device['name']}"
    yield ""
    yield f"torch {device['torch']}, Triton {device['triton']}. Written by `python -m tessera_kernels.bench --check`."
    yield "The limit is the longer of bytes / bandwidth and FLOPs / peak, both measured in the same run;"
    yield "caches are cold. × is the peer's time over ours."
    yield ""
    peaks = device["peaks"]
    yield "| measured peak | |"
    yield "|---|---:|"
    yield f"| copy, bytes read and written | {peaks['bandwidth'] / 1e9:,.0f} GB/s |"
    for unit, flops in peaks["flops"].items():
        yield f"| {unit} product of 8,192² matrices | {flops / 1e12:,.0f} TFLOP/s |"
    for op in ops:
        yield from _table(op)
    wrong = [(op["op"], check) for op in ops for check in op["checks"] if not check["ok"]]
    yield ""
    if wrong:
        yield "## Wrong"
        yield ""
        for name, check in wrong:
            yield f"- {name} / {check['name']}: {check['fault']}"
    else:
        count = sum(len(op["checks"]) for op in ops)
        yield f"All {count} results agree with their references within the bounds of their dtypes."


def _table(op: Row) -> Iterator[str]:
    if not op["times"]:
        return
    peers = list(dict.fromkeys(peer for row in op["times"] for peer in row.get("peers", {})))
    yield ""
    yield f"## {op['op']}"
    yield ""
    yield " | ".join(["| case", "µs", "GB/s", "TFLOP/s", "of the limit", "goal", "limited by", *peers]) + " |"
    yield "|---|" + "---:|" * 5 + "---|" + "---:|" * len(peers)
    for row in op["times"]:
        if "fault" in row:
            yield f"| {row['name']} | {row['fault']} |" + " |" * (5 + len(peers))
            continue
        goal = row["goal"]
        cells = [
            row["name"] + ("" if row["captured"] else " (not as a graph)"),
            f"{row['seconds'] * 1e6:,.1f}",
            f"{row['bytes_per_second'] / 1e9:,.0f}",
            f"{row['flops_per_second'] / 1e12:,.1f}",
            f"{row['fraction']:.0%}",
            "" if goal is None else f"{goal:.0%} {'reached' if row['fraction'] >= goal else 'missed'}",
            row["limited_by"],
            *(_peer(row, peer) for peer in peers),
        ]
        yield f"| {' | '.join(cells)} |"


def _peer(row: Row, peer: str) -> str:
    seconds = row["peers"].get(peer)
    return "" if seconds is None else f"{seconds * 1e6:,.1f} ({seconds / row['seconds']:.2f} ×)"
