"""What a recipe is: how one starter is trained and judged. Torch-free; the parts that need torch are inside `train`
and `evaluate`, which import them when they are called.

Recipes are entry points of the group `tessera.recipes`. Does not know any starter.
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
        seed: what the held-out samples are drawn from.
        samples: how many of each kind; None is the number that the card's measures were taken with.
        device: `auto`, `cpu` or `cuda`.
        report: told what is being done.
    """

    seed: int
    samples: int | None
    device: str
    report: Report


@dataclass(frozen=True)
class Recipe:
    """How one starter is made.

    Args:
        name: the starter's.
        summary: one line.
        requires: modules that training or judging needs beside the suite; the extra `judges` installs them.
        train: trains what is not yet trained and fills `run.output`, an empty directory, with a whole model directory.
            Its card comes back without quality and checksums. None for a model that is fetched, not trained.
        evaluate: judges a model directory.
        weights: folder in the package that holds the shipped directory; None for a model that is fetched.
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
    """A function by `module:name`, imported when it is called: training needs torch, naming what trains does not."""

    def call(*arguments: Any) -> Any:
        module, _, name = place.partition(":")
        return getattr(import_module(module), name)(*arguments)

    call.__qualname__ = place
    return call


def names() -> list[str]:
    """Names of all recipes that are installed."""
    return sorted(point.name for point in entry_points(group=GROUP))


def find(name: str) -> Recipe:
    """The recipe of a starter.

    Raises:
        StartError: there is none of this name; says which there are.
    """
    for point in entry_points(group=GROUP):
        if point.name == name:
            recipe: Recipe = point.load()
            return recipe
    raise StartError(f"there is no recipe {name!r}; there are {', '.join(names())}")


def require_judges(recipe: Recipe) -> None:
    """See that what training and judging need is installed.

    Raises:
        StartError: something lacks; says how it is installed.
    """
    if lacking := [module for module in recipe.requires if find_spec(module) is None]:
        raise StartError(
            f"{recipe.name} is trained and judged with {', '.join(lacking)}, which is not installed here: "
            "`pip install 'tessera[judges]'` (in a checkout `make test` installs it)"
        )
