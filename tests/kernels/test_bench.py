"""The benchmark command: every op is right in the interpreter, and a run that was stopped continues."""

from __future__ import annotations

import json
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tessera_kernels.bench import (
    __main__ as bench,
)
from tessera_kernels.bench import (
    measure,
)
from tessera_kernels.bench import (
    report as bench_report,
)
from tessera_kernels.bench import (
    results as bench_parts,
)
from tessera_kernels.bench import (
    run as bench_run,
)
from tessera_kernels.bench.cases import BenchCase, cases_of, measured_ops, relative_rms, unequal
from tessera_kernels.bench.measure import Timing
from tessera_kernels.roofline import Cost, Peaks, fraction, least_seconds, limited_by

PEAKS = Peaks(bandwidth=100.0, flops={"bf16": 1000.0})


@pytest.mark.slow
@pytest.mark.parametrize("op", measured_ops())
def test_every_op_is_right_on_tiny_shapes(op, capsys):
    assert bench.main(["--check", "--interpret", "--ops", op]) == bench.RIGHT, capsys.readouterr().out


def test_every_op_with_kernels_has_all_its_files_and_is_measured():
    folder = Path(bench.__file__).parents[1]
    with_kernels = {path.parent.name for name in ("triton", "launches") for path in folder.glob(f"*/{name}.py")}
    rooms = ("__init__", "reference", "triton", "launches", "cost", "bench")
    missing = [f"{op}/{room}.py" for op in with_kernels for room in rooms if not (folder / op / f"{room}.py").is_file()]
    assert missing == []
    assert with_kernels == set(measured_ops())


@pytest.mark.parametrize("op", measured_ops())
def test_cases_have_distinct_names_and_costs(op):
    cases = cases_of(op)
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert any(case.tiny for case in cases)
    assert all(case.cost.moved > 0 and case.cost.unit in {"bf16", "fp16", "fp8", "int8", "fp32"} for case in cases)


