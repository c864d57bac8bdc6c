"""Reads the settings once, from TOML and the environment; an unknown key or a wrong value is refused by name.

`load()` is the only reader of the environment. Order, later wins: defaults, the TOML file, `TESSERA_<SECTION>__<KEY>`
variables (and `REDIS_URL`), command-line overrides. The documented example `compose/tessera.toml` is made from the
descriptions of the sections (`tessera.settings.example`), and a test keeps the two equal.

Knows the type and the range of a value, and nothing about what the value means to the part that reads it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from tessera.errors import SettingsError
from tessera.settings.section import Section
from tessera.settings.tree import Settings

PREFIX = "TESSERA_"


def load(
    path: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the settings.

    Args:
        path: the TOML file; None takes `$TESSERA_CONFIG`, else `tessera.toml` in the working directory if it exists.
        environment: variables to read; None takes the process's own.
        overrides: nested values that win over everything else, e.g. `{"gateway": {"port": 9000}}`.

    Raises:
        SettingsError: the file is missing or is not TOML, a key is unknown, or a value is wrong. Names the key.
    """
    environment = os.environ if environment is None else environment
    chosen = config_path(path, environment=environment)
    values: dict[str, Any] = _read_toml(chosen) if chosen is not None else {}
    _merge(values, _from_environment(environment))
    _merge(values, overrides or {})
    try:
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(_explain(str(error), chosen)) from error


def config_path(path: Path | None, *, environment: Mapping[str, str] | None = None) -> Path | None:
    """Path of the file that `load` reads for the same arguments; None when there is no file to read."""
    named = (os.environ if environment is None else environment).get("TESSERA_CONFIG")
    if path is None and named:
        return Path(named)
    return path or (Path("tessera.toml") if Path("tessera.toml").is_file() else None)


CHILD_ENVIRONMENT = {"GOMP_SPINCOUNT": "5000", "LRU_CACHE_CAPACITY": "256", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256"}
"""Variables that libraries read before `main` runs, so that only the parent of a process can set them.

A variable that is set already keeps its value.

`GOMP_SPINCOUNT`: how many times an OpenMP thread (libgomp, PyTorch's) looks for more work before it sleeps. The default
of 300,000 keeps a core busy for some milliseconds that another thread could use: a decode step of 16 sequences took
17 ms instead of 10. 5,000 are enough from one operation to the next.

`LRU_CACHE_CAPACITY`, `ONEDNN_PRIMITIVE_CACHE_CAPACITY`: the number of shapes for which PyTorch and oneDNN keep compiled
convolutions and products. With the default of 1,024 each, a speech engine, where every sentence has another length,
took 620 MB after 2,000 requests and still grew; with 256 it takes 470 MB from some 600 requests on, at the same speed.
"""


def environment() -> dict[str, str]:
    """The environment of this process together with `CHILD_ENVIRONMENT`, for child processes of ours."""
    return {**CHILD_ENVIRONMENT, **os.environ}


def stay_on_this_machine() -> None:
    """Restrict PyTorch's process groups to the loopback interface. Call this before a group is made."""
    for library in ("GLOO", "NCCL"):
        os.environ[f"{library}_SOCKET_IFNAME"] = "lo"


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error


def _merge(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping):
            inner = into.setdefault(key, {})
            if not isinstance(inner, dict):
                raise SettingsError(f"`{key}` is a section: write [{key}] in the file, not {key} = …")
            _merge(inner, value)
        else:
            into[key] = value


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if environment.get("REDIS_URL"):
        values["redis"] = {"url": environment["REDIS_URL"]}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name == "TESSERA_CONFIG":
            continue
        keys = name.removeprefix(PREFIX).lower().split("__")
        kind = _kind_of(keys)
        if kind is None:
            raise SettingsError(
                f"the environment variable {name} is no setting; `tessera config` lists all keys "
                f"(TESSERA_GATEWAY__PORT is [gateway] port)"
            )
        section = values
        for key in keys[:-1]:
            section = section.setdefault(key, {})
        section[keys[-1]] = _parse(name, text, kind)
    return values


def _kind_of(keys: list[str]) -> Any:
    kind: Any = Settings
    for key in keys:
        if not (isinstance(kind, type) and issubclass(kind, Section)):
            return None
        kind = get_type_hints(kind).get(key)
    return None if kind is None or (isinstance(kind, type) and issubclass(kind, Section)) else kind


def _parse(name: str, text: str, kind: Any) -> Any:
    if get_origin(kind) in (list, dict):
        item = get_args(kind)[-1]
        if get_origin(kind) is list and not (isinstance(item, type) and issubclass(item, Section)):
            return [part.strip() for part in text.split(",") if part.strip()]
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.MsgspecError as error:
            raise SettingsError(f"{name}: {error}; write it as JSON") from error
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{name}={text!r}: {error}") from error


def _explain(message: str, path: Path | None) -> str:
    where = f" in {path}" if path else ""
    if "unknown field" in message:
        field = message.split("`")[1]
        place = message.rsplit("`$.", 1)[1].rstrip("`") if "`$." in message else ""
        key = f"{place}.{field}" if place else field
        return f"unknown key `{key}`{where}; `tessera config` lists all keys with their defaults"
    return f"{message.replace('`$.', '`')}{where}"
