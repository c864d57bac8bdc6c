"""The store of models: finds a model's directory by name or path, and makes a starter's directory when it is missing.

A model is named by a starter's name, a path to a directory (of Transformers, or a Whisper of CTranslate2) or a GGUF
file, or `hf:owner/name` (see `huggingface`).
Starters are entry points of the group `tessera.starters`: a name and a function `build(directory, report) -> Card` that
fills an empty directory. A directory is made under a lock in a temporary place and then renamed, so that several
processes may ask at once and a killed one leaves no incomplete directory. A stopped download resumes.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from tessera.errors import ModelLoadError
from tessera.hub import ctranslate2_directory, gguf_file, huggingface
from tessera.hub.cards import CARD_FILE, read_card, verify, write_card
from tessera.hub.gguf_file import is_gguf
from tessera.wire.models import Card

Report = Callable[[str], None]
"""Called with a short line of progress."""
Build = Callable[[Path, Report], Card]
"""Fills an empty directory with a model and returns its card."""
GROUP = "tessera.starters"
"""Entry point group in which starters are registered."""
CHECKED_FILE = ".checked.json"
"""File in a model's directory with the sizes and times of the weight files that were verified last."""


class ModelDirectory(msgspec.Struct, frozen=True):
    """A model on this machine: its directory and its card."""

    path: Path
    card: Card


def starters() -> list[str]:
    """Names of all starters that are installed."""
    return sorted(point.name for point in entry_points(group=GROUP))


def is_path(model: str) -> bool:
    """Whether a setting names a directory rather than a starter or a model of a hub."""
    return (not is_hub(model) and "/" in model) or model.startswith((".", "~"))


def is_hub(model: str) -> bool:
    """Whether a setting names a model of a hub."""
    return model.startswith(huggingface.PREFIX)


def name_of(model: str) -> str:
    """Return the name that requests use for a model that a setting names."""
    if is_hub(model):
        return huggingface.parse(model).repository
    if is_gguf(model):
        return Path(model).stem
    return model.rstrip("/").rsplit("/", 1)[-1] if is_path(model) else model


def locate(model: str, models_dir: Path) -> ModelDirectory | None:
    """Return where a model is, or None when it has not been made yet. Does not write, does not check weights.

    Raises:
        ModelLoadError: a path that is no model directory, or a name that is neither a starter nor in `models_dir`.
    """
    if _is_converted(model):
        path = models_dir / _folder_of(model)
        return ModelDirectory(path, read_card(path)) if (path / CARD_FILE).is_file() else None
    if is_path(model):
        path = Path(model).expanduser().absolute()
        return ModelDirectory(path, read_card(path))
    if is_hub(model):
        path = models_dir / huggingface.parse(model).folder
        return ModelDirectory(path, read_card(path)) if (path / CARD_FILE).is_file() else None
    path = models_dir / model
    if (path / CARD_FILE).is_file() or (path.is_dir() and model not in starters()):
        return ModelDirectory(path, read_card(path))
    if model not in starters():
        raise ModelLoadError(
            f"there is no model {model!r}: it is neither a path, nor hf:owner/name, nor a folder in {models_dir}, "
            f"nor one of the starters {', '.join(starters())}"
        )
    return None


def ensure(model: str, models_dir: Path, report: Report = lambda _: None, *, force: bool = False) -> ModelDirectory:
    """Return where a model is; makes it first when it is missing, or when `force` is set.

    Raises:
        ModelLoadError: see `locate`; or the starter cannot be made (no network, no disk), with the remedy.
    """
    found = None if force and (_is_converted(model) or not is_path(model)) else locate(model, models_dir)
    if found is not None:
        return found
    with _locked(models_dir, _folder_of(model)):
        found = None if force else locate(model, models_dir)
        if found is None:
            found = _download(model, models_dir, report) if is_hub(model) else _build(model, models_dir, report)
        return found


