"""The actions of `tessera models`: list model directories, fetch a model, compare weights with their checksums.

Does not parse the command line: output goes to `say`, and the exit status is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tessera.errors import ModelLoadError
from tessera.hub import store
from tessera.hub.cards import CARD_FILE, read_card

Say = Callable[[str], None]
"""Prints one line."""


def list_models(directory: Path, say: Say) -> int:
    """Print one line per model: those in `directory`, and the starters that can be made."""
    here = set(_present(directory))
    for name in sorted(here | set(store.starters())):
        if name in here:
            card = read_card(directory / name)
            notice = f"  ({card.notice})" if card.notice else ""
            say(f"{name:<28} here     {card.family}, {card.parameters:,} parameters, {card.licence}{notice}")
        else:
            say(f"{name:<28} missing  `tessera models pull {name}` makes it")
    return 0


def pull(model: str, directory: Path, *, force: bool, say: Say) -> int:
    """Fetch or make one model.

    Args:
        model: the name of a starter, or `hf:owner/name`.
        directory: the models directory.
        force: whether an existing model is made again.
        say: prints the progress, a line at a time.

    Raises:
        ModelLoadError: the model cannot be fetched, or is damaged.
    """
    found = store.ensure(model, directory, say, force=force)
    say(f"{found.card.id} is in {found.path}")
    return 0


def verify(models: Sequence[str], directory: Path, say: Say) -> int:
    """Compare every byte of the models' weights with the checksums in their cards.

    Args:
        models: names or directories; an empty list means all models in `directory`.
        directory: the models directory.
        say: prints one line per model.

    Returns:
        The exit status: 1 if a model is missing or damaged.
    """
    names = models or _present(directory)
    status = 0
    for name in names:
        try:
            found = store.locate(name, directory)
            if found is None:
                raise ModelLoadError(f"{name} is not here; `tessera models pull {name}` makes it")
            store.check(found, every_byte=True)
        except ModelLoadError as error:
            say(f"{name:<28} {error.message}")
            status = 1
        else:
            known = len(found.card.sha256)
            say(f"{name:<28} {f'{known} weight files are whole' if known else 'has no checksums to compare with'}")
    if not names:
        say(f"there are no models in {directory}")
    return status


def _present(directory: Path) -> list[str]:
    """Return the names of the finished models in a directory; folders of unfinished ones begin with a dot."""
    names = (path.parent.name for path in directory.glob(f"*/{CARD_FILE}"))
    return sorted(name for name in names if not name.startswith("."))
