"""Every kernel compiles for every chip, in processes without the interpreter, and the gate finds faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tessera_kernels.chips import CHIPS, chip_of
from tessera_kernels.gate import __main__ as gate
from tessera_kernels.gate.launch import Launch
from tessera_kernels.gate.progress import GateProgress


def compile_gate(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the gate in a process without the interpreter, with an empty cache."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-m", "tessera_kernels.gate.__main__", *arguments, "--json"],
        capture_output=True,
        text=True,
        env=environment | {"TRITON_CACHE_DIR": str(cache)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("target", CHIPS)
def test_every_kernel_compiles(target, tmp_path):
    done = compile_gate(tmp_path, "--targets", target, "--sample")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert {result["op"] for result in results} == set(gate.ops()), done.stderr[-2000:]
    assert [result for result in results if result["faults"]] == []
    assert done.returncode == 0
    assert any(tmp_path.iterdir())


MULTIPLIES = Launch("product", None, {}, {}, matrix=True)


@pytest.mark.parametrize(
    ("launch", "target", "built", "fault"),
    [
        (MULTIPLIES, "sm_80", {"mix": {"ld": 3}}, "without matrix instructions"),
        (MULTIPLIES, "sm_90", {"mix": {"mma": 3}}, "without wgmma"),
        (Launch("few rows", None, {}, {}, matrix=True, narrow="16 rows"), "sm_90", {"mix": {"mma": 3}}, None),
        (MULTIPLIES, "sm_90", {"mix": {"wgmma": 3}}, None),
        (MULTIPLIES, "sm_80", {"mix": {"mma": 3}, "spilled": 8}, "spills 8 bytes"),
        (Launch("candidate", None, {}, {}, tuned=False), "sm_80", {"spilled": 8}, None),
        (Launch("large", None, {}, {}), "sm_89", {"shared": 100 * 1024}, "sm_89 has 101376"),
        (Launch("large", None, {}, {}), "sm_80", {"shared": 100 * 1024}, None),
    ],
)
def test_the_gate_finds_faults(launch, target, built, fault):
    found = list(gate._faults(launch, CHIPS[target], gate.CompiledLaunch("op", launch.name, target, **built)))
    assert (fault in found[0]) if fault else not found


def test_launches_are_compiled_for_the_chips_that_use_them():
    def chips(launch):
        return [name for name, chip in CHIPS.items() if gate.serves(launch, chip)]

    assert chips(Launch("any", None, {}, {})) == list(CHIPS)
    assert chips(Launch("float8", None, {}, {}, minimum=89)) == ["sm_89", "sm_90", "sm_100", "gfx942"]
    assert chips(Launch("not AMD's", None, {}, {}, amd=False)) == ["sm_80", "sm_89", "sm_90", "sm_100"]
    assert chips(Launch("large tiles", None, {}, {}, only=frozenset({"sm_90"}))) == ["sm_90"]


@pytest.mark.slow
def test_a_bound_on_registers_reaches_the_compiler(tmp_path):
    """Launches that ptxas spilled to keep occupancy (four of 3,258) do not spill under a higher bound on registers."""
    chosen = ["--ops", "weight_only_linear", "--targets", "sm_80,sm_89"]
    for name in ("dense bf16 T64 N64 of 64 in 8 parts", "mxfp4 bf16 T128 N128 of 8192"):
        done = compile_gate(tmp_path, *chosen, "--only", name)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        assert {(result["target"], result["spilled"]) for result in results} == {("sm_80", 0), ("sm_89", 0)}
        assert all("registers" in result["name"] and not result["faults"] for result in results)


def test_results_are_valid_until_the_code_changes(tmp_path):
    path, code = tmp_path / "kept.jsonl", {"op": "one", "other": "one"}
    kept = GateProgress(path, code.__getitem__)
    good = [gate.CompiledLaunch(op, "a", "sm_80", 40, 0, 2048, {"mma": 4}, 0.5) for op in code]
    bad = gate.CompiledLaunch("op", "a", "sm_90", faults=("spills 16 bytes a thread",))
    for built in (*good, bad):
        kept.add(built)
    with path.open("a") as file:
        file.write('{"key": "one", "op": "op", "na')  # killed within a line
    code["other"] = "two"
    again = GateProgress(path, code.__getitem__)
    assert again["op", "a", "sm_80"] == good[0]
    assert ("other", "a", "sm_80") not in again
    assert ("op", "a", "sm_90") not in again, "what failed is compiled again"
    assert ("op", "a", "sm_80") not in GateProgress(None, code.__getitem__)


def test_the_table_shows_what_failed():
    good = gate.CompiledLaunch("op", "a", "sm_80", 40, 0, 2048, {"mma": 4, "ld": 2})
    bad = gate.CompiledLaunch("op", "a", "sm_90", 255, 16, 0, {}, 1.0, ("spills 16 bytes a thread",))
    text = gate.table([good, bad], ["sm_80", "sm_90", "gfx942"])
    assert (
        "| a | 40 r · 2 K · 4 mma, 2 ld | 255 r · 0 K · **spills 16 B** · **FAILS** spills 16 bytes a thread |  |"
        in text
    )


def test_unknown_ops_and_targets_are_named(capsys):
    with pytest.raises(SystemExit):
        gate.main(["--targets", "sm_70"])
    assert "sm_70" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no op 'attentive'"):
        gate.launches_of("attentive")


def test_without_a_gpu_the_chip_is_hopper():
    assert chip_of(torch.device("cpu")).name == "sm_90"
