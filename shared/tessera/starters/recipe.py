"""Recipes: how one starter is trained and judged.

Recipes are entry points of the group `tessera.recipes`. Torch-free: what needs torch is inside `train` and `evaluate`,
which import it when they are called. Knows no starter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.errors import StartError
from tessera.wire.models import Card, Measure

if TYPE_CHECKING:
    from tessera.starters.run import Run

GROUP = "tessera.recipes"
Report = Callable[[str], None]

__all__ = ["GROUP", "Evaluation", "Measure", "Recipe", "Report", "find", "lazily", "names", "require_judges"]


@dataclass(frozen=True)
class Evaluation:
    """How a starter is judged.

    Args:
        seed: seed of the held-out samples.
        samples: samples of each kind; None takes the number with which the card's measures were taken.
        device: `auto`, `cpu` or `cuda`.
        report: called with lines about the progress.
    """

    seed: int
    samples: int | None
    device: str
    report: Report


@dataclass(frozen=True)
class Recipe:
    """How one starter is made.

    Args:
        name: name of the starter.
        summary: one line about the starter.
        requires: modules that training or judging needs beside the suite; the extra `judges` installs them.
        train: trains what is not yet trained and fills `run.output`, an empty directory, with a complete model
            directory. Returns the card without quality and checksums. None for a model that is fetched, not trained.
        evaluate: judges a model directory.
        weights: folder in the package that holds the shipped model directory; None for a model that is fetched.
        data_parallel: whether several processes can share the steps of its stages (`tessera.starters.data_parallel`).
    """

    name: str
    summary: str
    requires: tuple[str, ...]
    train: Callable[[Run], Card] | None
    evaluate: Callable[[Path, Evaluation], list[Measure]]
    weights: Path | None
    data_parallel: bool = False


def lazily(place: str) -> Callable[..., Any]:
    """The function `module:name`, imported at its first call, so that naming a recipe imports no torch."""

    def call(*arguments: Any) -> Any:
        module, _, name = place.partition(":")
        return getattr(import_module(module), name)(*arguments)

    call.__qualname__ = place
    return call


def names() -> list[str]:
    """Names of all installed recipes."""
    return sorted(point.name for point in entry_points(group=GROUP))


def find(name: str) -> Recipe:
    """The recipe of a starter.

    Raises:
        StartError: no recipe has this name; lists the names.
    """
    for point in entry_points(group=GROUP):
        if point.name == name:
            recipe: Recipe = point.load()
            return recipe
    raise StartError(f"there is no recipe {name!r}; there are {', '.join(names())}")


def require_judges(recipe: Recipe) -> None:
    """Check that the modules which training and judging need are installed.

    Raises:
        StartError: a module is missing; says how to install it.
    """
    if lacking := [module for module in recipe.requires if find_spec(module) is None]:
        raise StartError(
            f"{recipe.name} is trained and judged with {', '.join(lacking)}, which is not installed here: "
            "`pip install 'tessera[judges]'` (in a checkout `make test` installs it)"
        )
