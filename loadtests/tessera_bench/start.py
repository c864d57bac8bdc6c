"""Benchmark of the start: seconds from `tessera up` to ready, first with models still to make, then with them there."""

from __future__ import annotations

from pathlib import Path

from tessera_bench.suite import Suite


def run(folder: Path) -> None:
    """Start the whole suite twice, and print the seconds and where they went."""
    print("start: seconds from `tessera up` to ready")
    seconds = []
    for name in ("first (models are fetched and made)", "second"):
        with Suite(folder / "data", models=folder / "models") as suite:
            seconds.append(suite.seconds)
            print(f"  {name:<36} {suite.seconds:6.1f} s")
            for line in suite.said().splitlines():
                if line.startswith("where the time went"):
                    print(f"    {line}")
    print(f"  second ÷ first: {seconds[1] / seconds[0]:.2f}")
