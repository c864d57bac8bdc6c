"""Models as servers list them, and as the gateway does: their tasks, and aliases beside them.

Only a model's id is certain in another server's list. Does not know which servers there are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from tessera.wire.decoding import DAMAGED
from tessera.wire.models import Card, Model, Task

CARDLESS: frozenset[Task] = frozenset({"chat", "completions", "embeddings", "rerank", "score", "classify"})
"""Tasks of a model without a card, because other servers than ours do not list them."""


class ListedModel(msgspec.Struct, frozen=True):
    """A model as any server lists it. Only `id` is certain; `card` is one of ours if it decodes as a `Card`."""

    id: str
    created: Any = 0
    owned_by: Any = ""
    card: msgspec.Raw = msgspec.Raw(b"null")
    device: Any = None


class ListedModels(msgspec.Struct, frozen=True):
    """The answer of any server to `GET /v1/models`."""

    data: list[ListedModel]


def tasks_of(model: Model) -> Collection[Task]:
    """The tasks that a model can do, by its card."""
    return CARDLESS if model.card is None else model.card.tasks


def alias_of(name: str, model: Model) -> Model:
    """An alias as `/v1/models` shows it: the model, under the other name."""
    return msgspec.structs.replace(model, id=name, root=model.id)


def model_from(entry: ListedModel, server: str) -> Model:
    """A listed model as one of ours; `server` is the name of the upstream that lists it."""
    try:
        card = msgspec.json.decode(entry.card, type=Card | None)
    except DAMAGED:
        card = None
    return Model(
        id=entry.id,
        created=int(entry.created) if isinstance(entry.created, int | float) else 0,
        owned_by=entry.owned_by if isinstance(entry.owned_by, str) and entry.owned_by else server,
        card=card,
        device=entry.device if isinstance(entry.device, str) else None,
    )
