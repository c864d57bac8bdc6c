"""Models as `/v1/models` shows them: OpenAI's four fields plus our card.

Does not know where models come from: see `tessera.hub`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Task = Literal["chat", "completions", "embeddings", "vision", "video", "speech", "transcription"]


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What we know about a model. Stored as `card.json` in its directory."""

    id: str
    family: str
    tasks: list[Task]
    source: str
    parameters: int
    licence: str
    notice: str | None = None
    """What a user must know before judging an answer, e.g. that the weights are random."""
    revision: str = ""
    sha256: dict[str, str] = {}
    """Checksum of every weight file, by name inside the directory."""
    scheme: str = "float32"
    context_length: int | None = None
    voices: list[str] = []
    sizes: list[str] = []
    """Frame sizes ("WxH") that a video model was made for, the default first."""
    fps: int | None = None
    frames_multiple: int = 1
    """A clip of a video model has `k * frames_multiple + 1` frames: the temporal factor of its VAE."""
    size_multiple: int = 2
    """Width and height of a video model's frames are multiples of this: the spatial factor of VAE and patches."""
    image_input: Literal["none", "required"] = "none"
    """Whether a video model starts from a given first frame."""
    sample_rate: int | None = None
    created: int = 0


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One model in OpenAI's shape. `device` is where it runs now."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tessera"
    card: Card | None = None
    device: str | None = None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[Model]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/health` and `/ready`. `parts` says which part is in which state."""

    status: Literal["ok", "starting", "failed"]
    service: str
    version: str
    parts: dict[str, str] = {}
