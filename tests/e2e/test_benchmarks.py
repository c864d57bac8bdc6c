"""The benchmarks run and print their ratios. What the numbers are is for `make bench` on a quiet machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tessera_bench.workload import ratio


def test_a_ratio_near_nothing_is_not_called_nothing():
    assert [ratio(1, 0.4), ratio(0.5, 1), ratio(0.012, 4), ratio(0.0123, 4)] == ["2.50", "0.50", "0.003", "0.0031"]


def printed_by(*arguments: str, models: Path | None = None) -> str:
    """What a benchmark prints that must succeed."""
    chosen = [] if models is None else ["--models", str(models)]
    command = [sys.executable, "-m", "tessera_bench", *chosen, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.e2e
@pytest.mark.xdist_group("suite")
def test_the_text_benchmark_measures_streams_gateway_and_transformers(models_dir):
    printed = printed_by("text", "--streams", "2", "--tokens", "4", "--words", "8", models=models_dir)
    ratios = re.findall(r"÷.*: +([0-9.]+)$", printed, re.MULTILINE)
    assert len(ratios) == 6, printed
    assert all(float(ratio) > 0 for ratio in ratios), printed


@pytest.mark.e2e
@pytest.mark.xdist_group("suite")
def test_the_video_benchmark_measures_jobs_and_diffusers(models_dir):
    printed = printed_by("video", "--jobs", "2", "--steps", "2", models=models_dir)
    ratios = re.findall(r"÷.*: +([0-9.]+)$", printed, re.MULTILINE)
    assert len(ratios) == 3, printed
    assert all(float(ratio) > 0 for ratio in ratios), printed


@pytest.mark.e2e
@pytest.mark.xdist_group("suite")
def test_the_quality_benchmark_scores_one_text_in_every_way(models_dir):
    printed = printed_by("quality", "--tokens", "100", models=models_dir)
    ratios = [float(ratio) for ratio in re.findall(r"÷ as stored: +([0-9.]+)", printed)]
    assert len(ratios) == 6, printed
    assert ratios[0] == 1
    assert all(0.9 < ratio < 1.1 for ratio in ratios), printed


@pytest.mark.e2e
@pytest.mark.xdist_group("suite")
def test_the_engine_benchmark_runs_on_shapes_without_weights():
    command = [sys.executable, "-m", "tessera_bench.engine", "--dummy", "tiny", "--streams", "3"]
    done = subprocess.run(
        [*command, "--input", "20", "--output", "6"], capture_output=True, text=True, timeout=240, env=os.environ
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.search(r"fraction of the limit: ([0-9.]+)", done.stdout)[1]) >= 0
    shares = [int(share) for share in re.findall(r"(\d+) %", done.stdout)]
    assert 95 <= sum(shares) <= 105, done.stdout


@pytest.mark.e2e
@pytest.mark.xdist_group("suite")
def test_the_gateway_benchmark_measures_it_beside_a_relay():
    printed = printed_by("gateway", "--peers", "relay", "--rounds", "1", "--no-suite")
    (costs,) = re.findall(r"^  bare asyncio relay +([0-9.]+) +([0-9.]+) +([0-9.]+), ([0-9.]+)$", printed, re.MULTILINE)
    assert all(float(cost) > 0 for cost in costs), printed


@pytest.mark.e2e
@pytest.mark.xdist_group("suite")
def test_the_fairness_benchmark_measures_a_newcomer_beside_a_crowd(models_dir):
    printed = printed_by("fairness", "--streams", "12", "--rounds", "2", models=models_dir)
    assert "beside 12 streams of another (12 at once)" in printed, printed
    (times,) = re.findall(r"beside / alone: +([0-9.]+)", printed)
    assert float(times) > 0, printed
