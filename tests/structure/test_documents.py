"""Documents lead somewhere: every link of a Markdown file exists, and so does every file that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("compose", "k8s", "kernels", "loadtests", "services", "shared", "tests")
DOCUMENTS = [ROOT / "README.md", *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md")))]
LINK = re.compile(r"\]\((?P<target>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
NAMED = re.compile(r"`(?P<path>(?:[\w.-]+/)+[\w-]+\.(?:py|md|toml|yaml))`")
"""A file with its folder in backticks: a path from the root, or the end of one."""
FRONT_PAGE_LINES = 150


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as forges make them."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(document: Path) -> Iterator[str]:
    for match in LINK.finditer(document.read_text(encoding="utf-8")):
        target = match["target"]
        if "://" in target:
            continue
        path = (document.parent / target).resolve() if target else document
        if not path.exists():
            yield target
        elif match["anchor"] and path.suffix == ".md" and match["anchor"] not in anchors(path):
            yield f"{target}#{match['anchor']}"


def missing_files(document: Path) -> Iterator[str]:
    everything = [path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    for match in NAMED.finditer(document.read_text(encoding="utf-8")):
        named = match["path"]
        if not (ROOT / named).exists() and not any(path.endswith(f"/{named}") for path in everything):
            yield named


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_and_every_named_file_exists(document: Path) -> None:
    assert list(broken_links(document)) == []
    if document.parent.name != "guides":  # which name the files that a reader is going to write
        assert list(missing_files(document)) == []


def test_the_front_page_is_a_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= FRONT_PAGE_LINES
