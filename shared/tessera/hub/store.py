"""The store of models: finds a model's directory by name or path, and makes a starter's directory when it is missing.

A model is named by a starter's name, a path to a directory or a GGUF file, or `hf:owner/name` (see `huggingface`).
Starters are entry points of the group `tessera.starters`: a name and a function `build(directory, report) -> Card` that
fills an empty directory. Making is atomic (a temporary directory, then a rename) and locked, so several processes may
ask at once and a killed one leaves nothing half made; a stopped download goes on with what it has.
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
from tessera.hub import gguf_file, huggingface
from tessera.hub.cards import CARD_FILE, read_card, verify, write_card
from tessera.hub.gguf_file import is_gguf
from tessera.wire.models import Card

Report = Callable[[str], None]
"""Told in a few words what is being done now."""
Build = Callable[[Path, Report], Card]
GROUP = "tessera.starters"
CHECKED_FILE = ".checked.json"


class ModelDirectory(msgspec.Struct, frozen=True):
    """A model that is on this machine."""

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
    """What a model that a setting names is called in requests."""
    if is_hub(model):
        return huggingface.parse(model).repository
    if is_gguf(model):
        return Path(model).stem
    return model.rstrip("/").rsplit("/", 1)[-1] if is_path(model) else model


def locate(model: str, models_dir: Path) -> ModelDirectory | None:
    """Where a model is, or None when it has still to be made. Does not write, does not check weights.

    Raises:
        ModelLoadError: a path that is no model directory, or a name that is neither a starter nor in `models_dir`.
    """
    if is_gguf(model):
        path = models_dir / gguf_file.folder_of(Path(model).expanduser())
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
    """Where a model is; a starter that is missing (or `force`d) is made first.

    Raises:
        ModelLoadError: see `locate`; or the starter cannot be made (no network, no disk), with the cure.
    """
    found = None if force and (is_gguf(model) or not is_path(model)) else locate(model, models_dir)
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
    return gguf_file.folder_of(Path(model).expanduser()) if is_gguf(model) else model


def check(found: ModelDirectory, *, every_byte: bool = False) -> None:
    """Verify the checksums of a model's weights; see `tessera.hub.cards.verify`.

    Files whose size and time of change are those of the last check are not read again, unless `every_byte`: hashing
    gigabytes at each start would cost more than loading them.
    """
    if not found.card.sha256:  # a directory of the user's own, which nothing is known about
        return
    stamp = found.path / CHECKED_FILE
    now = _fingerprint(found)
    if not every_byte and now is not None and stamp.is_file() and stamp.read_bytes() == now:
        return
    verify(found.path, found.card)
    if now is not None:
        with contextlib.suppress(OSError):  # a directory that is not ours to write: it is read again next time
            stamp.write_bytes(now)


def _fingerprint(found: ModelDirectory) -> bytes | None:
    """Name, checksum, size and time of change of every weight file; None when one is missing."""
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
    for abandoned in models_dir.glob(f".{folder}.part-*"):  # of a process that was killed: the lock is ours now
        shutil.rmtree(abandoned, ignore_errors=True)
    build = _converter(model) if is_gguf(model) else _starter(model)
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
    return lambda directory, report: gguf_file.convert(Path(model).expanduser(), directory, report)


def _download(model: str, models_dir: Path, report: Report) -> ModelDirectory:
    reference = huggingface.parse(model)
    partial = models_dir / f".{reference.folder}.partial"  # kept when it fails: the next try goes on with it
    try:
        partial.mkdir(exist_ok=True)
        card = write_card(partial, huggingface.download(reference, partial, report))
        shutil.rmtree(partial / ".cache", ignore_errors=True)
    except OSError as error:
        raise ModelLoadError(f"cannot write the model {model!r} to {models_dir}: {error}") from error
    replace(partial, models_dir / reference.folder)
    return ModelDirectory(models_dir / reference.folder, card)


def replace(partial: Path, final: Path) -> None:
    """Put a finished model directory to its place, over the one that is there."""
    partial.chmod(0o755)
    old = final.with_name(f".{final.name}.part-old")  # never half a model under its name, also after a kill
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
