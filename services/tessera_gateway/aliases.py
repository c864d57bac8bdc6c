"""Aliases: names that clients ask for, and the models of ours that they stand for.

A name that an upstream lists is never an alias. Otherwise the exact name counts before patterns, and among patterns the
one with the most characters beside its `*`. A target is a model, or `@task` for the first model that does the task.
Does not know which models there are: `upstreams` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

from tessera.errors import SettingsError
from tessera.wire.models import Task

FirstModel = Callable[[Task], str | None]
"""The name of the first model that can do a task; None if there is none."""


@dataclass(frozen=True)
class AliasTarget:
    """What an alias stands for: a model by name, or the first model that does a task. One of both is None."""

    model: str | None
    task: Task | None

    def __str__(self) -> str:
        return f"the first model here that does {self.task}" if self.task else repr(self.model)


class Aliases:
    """The aliases of the settings.

    Args:
        table: targets by name or pattern, as `gateway.aliases` has them.

    Raises:
        SettingsError: a target is empty, is itself an alias, or names a task that there is not; names the alias.
    """

    def __init__(self, table: Mapping[str, str]) -> None:
        targets = {name: _target(name, value, table) for name, value in table.items()}
        self._exact = {name: target for name, target in targets.items() if "*" not in name}
        patterns = sorted((name for name in targets if "*" in name), key=lambda name: -len(name.replace("*", "")))
        self._patterns = [(_pattern(name), targets[name]) for name in patterns]

    @property
    def names(self) -> list[str]:
        """The aliases that are no patterns, in the order of the settings."""
        return list(self._exact)

    def target(self, name: str) -> AliasTarget | None:
        """What a name stands for; None if it is no alias."""
        if exact := self._exact.get(name):
            return exact
        return next((target for pattern, target in self._patterns if pattern.fullmatch(name)), None)

    def model_of(self, name: str, first: FirstModel) -> str:
        """The model that a name stands for; the name itself if it is no alias, or if no model does the alias's task."""
        target = self.target(name)
        if target is None:
            return name
        return target.model or (first(target.task) if target.task else None) or name


def _target(name: str, value: str, table: Mapping[str, str]) -> AliasTarget:
    where = f"gateway.aliases: {name!r}"
    if not name.strip() or not value.strip():
        raise SettingsError(f"{where} = {value!r}: an alias and what it stands for must not be empty")
    if value.startswith("@"):
        for task in get_args(Task):
            if value == f"@{task}":
                return AliasTarget(None, task)
        raise SettingsError(f"{where} = {value!r}: there is no such task; there are @{', @'.join(get_args(Task))}")
    if value in table:
        raise SettingsError(f"{where} = {value!r}: this is an alias too; name the model that it stands for")
    return AliasTarget(value, None)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in name.split("*")), re.DOTALL)
