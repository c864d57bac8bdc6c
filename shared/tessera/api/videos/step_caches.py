"""Refuses before there is a job a step cache that the model's workers do not have. Knows no policies of step caches."""

from __future__ import annotations

from tessera.errors import InvalidRequestError
from tessera.wire.jobs import VideoInput
from tessera.wire.models import Card


def check_step_cache(given: VideoInput, card: Card) -> None:
    """Refuse what every worker would refuse. While no worker is there, and no files are, nothing is known.

    Raises:
        InvalidRequestError: the model has not this step cache; says which it has and what gives it the others.
    """
    known = card.step_caches
    if known is None or given.step_cache == "off" or given.step_cache in known:
        return
    if not known:
        raise InvalidRequestError(
            f"`step_cache` is {given.step_cache!r}, but there is none for {card.id!r} as it runs here, because its "
            "steps are computed by several devices together or by its own loop: leave `step_cache` out, or send 'off'",
            param="step_cache",
        )
    raise InvalidRequestError(
        f"`step_cache` is {given.step_cache!r}, for which {card.id!r} was not measured: ask for "
        f"{' or '.join(repr(name) for name in known)}, or run `python -m tessera_video.calibrate` and start the worker "
        "again",
        param="step_cache",
    )
