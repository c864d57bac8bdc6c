"""Makes the text at the end of a start: services with their models and devices, notices, failures, a command to type.

Takes the states from the watch and asks each ready part once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp

from tessera.settings.tree import Settings
from tessera.suite import embedded_redis, readiness
from tessera.suite.child import Child
from tessera.suite.parts import Selection
from tessera.suite.report import CURL_KEY, ServiceRow, curl, model_state, table
from tessera.suite.watch import HealthWatch
from tessera.wire.models import Model

NONE = "-"


async def summary(
    session: aiohttp.ClientSession,
    settings: Settings,
    selection: Selection,
    watch: HealthWatch,
    children: Mapping[str, Child],
) -> str:
    """The table, notices, failures with the end of their logs, where the time went, and a curl command to paste."""
    ready = [name for name in watch.polled if name != "gateway" and watch.states[name] == "ready"]
    urls = {name: str(watch.polled[name].part.url) for name in watch.polled}
    lists = await asyncio.gather(*(readiness.models(session, urls[name]) for name in ready))
    models = dict(zip(ready, lists, strict=True))
    sections = [
        table(_rows(watch, urls, models, children, settings)),
        _notices([model for found in lists for model in found]),
        _failures(watch, children),
        await _times(session, ready, urls),
        _to_paste(settings, selection, urls, models),
    ]
    return "\n" + "\n\n".join(section for section in sections if section)


def _rows(
    watch: HealthWatch,
    urls: Mapping[str, str],
    models: Mapping[str, list[Model]],
    children: Mapping[str, Child],
    settings: Settings,
) -> list[ServiceRow]:
    rows = []
    if "gateway" in urls:
        rows.append(ServiceRow("gateway", NONE, NONE, urls["gateway"], _gateway_state(watch)))
    for name in urls:
        if name == "gateway":
            continue
        for model in models.get(name, []):
            state = model_state("ready", model)
            rows.append(ServiceRow(name, model.id, model.device or NONE, urls[name], state))
        if not models.get(name):
            rows.append(ServiceRow(name, _configured(settings, name), NONE, urls[name], watch.states[name]))
    for child in children.values():
        if child.part.kind == "worker":
            served = watch.states.get(child.part.mate_of or "") == "ready"
            state = "ready" if child.state == "running" and served else child.state
            rows.append(ServiceRow(child.part.name, NONE, NONE, f"process {child.pid or NONE}", state))
    if "redis" in children:
        rows.append(ServiceRow("redis", NONE, NONE, settings.redis_url, "ready"))
    elif any(child.part.kind == "worker" for child in children.values()):
        rows.append(ServiceRow("redis", NONE, NONE, embedded_redis.without_password(settings.redis_url), "yours"))
    return rows


def _configured(settings: Settings, service: str) -> str:
    if service == "speech":
        return f"{settings.speech.synthesis_model}, {settings.speech.transcription_model}"
    return str(getattr(settings, service).model)


def _gateway_state(watch: HealthWatch) -> str:
    if watch.states["gateway"] == "ready" or "gateway" not in watch.alive:
        return watch.states["gateway"]
    not_ready = watch.not_ready
    return f"ready, without {', '.join(not_ready)}" if not_ready else "starting"


def _notices(models: list[Model]) -> str:
    by_notice: dict[str, list[str]] = {}
    for model in models:
        if model.card and model.card.notice:
            by_notice.setdefault(model.card.notice, []).append(model.id)
    return "\n".join(f"{', '.join(names)}: {notice}" for notice, names in by_notice.items())


def _failures(watch: HealthWatch, children: Mapping[str, Child]) -> str:
    lines = []
    for name, reason in watch.reasons.items():
        failed = [c for c in children.values() if name in (c.part.name, c.part.service) and c.state == "failed"]
        child = failed[0] if failed else children[name]
        lines.append(f"{name} failed: {reason}")
        lines += [f"    {line}" for line in child.last_log_lines()]
        lines.append(f"    the whole log is {child.log}")
    return "\n".join(lines)


async def _times(session: aiohttp.ClientSession, ready: list[str], urls: Mapping[str, str]) -> str:
    found = await asyncio.gather(*(readiness.start_seconds(session, urls[name]) for name in ready))
    told = [
        f"{name}: " + ", ".join(f"{part} {seconds:.1f} s" for part, seconds in parts.items())
        for name, parts in zip(ready, found, strict=True)
        if parts
    ]
    return f"where the time went: {'; '.join(told)}" if told else ""


def _to_paste(
    settings: Settings, selection: Selection, urls: Mapping[str, str], models: Mapping[str, list[Model]]
) -> str:
    for names in ([name for name in models if name != "vision"], ["vision"]):
        for name in names:
            base = urls["gateway"] if selection.gateway else urls[name]
            with_key = selection.gateway and bool(settings.gateway.api_keys)
            command = curl(base, models.get(name, []), with_key=with_key)
            if command is not None:
                advice = f"\n(put one of gateway.api_keys in the place of {CURL_KEY})" if with_key else ""
                return f"try it:\n{command}{advice}"
    return ""
