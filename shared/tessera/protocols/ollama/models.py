"""Models as Ollama shows them. Its names end with a tag; a model of ours without one is shown as `:latest`, and found
under both names. Knows no route.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from tessera.wire.models import Card, Model, Task
from tessera.wire.ollama import OllamaDetails, OllamaModel, OllamaShown

TAG = ":latest"
NEVER = "9999-12-31T23:59:59Z"
"""When a model is unloaded."""
OLLAMA_VERSION = "0.12.11"
"""The release of Ollama whose API these routes follow: clients ask for it before they use what is newer."""
SHOWN: frozenset[Task] = frozenset({"chat", "completions", "embeddings"})
"""Tasks of the models that are shown: Ollama's clients can use no others."""
_CAPABILITIES: dict[Task, list[str]] = {
    "chat": ["completion", "tools"],
    "completions": ["completion"],
    "vision": ["vision"],
    "embeddings": ["embedding"],
}


def is_shown(model: Model) -> bool:
    """Whether clients of Ollama's can use a model."""
    return model.card is None or not SHOWN.isdisjoint(model.card.tasks)


def tagged(name: str) -> str:
    """A model's name with a tag."""
    return name if ":" in name else f"{name}{TAG}"


def untagged(name: str) -> str:
    """A model's name without the tag that says nothing."""
    return name.removesuffix(TAG)


def ollama_model(model: Model) -> OllamaModel:
    """A model as `/api/tags` lists it."""
    name = tagged(model.id)
    files = sorted(model.card.sha256.values()) if model.card else []
    return OllamaModel(
        name=name,
        model=name,
        modified_at=_time(model),
        digest=hashlib.sha256("".join(files or [model.id]).encode()).hexdigest(),
        details=_details(model.card),
    )


def shown_model(model: Model) -> OllamaShown:
    """A model as `/api/show` describes it."""
    card = model.card
    tasks: list[Task] = list(SHOWN) if card is None else card.tasks
    family = card.family.lower() if card else "unknown"
    info: dict[str, object] = {"general.architecture": family, "general.basename": model.id}
    if card is not None:
        info["general.parameter_count"] = card.parameters
        if card.context_length is not None:
            info[f"{family}.context_length"] = card.context_length
    found = [capability for task in _CAPABILITIES if task in tasks for capability in _CAPABILITIES[task]]
    return OllamaShown(
        license=card.licence if card else "",
        modelfile=f"FROM {model.id}\n",
        details=_details(card),
        model_info=info,
        capabilities=list(dict.fromkeys(found)),
        modified_at=_time(model),
    )


def _details(card: Card | None) -> OllamaDetails:
    if card is None:
        return OllamaDetails(format="", family="", families=[], parameter_size="", quantization_level="")
    return OllamaDetails(
        family=card.family,
        families=[card.family],
        parameter_size=_size(card.parameters),
        quantization_level=card.scheme.upper(),
    )


def _size(parameters: int) -> str:
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.1f}{name}"
    return str(parameters)


def _time(model: Model) -> str:
    return datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
