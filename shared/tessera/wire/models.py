"""Models as `/v1/models` shows them: OpenAI's four fields plus our card.

Does not know where models come from: see `tessera.hub`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Task = Literal[
    "chat",
    "completions",
    "embeddings",
    "rerank",
    "score",
    "classify",
    "moderations",
    "vision",
    "video",
    "speech",
    "transcription",
]

StepCacheName = Literal["first_block", "polynomial", "magnitude"]


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured quality of a model, with the bar that it has to meet."""

    name: str
    value: float
    unit: str = ""
    """Unit that is written after the value. Shares are percentages: 0 to 100 and "%"."""
    samples: int = 0
    """Number of held-out samples that the value was measured on; 0 if a number of samples means nothing."""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the value meets its bar. A measure without a bar is a report, and passes."""
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )


class ClipMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that a worker has for clips, so that a clip that can never fit is refused before it is a job."""

    capacity: int
    """Bytes of device memory beside the model."""
    shapes: dict[str, int | float]
    """Shapes of the model that an estimate needs: `tessera.hub.clip_memory.Shapes`."""
    tile_above: int = 0
    """Pixels of a frame above which the VAE always decodes in tiles; 0 for no such size."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a model, stored as `card.json` in its directory."""

    id: str
    family: str
    tasks: list[Task]
    source: str
    parameters: int
    licence: str
    notice: str | None = None
    """What a user must know before judging an answer, e.g. that the weights are random."""
    example: str | None = None
    """A prompt that shows what a specialized model was made for; a demo uses it. None for a general model."""
    revision: str = ""
    sha256: dict[str, str] = {}
    """SHA-256 checksum of every weight file, by name inside the directory."""
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
    image_input: Literal["none", "optional", "required"] = "none"
    """Whether a video model starts from a given first frame."""
    steps: int | None = None
    """Recommended number of denoising steps of a video model."""
    guidance_scale: float | None = None
    """Recommended guidance scale of a video model."""
    clip_memory: ClipMemory | None = None
    """Memory of the video worker that has the least, so that every worker can do an accepted clip; None without
    workers."""
    guidance_scale_2: float | None = None
    """Recommended guidance scale of the second expert."""
    step_caches: list[StepCacheName] | None = None
    """Step caches that a request to a video model can use: those that each of its workers has. None if that is not
    known: for other models, and where neither a worker nor the model's files are."""
    adapters: list[str] = []
    """Names of the low-rank adapters (LoRA) that a request to a video model can use."""
    experts: int = 1
    """Number of transformers that share a video model's steps: two for the large models of Wan 2.2."""
    sample_rate: int | None = None
    window_s: float | None = None
    """Length in seconds of a transcription model's window."""
    created: int = 0
    data: str = ""
    """Training data, with sources and licences."""
    seed: int | None = None
    """Seed of the training."""
    quality: list[Measure] = []
    """Qualities measured on held-out data."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One model in OpenAI's shape. `device` is where it runs now. `root` is the model that an alias stands for; None
    under a model's own name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tessera"
    card: Card | None = None
    device: str | None = None
    root: str | None = None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[Model]


ReadyStatus = Literal["ok", "starting", "failed", "draining"]
"""State of a server; one that drains was told to stop and finishes what it has begun."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/health` and `/ready`. `parts` says which part is in which state."""

    status: ReadyStatus
    service: str
    version: str
    parts: dict[str, str] = {}
