"""The parts of a suite: which processes there are, how each is started, and in which order they stop.

Knows nothing about whether a part runs (`tessera.suite.child`).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast, get_args

import msgspec

from tessera.errors import SettingsError
from tessera.settings.load import PREFIX
from tessera.settings.section import Service
from tessera.settings.tree import Settings
from tessera.suite import embedded_redis

GATEWAY = "gateway"
SERVICE_STOP_S, GATEWAY_STOP_S = 15.0, 8.0
"""Seconds that a server has to stop beside the time in which it drains; a service ends its engine in them."""
PartKind = Literal["redis", "gateway", "service", "worker"]
STOP_ORDER: tuple[tuple[PartKind, ...], ...] = (("gateway",), ("service", "worker"), ("redis",))
"""Kinds of parts in the order in which they stop: what takes new work, what does the work, what records it."""


class SuitePart(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the suite.

    Attributes:
        name: name of the process in logs and tables.
        kind: what it is, which decides when it stops.
        command: the command that starts it.
        stop_s: seconds between SIGTERM and SIGKILL when it is stopped.
        url: address at which it answers `/ready`; None if it answers none.
        service: the service to whose row in the table it belongs.
        death_signal: signal that it gets when the supervisor is killed.
        vital: whether its service is useless without it.
    """

    name: str
    kind: PartKind
    command: list[str]
    stop_s: float
    url: str | None = None
    service: Service | None = None
    death_signal: signal.Signals = signal.SIGKILL
    vital: bool = True

    @property
    def mate_of(self) -> str | None:
        """Name of the server whose work it does: its service's, or the gateway's for a worker without a service."""
        return self.service or (GATEWAY if self.kind == "worker" else None)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the suite that the user wants."""

    gateway: bool
    services: list[Service]

    @property
    def needs_redis(self) -> bool:
        """Whether Redis is needed: for jobs (videos, images, long recordings) and for the responses that the gateway
        keeps."""
        return self.gateway or "video" in self.services or "speech" in self.services


def select(only: str | None, settings: Settings) -> Selection:
    """The parts that `--only` names; without it the gateway and the services that it fronts.

    Raises:
        SettingsError: a name is no part of the suite.
    """
    if only is None:
        return Selection(gateway=True, services=list(settings.gateway.services))
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = (GATEWAY, *get_args(Service))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise SettingsError(f"--only {only}: choose from {', '.join(known)}, separated by commas", param="only")
    services = [cast("Service", name) for name in get_args(Service) if name in names]
    return Selection(gateway=GATEWAY in names, services=services)


def parts(settings: Settings, selection: Selection) -> list[SuitePart]:
    """All processes that a selection needs, in the order in which they are started."""
    found: list[SuitePart] = []
    drain_s = settings.http.unready_s + settings.http.drain_s
    if selection.needs_redis and not settings.redis.url:
        found.append(
            SuitePart(
                name="redis",
                kind="redis",
                command=embedded_redis.command(settings.data_dir),
                stop_s=10.0,
                death_signal=signal.SIGTERM,
            )
        )
    for service in selection.services:
        section = getattr(settings, service)
        found.append(
            SuitePart(
                name=service,
                kind="service",
                command=_module(f"tessera_{service}"),
                stop_s=drain_s + SERVICE_STOP_S,
                url=local_url(section.host, section.port),
                service=service,
            )
        )
    if "video" in selection.services:
        found += [
            SuitePart(name=name, kind="worker", command=_module("tessera_video.worker"), stop_s=20.0, service="video")
            for name in _worker_names("video", settings.video.workers)
        ]
    if "speech" in selection.services:
        found += [
            SuitePart(
                name=name,
                kind="worker",
                command=_module("tessera_speech.job_worker"),
                stop_s=20.0,
                service="speech",
                vital=False,
            )
            for name in _worker_names("speech", settings.speech.job_workers)
        ]
    if selection.gateway:
        found += [
            SuitePart(name=name, kind="worker", command=_module("tessera_gateway.worker"), stop_s=20.0, vital=False)
            for name in _worker_names("response", settings.gateway.response_workers)
        ]
        found.append(
            SuitePart(
                name=GATEWAY,
                kind="gateway",
                command=_module("tessera_gateway"),
                stop_s=drain_s + GATEWAY_STOP_S,
                url=local_url(settings.gateway.host, settings.gateway.port),
            )
        )
    return found


def local_url(host: str, port: int) -> str:
    """Address at which this machine reaches a server on `host`; a wildcard address becomes the loopback address."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - replaces it
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def environment(config: str | None, overrides: Mapping[str, Any], inherited: Mapping[str, str]) -> dict[str, str]:
    """Environment of a part's process: the inherited one, the settings file and the values of the command line.

    Args:
        config: absolute path of the settings file, or None.
        overrides: nested values as `tessera.settings.load.load` takes them; lists of words, no lists of tables.
        inherited: the environment to start from.
    """
    values = dict(inherited)
    if config is not None:
        values["TESSERA_CONFIG"] = config
    for section, keys in overrides.items():
        for key, value in keys.items():
            text = ",".join(value) if isinstance(value, list) else str(value)
            values[f"{PREFIX}{section}__{key}".upper()] = text
    values["PYTHONUNBUFFERED"] = "1"
    return values


def _worker_names(service: Service | Literal["response"], count: int) -> Sequence[str]:
    return [f"{service}-worker"] if count == 1 else [f"{service}-worker-{number + 1}" for number in range(count)]


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", name]
