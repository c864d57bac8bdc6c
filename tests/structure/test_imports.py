"""Who may import whom, read from the syntax trees and from processes that really run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
ROOTS = ("kernels", "shared", "services", "loadtests")
PACKAGES = {path.name: path for root in ROOTS for path in (ROOT / root).iterdir() if (path / "__init__.py").is_file()}
SERVICES = {name for name in PACKAGES if PACKAGES[name].parent.name == "services"}
TORCH = ("torch", "transformers", "diffusers", "triton", "accelerate")
TORCH_FREE = (
    "settings",
    "errors",
    "telemetry",
    "processes",
    "wire",
    "web",
    "jobs",
    "api",
    "hub",
    "suite",
    "cli",
)


def imported(file: Path) -> set[str]:
    """Every module that a file imports anywhere, in functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def allowed(package: str) -> set[str]:
    """Which of our packages a package of ours may import."""
    if package == "tessera_kernels":
        return {"tessera_kernels"}
    if package == "tessera":
        return {"tessera", "tessera_kernels"}
    if package == "tessera_bench":
        return {"tessera_bench", "tessera"}
    return {package, "tessera", "tessera_kernels"}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_imports_point_one_way(package: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in PACKAGES[package].rglob("*.py")
        for name in imported(file)
        if name.split(".")[0] in PACKAGES and name.split(".")[0] not in allowed(package)
    ]
    assert wrong == []


def test_the_load_generator_knows_the_wire_and_nothing_else_of_ours() -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in PACKAGES["tessera_bench"].rglob("*.py")
        for name in imported(file)
        if name.startswith("tessera.") and not name.startswith("tessera.wire")
    ]
    assert wrong == []


@pytest.mark.parametrize("part", TORCH_FREE)
def test_the_torch_free_parts_name_no_torch(part: str) -> None:
    place = PACKAGES["tessera"] / part
    files = list(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imported(file)
        if name.split(".")[0] in {*TORCH, "numpy"}
    ]
    assert files
    assert wrong == []


def modules_after(statement: str) -> set[str]:
    """Top-level names in `sys.modules` of a new process that has run `statement`."""
    script = f"{statement}\nimport sys\nprint('\\n'.join({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def importing(*directories: Path) -> str:
    """A statement that imports every module below some directories, `__main__` modules aside."""
    names = []
    for directory in directories:
        root = directory if directory.is_dir() else directory.parent
        files = sorted(directory.rglob("*.py")) if directory.is_dir() else [directory]
        while (root / "__init__.py").is_file():
            root = root.parent
        for file in files:
            if file.stem != "__main__":
                dotted = ".".join(file.relative_to(root).with_suffix("").parts)
                names.append(dotted.removesuffix(".__init__"))
    return f"import importlib\nfor name in {names}: importlib.import_module(name)"


def test_a_process_with_every_torch_free_module_of_the_gateway_has_no_torch() -> None:
    places = [PACKAGES["tessera"] / part for part in TORCH_FREE]
    places = [place if place.is_dir() else place.with_suffix(".py") for place in places]
    loaded = modules_after(importing(*places, PACKAGES["tessera_gateway"]))
    assert "tessera_gateway" in loaded
    assert loaded.isdisjoint(TORCH)


@pytest.mark.parametrize("service", ["tessera_text", "tessera_video", "tessera_speech"])
def test_the_http_process_of_a_service_has_no_torch(service: str) -> None:
    assert modules_after(f"import {service}.app").isdisjoint(TORCH)


WITHOUT_NUMPY = """
import importlib, sys
for name in ("numpy", "numba", "transformers", "diffusers", "msgspec"):
    sys.modules[name] = None  # importing it raises
import torch
from tessera_kernels.bench import __main__ as bench
from tessera_kernels.bench.cases import cases_of, measured_ops, results
for op in measured_ops():
    for part in ("triton", "launches"):
        importlib.import_module(f"tessera_kernels.{op}.{part}")
    torch.manual_seed(0)
    case = next(case for case in cases_of(op) if case.tiny)
    assert results(case.exact(*case.make(torch.device("cpu")))), op
print(bench.main(["--check"]))
"""


def test_the_benchmark_of_kernels_needs_torch_and_triton_alone() -> None:
    """On a machine without NumPy: every op's cases are made and computed by its reference, kernels are imported."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMPY], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    if not torch.cuda.is_available():
        assert done.stdout.splitlines()[-1] == "2", "it cannot run: there is no GPU, and that is all that it lacks"


def test_the_command_line_answers_before_it_has_loaded_anything() -> None:
    loaded = modules_after("from tessera.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass")
    assert loaded.isdisjoint({*TORCH, "numpy", "litestar", "aiohttp", "celery", "redis", "openai"})


def test_every_service_has_the_same_seats() -> None:
    for service in SERVICES - {"tessera_gateway"}:
        missing = [
            seat
            for seat in ("__main__", "app", "routes", "pipeline", "worker")
            if not (PACKAGES[service] / f"{seat}.py").is_file() and not (PACKAGES[service] / seat).is_dir()
        ]
        assert missing == [], service
