"""Installs starters whose weights are in the wheel: verifies and copies them to the models directory. Torch-free."""

from __future__ import annotations

import shutil
from pathlib import Path

from tessera.errors import ModelLoadError
from tessera.hub.cards import CARD_FILE, read_card, verify
from tessera.hub.store import Build, Report
from tessera.wire.models import Card

CURE = "`pip install --force-reinstall tessera` (in a checkout: `git checkout -- services`) brings it back"


def build_from(weights: Path) -> Build:
    """The entry point of a starter whose model directory is `weights`, a folder of an installed package.

    Returns:
        A function that copies the model. It raises ModelLoadError when the folder is missing or a weight file differs
        from its card.
    """

    def build(directory: Path, report: Report) -> Card:
        if not (weights / CARD_FILE).is_file():
            raise ModelLoadError(
                f"the installed package lacks {weights / CARD_FILE}. Where weights are not shipped yet, "
                f"`tessera starters train` makes them; where they were, {CURE}"
            )
        card = read_card(weights)
        report(f"copying {card.id} out of the installed package")
        verify(weights, card, cure=CURE)
        shutil.copytree(weights, directory, dirs_exist_ok=True)
        return card

    return build