def _folder_of(model: str) -> str:
    if is_hub(model):
        return huggingface.parse(model).folder
    if is_gguf(model):
        return gguf_file.folder_of(Path(model).expanduser())
    return ctranslate2_directory.folder_of(Path(model).expanduser()) if _is_converted(model) else model


def _is_converted(model: str) -> bool:
    """Whether a setting names a file or directory of another format, which is converted once."""
    return is_gguf(model) or (is_path(model) and ctranslate2_directory.is_ctranslate2(Path(model).expanduser()))


def check(found: ModelDirectory, *, every_byte: bool = False) -> None:
    """Verify the checksums of a model's weights; see `tessera.hub.cards.verify`.

    Files whose size and modification time have not changed since the last check are not read again, unless `every_byte`
    is set: hashing gigabytes at each start would take longer than loading them.
    """
    if not found.card.sha256:  # a user's own directory without a card has no checksums
        return
    stamp = found.path / CHECKED_FILE
    now = _fingerprint(found)
    if not every_byte and now is not None and stamp.is_file() and stamp.read_bytes() == now:
        return
    verify(found.path, found.card)
    if now is not None:
        with contextlib.suppress(OSError):  # a read-only directory is verified again at the next start
            stamp.write_bytes(now)


def _fingerprint(found: ModelDirectory) -> bytes | None:
    """Return name, checksum, size and modification time of every weight file as JSON; None when a file is missing."""
    try:
        stats = {name: (found.path / name).stat() for name in found.card.sha256}
    except OSError:
        return None
    entries = {
        name: [found.card.sha256[name], stat.st_size, stat.st_mtime_ns, stat.st_ino] for name, stat in stats.items()
    }
    return msgspec.json.encode(entries, order="deterministic")


def _build(model: str, models_dir: Path, report: Report) -> ModelDirectory:
    folder = _folder_of(model)
    for abandoned in models_dir.glob(f".{folder}.part-*"):  # left by a killed process, since we hold the lock
        shutil.rmtree(abandoned, ignore_errors=True)
    build = _converter(model) if _is_converted(model) else _starter(model)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder}.part-", dir=models_dir))
    try:
        try:
            card = write_card(partial, build(partial, report))
        except OSError as error:
            raise ModelLoadError(f"cannot make the model {model!r} in {models_dir}: {error}") from error
        replace(partial, models_dir / folder)
        return ModelDirectory(models_dir / folder, card)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _starter(model: str) -> Build:
    points = [point for point in entry_points(group=GROUP) if point.name == model]
    if not points:
        raise ModelLoadError(f"there is no starter {model!r}; there are {', '.join(starters())}")
    build: Build = points[0].load()
    return build


def _converter(model: str) -> Build:
    convert = gguf_file.convert if is_gguf(model) else ctranslate2_directory.convert
    return lambda directory, report: convert(Path(model).expanduser(), directory, report)


def _download(model: str, models_dir: Path, report: Report) -> ModelDirectory:
    reference = huggingface.parse(model)
    partial = models_dir / f".{reference.folder}.partial"  # kept when the download fails, so that the next try resumes
    try:
        partial.mkdir(exist_ok=True)
        card = write_card(partial, huggingface.download(reference, partial, report))
        shutil.rmtree(partial / ".cache", ignore_errors=True)
    except OSError as error:
        raise ModelLoadError(f"cannot write the model {model!r} to {models_dir}: {error}") from error
    replace(partial, models_dir / reference.folder)
    return ModelDirectory(models_dir / reference.folder, card)


def replace(partial: Path, final: Path) -> None:
    """Move a finished model directory to its place, replacing an older one."""
    partial.chmod(0o755)
    old = final.with_name(f".{final.name}.part-old")  # an incomplete model never has the final name, even after a kill
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.replace(old)
    partial.replace(final)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _locked(models_dir: Path, model: str) -> Iterator[None]:
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        lock = (models_dir / f".{model}.lock").open("w")
    except OSError as error:
        raise ModelLoadError(f"cannot write to the models directory {models_dir}: {error}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
