"""One name for one thing: no two classes of the packages share a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORT_ROOTS = ("kernels", "shared", "services", "loadtests")


def classes(root: Path) -> Iterator[tuple[str, str]]:
    """The name of every class below a folder, nested ones included, with the file that defines it."""
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield node.name, str(path)


def shared_names(roots: list[Path]) -> dict[str, list[str]]:
    """Names that several classes have, with the files that define them."""
    places: dict[str, list[str]] = defaultdict(list)
    for root in roots:
        for name, path in classes(root):
            places[name].append(path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def test_two_classes_never_share_a_name() -> None:
    assert shared_names([ROOT / root for root in IMPORT_ROOTS]) == {}


def test_a_shared_name_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Part: ...\n")
    (tmp_path / "two.py").write_text("class Other:\n    class Part: ...\n")
    assert list(shared_names([tmp_path])) == ["Part"]
