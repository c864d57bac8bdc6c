"""The settings that all processes share, and those of Redis."""

from __future__ import annotations

from typing import Annotated, Literal

from tessera.settings.section import PositiveFloat, Section, described


class SuiteSettings(Section, frozen=True, kw_only=True):
    """Settings that all processes share."""

    data: Annotated[
        str, described("Directory of all state: Redis' append-only file, artifacts, logs. `~` is your home directory.")
    ] = "~/.local/share/tessera"
    models: Annotated[str, described("Directory of fetched and generated models. Empty: `models` inside `data`.")] = ""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], described("Least severe level that is logged.")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], described("Format of log lines: `text` for people, `json` for collectors.")
    ] = "text"


class RedisSettings(Section, frozen=True, kw_only=True):
    """Redis, the job store and Celery's broker."""

    url: Annotated[
        str,
        described(
            "Address of Redis: redis://, rediss:// or unix://. Empty: `tessera up` starts an embedded server in "
            "`suite.data`."
        ),
    ] = ""
    timeout_s: Annotated[PositiveFloat, described("Seconds that Redis may send nothing before it counts as down.")] = (
        5.0
    )
