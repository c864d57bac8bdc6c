"""The settings that all processes share, and those of Redis."""

from __future__ import annotations

from typing import Annotated, Literal

from tessera.settings.section import PositiveFloat, Section, says


class SuiteSettings(Section, frozen=True, kw_only=True):
    """What all processes share."""

    data: Annotated[str, says("Where state lives: Redis' append-only file, artifacts, logs. `~` is your home.")] = (
        "~/.local/share/tessera"
    )
    models: Annotated[str, says("Where fetched and generated models live. Empty: `models` inside `data`.")] = ""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], says("Least severe level that is logged.")] = (
        "info"
    )
    log_format: Annotated[Literal["text", "json"], says("`text` for people, `json` for collectors.")] = "text"


class RedisSettings(Section, frozen=True, kw_only=True):
    """The job store and Celery's broker."""

    url: Annotated[
        str,
        says("redis://, rediss:// or unix:// address. Empty: `tessera up` starts an embedded server in `data`."),
    ] = ""
    timeout_s: Annotated[PositiveFloat, says("Seconds until a silent Redis counts as down.")] = 5.0
