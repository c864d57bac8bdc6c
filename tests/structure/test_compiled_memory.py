"""Memory that compiled code makes is not used by address: Numba gives an array back behind the last use of its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "kernels" / "tessera_kernels"
MAKES = {"empty", "zeros", "ones", "full", "empty_like", "zeros_like"}


def by_address(source: str) -> Iterator[str]:
    """Names of a function that are bound to a new array, and whose address is taken."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        made = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and any(_makes(part) for part in ast.walk(node.value))
            for place in node.targets
            for target in ast.walk(place)
            if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and node.attr == "ctypes":
                used = {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
                yield from (f"{function.name}: {name}" for name in used & made)


def _makes(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MAKES


@pytest.mark.parametrize(
    "path",
    sorted([*(KERNELS / "int8_decoder").glob("*.py"), *(KERNELS / "cpu").glob("*.py")]),
    ids=lambda path: path.stem,
)
def test_no_address_is_taken_of_an_array_that_a_function_made(path: Path) -> None:
    assert list(by_address(path.read_text())) == []


def test_it_would_be_found() -> None:
    bad = "def f(n):\n    totals = np.empty(n + 1)\n    at = totals[1:].ctypes.data\n    g(at)\n"
    assert list(by_address(bad)) == ["f: totals"]
