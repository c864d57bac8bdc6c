"""Floors inside `tessera`: which room may import which. A room imports rooms on lower floors only, never its own floor.

Imports that exist for annotations alone (`if TYPE_CHECKING`) count like any other, and so do imports inside functions.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMPORT_ROOTS = ("kernels", "shared", "services", "loadtests")
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "telemetry", "processes"),
    ("settings", "wire", "cache", "tokenizer", "device"),
    ("web", "hub"),
    ("engine", "jobs", "models"),
    ("api", "language", "protocols", "starters", "sequence", "diffusion", "encoders"),
    ("speech", "suite", "demo"),
    ("cli",),
)
"""Rooms of `tessera`, the ground floor first."""
COMPUTING = frozenset({"device", "models", "sequence", "diffusion", "encoders", "speech", "starters"})
"""Rooms that import torch."""
TORCH_FREE = frozenset(room for floor in FLOORS for room in floor) - COMPUTING
"""Rooms whose modules never import torch: the gateway's image and the HTTP side of every service have none."""
MOST_FILES = 20
"""Modules flat in one folder above which a room is missing."""
TORCH = frozenset({"torch", "transformers", "diffusers", "triton", "accelerate"})


@cache
def modules() -> dict[str, Path]:
    """Every module of the import roots, by its dotted name."""
    found = {}
    for root in IMPORT_ROOTS:
        for path in sorted((ROOT / root).rglob("*.py")):
            parts = path.relative_to(ROOT / root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imported(path: Path) -> frozenset[str]:
    """The modules of ours that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name in modules()}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names |= {full} & modules().keys() or {node.module} & modules().keys()
    return frozenset(names)


def room_of(module: str) -> str | None:
    """The room of a module inside `tessera`; None for the package itself and for everything outside."""
    package, _, rest = module.partition(".")
    return rest.split(".")[0] if package == "tessera" and rest else None


def test_every_room_has_a_floor_and_every_floor_its_rooms() -> None:
    rooms = {room for module in modules() if (room := room_of(module)) is not None}
    drawn = Counter(room for floor in FLOORS for room in floor)
    assert set(drawn) == rooms
    assert max(drawn.values()) == 1


def test_rooms_import_lower_floors_only() -> None:
    level = {room: number for number, floor in enumerate(FLOORS) for room in floor}
    upwards = [
        f"{module} imports {other}"
        for module, path in modules().items()
        if (room := room_of(module)) is not None
        for other in imported(path)
        if (there := room_of(other)) is not None and there != room and level[there] >= level[room]
    ]
    assert upwards == []


def circles(graph: dict[str, frozenset[str]]) -> Iterator[list[str]]:
    """The strongly connected components with more than one module (Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> Iterator[list[str]]:
        order[module] = low[module] = len(order)
        stack.append(module)
        for other in graph[module]:
            if other not in order:
                yield from visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], order[other])
        if low[module] == order[module]:
            at = stack.index(module)
            found = stack[at:]
            del stack[at:]
            if len(found) > 1:
                yield sorted(found)

    for module in graph:
        if module not in order:
            yield from visit(module)


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: imported(path) - {module} for module, path in modules().items()}
    assert list(circles(graph)) == []


def test_a_circle_would_be_found() -> None:
    graph = {"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"a"}), "d": frozenset({"a"})}
    assert list(circles(graph)) == [["a", "b", "c"]]


@pytest.mark.parametrize("room", sorted(TORCH_FREE))
def test_torch_free_rooms_never_import_torch(room: str) -> None:
    named = [
        f"{path.relative_to(ROOT)} imports {name}"
        for module, path in modules().items()
        if room_of(module) == room
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        if name.split(".")[0] in TORCH
    ]
    assert named == []


def test_no_folder_is_crowded() -> None:
    flat = Counter(path.parent.relative_to(ROOT) for path in modules().values() if path.name != "__init__.py")
    assert {str(folder): count for folder, count in flat.items() if count > MOST_FILES} == {}


def test_names_are_imported_from_where_they_are_defined() -> None:
    """No shims: a module does not hand on what it only imports, unless its package lists it in `__all__`."""
    handed_on = []
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.module not in modules():
                continue
            handed_on += [
                f"{module} imports {alias.name} from {node.module}"
                for alias in node.names
                if f"{node.module}.{alias.name}" not in modules()
                and alias.name in brought(modules()[node.module or ""])
            ]
    assert handed_on == []


@cache
def brought(path: Path) -> frozenset[str]:
    """Names that a module imports and does not list in `__all__`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            names -= set(ast.literal_eval(node.value))
    return frozenset(names)