def test_without_a_gpu_the_command_names_what_works(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main(["--check"]) == bench.IMPOSSIBLE
    assert "There is no GPU here. `--check --interpret`" in capsys.readouterr().out
    assert bench.main(["--ops", "nothing"]) == bench.IMPOSSIBLE
    assert "There is no op nothing; there are " in capsys.readouterr().out


class Here:
    """A pool of processes that runs tasks in this process."""

    def __init__(self, *_arguments, **_options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, function, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future

    def shutdown(self, **_):
        pass


@pytest.fixture
def gpu(monkeypatch):
    """A stand-in for a GPU on the CPU, with two ops that run torch functions; counts what is run."""
    ran = []

    def case(op: str, name: str, wrong: float = 0.0, *, tiny: bool = False) -> BenchCase:
        def run(x):
            ran.append((op, name))
            return x * 2 + wrong

        peers = {"torch": lambda x: x + x, "none": lambda x: x.nothing}
        cost = Cost(flops=8, moved=64)
        return BenchCase(name, lambda _: [torch.randn(8)], run, lambda x: x * 2, 0.1, cost, peers, tiny=tiny, goal=0.5)

    def clocked(call):
        call()
        return Timing(seconds=1.28, captured=True)

    state = SimpleNamespace(ran=ran, cases={"good": [case("good", "a"), case("good", "b", tiny=True)], "bad": []})
    state.case = case
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.setattr(bench, "measured_ops", lambda: list(state.cases))
    monkeypatch.setattr(bench, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(bench, "peaks", lambda: PEAKS)
    monkeypatch.setattr(bench_run, "cases_of", lambda op: state.cases[op])
    monkeypatch.setattr(bench_run, "timed", clocked)
    monkeypatch.setattr(bench_run.RunMode, "device", torch.device("cpu"))
    return state


def test_a_second_run_continues_where_the_first_stopped(gpu, tmp_path, capsys):
    gpu.cases["bad"] = [gpu.case("bad", "c")]
    arguments = ["--check", "--out", str(tmp_path)]
    assert bench.main([*arguments, "--seconds", "-1"]) == bench.UNFINISHED
    assert "before good, bad: run it again" in capsys.readouterr().out
    assert gpu.ran == []
    assert bench.main([*arguments, "--ops", "good"]) == bench.RIGHT
    assert set(gpu.ran) == {("good", "a"), ("good", "b")}
    gpu.ran.clear()
    assert bench.main(arguments) == bench.RIGHT
    assert set(gpu.ran) == {("bad", "c")}
    gpu.ran.clear()
    assert bench.main([*arguments, "--again"]) == bench.RIGHT
    assert len(set(gpu.ran)) == 3


def test_results_of_other_code_are_measured_again(gpu, tmp_path, monkeypatch):
    arguments = ["--check", "--out", str(tmp_path), "--ops", "good"]
    bench.main(arguments)
    gpu.ran.clear()
    monkeypatch.setattr(bench_parts, "code_key", lambda op: f"another {op}")
    bench.main(arguments)
    assert gpu.ran


def test_wrong_results_and_failures_are_reported_and_tried_again(gpu, tmp_path, capsys):
    def broken(_):
        raise RuntimeError("an illegal address")

    gpu.cases["bad"] = [gpu.case("bad", "c", wrong=1.0)]
    gpu.cases["worse"] = [BenchCase("d", lambda _: [torch.ones(1)], broken, broken, 0.1, Cost(1, 1))]
    arguments = ["--check", "--out", str(tmp_path)]
    for _ in range(2):
        gpu.ran.clear()
        assert bench.main(arguments) == bench.WRONG
        said = capsys.readouterr().out
        assert "WRONG c: an error of" in said
        assert "WRONG d: RuntimeError: an illegal address" in said
        assert ("bad", "c") in gpu.ran
    assert ("good", "a") not in gpu.ran


@pytest.mark.usefixtures("gpu")
def test_an_op_that_cannot_be_imported_is_one_fault_among_others():
    way = bench_run.RunMode(interpret=True, deadline=float("inf"))
    assert bench_run.checks_of("gone", way) == [{"name": "gone", "ok": False, "fault": "KeyError: 'gone'"}]
    assert bench_run.times_of("gone", way, PEAKS) == [{"name": "gone", "goal": None, "fault": "KeyError: 'gone'"}]


def test_the_report_has_fractions_of_the_limit_goals_and_peers(gpu, tmp_path):
    assert bench.main(["--check", "--out", str(tmp_path)]) == bench.RIGHT
    table = (tmp_path / "some-gpu.md").read_text()
    # 64 bytes take 0.64 s at 100 bytes/s; the run took 1.28 s.
    assert "| a | 1,280,000.0 | 0 | 0.0 | 50% | 50% reached | bytes | 1,280,000.0 (1.00 ×) |  |" in table
    assert "All 2 results agree" in table
    found = json.loads((tmp_path / "some-gpu.json").read_text())
    assert found["device"]["peaks"]["bandwidth"] == 100.0
    (row,) = found["ops"][0]["times"]
    assert (row["fraction"], row["peers"]) == (0.5, {"torch": 1.28, "none": None})


def test_the_report_names_wrong_results():
    device = {"name": "x", "torch": "2", "triton": "3", "peaks": {"bandwidth": 1e12, "flops": {"bf16": 1e15}}}
    rows = [{"name": "c", "ok": False, "fault": "an error of 1"}]
    text = bench_report.markdown(device, [{"op": "o", "checks": rows, "times": [{"name": "c", "fault": "died"}]}])
    assert "- o / c: an error of 1" in text
    assert "| c | died |" in text
    assert "| copy, bytes read and written | 1,000 GB/s |" in text


class FakeCuda:
    """The part of `torch.cuda` that a measurement uses, with a clock that each run advances by its seconds."""

    def __init__(self, captures: bool):
        self.captures, self.now, self.runs = captures, 0.0, 0
        self.CUDAGraph = lambda: SimpleNamespace(replay=lambda: self.run(2.0))

    def run(self, seconds: float) -> None:
        self.now += seconds
        self.runs += 1

    @contextmanager
    def graph(self, _):
        if not self.captures:
            raise RuntimeError("operation not permitted when stream is capturing")
        yield

    def Event(self, enable_timing):
        assert enable_timing
        event = SimpleNamespace(at=0.0)
        event.record = lambda: setattr(event, "at", self.now)
        event.elapsed_time = lambda end: (end.at - event.at) * 1000
        return event

    def synchronize(self):
        pass

    def empty_cache(self):
        pass

    def mem_get_info(self):
        return 8000, 8000


@pytest.fixture
def clocked(monkeypatch):
    """`measure` with a torch that creates tensors on the CPU and has the stand-in for CUDA."""

    def with_cuda(*, captures: bool) -> FakeCuda:
        cuda = FakeCuda(captures)

        class Torch:
            def __getattr__(self, name):
                found = getattr(torch, name)
                makes = name in {"empty", "randn", "randint", "ones"}
                return (lambda *shape, **how: found(*shape, **how | {"device": "cpu"})) if makes else found

        fake = Torch()
        fake.cuda = cuda
        monkeypatch.setattr(measure, "torch", fake)
        monkeypatch.setattr(measure, "FLUSH_BYTES", 16)
        monkeypatch.setattr(measure, "PEAK_SIDE", 16)
        return cuda

    return with_cuda


def test_a_run_is_timed_as_a_graph_if_it_can_be_captured(clocked):
    cuda = clocked(captures=True)
    assert measure.timed(lambda: cuda.run(5.0)) == Timing(2.0, captured=True)
    cuda = clocked(captures=False)
    assert measure.timed(lambda: cuda.run(5.0)) == Timing(5.0, captured=False)
    assert cuda.runs == 3 + 3 + measure.MIN_RUNS


def test_short_runs_are_repeated(clocked):
    cuda = clocked(captures=False)
    measure.timed(lambda: cuda.run(1e-9))
    assert cuda.runs == 3 + 3 + measure.MAX_RUNS


def test_peaks_come_from_a_copy_and_matrix_products(clocked):
    cuda = clocked(captures=True)
    found = measure.peaks()
    assert found.bandwidth == 2 * 1000 / 2.0
    assert found.flops["bf16"] == 2 * 16**3 / 2.0
    assert {"bf16", "fp16", "fp32"} <= set(found.flops)
    assert cuda.runs > 0


def test_the_limit_is_the_longer_of_bytes_and_flops():
    assert least_seconds(Cost(flops=500, moved=200, unit="bf16"), PEAKS) == 2.0
    assert least_seconds(Cost(flops=5000, moved=200, unit="bf16"), PEAKS) == 5.0
    assert fraction(Cost(flops=5000, moved=200, unit="bf16"), PEAKS, 10.0) == 0.5
    assert limited_by(Cost(flops=5000, moved=200, unit="bf16"), PEAKS) == "bf16"
    assert limited_by(Cost(flops=5000, moved=200, unit="int8"), PEAKS) == "bytes"


def test_errors_are_relative_and_infinite_if_only_one_is_finite():
    exact = torch.tensor([3.0, 4.0])
    assert relative_rms(exact, exact) == 0.0
    assert relative_rms(exact * 1.1, exact) == pytest.approx(0.1)
    assert relative_rms(torch.tensor([3.0, float("nan")]), exact) == float("inf")
    assert relative_rms(torch.zeros(2), torch.zeros(2)) == 0.0
    assert relative_rms(torch.ones(2), torch.zeros(2)) == float("inf")
    assert relative_rms(torch.ones(2), torch.ones(3)) == float("inf")
    assert unequal(torch.tensor([1, 2]), torch.tensor([1, 3])) == 0.5
