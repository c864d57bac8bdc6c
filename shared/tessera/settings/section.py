"""What every section of the settings is made of: its base class, its types of numbers, its descriptions."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Service = Literal["text", "vision", "video", "speech"]
Port = Annotated[int, Meta(ge=1, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
PositiveFloat = Annotated[float, Meta(gt=0)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every section: immutable, and a key that it does not have is refused."""


def described(description: str) -> Meta:
    """Attach the description of a key, which the documented example shows above it.

    Args:
        description: whole sentences that name the unit, the range and what an empty or zero value means.
    """
    return Meta(description=description)


HOST = described("Address to listen on.")
PORT = described("TCP port to listen on, 1 to 65535.")
URL = described("Address where the gateway reaches this service. Empty: `http://host:port` of this section.")
MODEL = described("Model to serve: the name of a starter, the path of a model directory, or `hf:owner/name` of a hub.")
DEVICE = described("Device that computes. `auto` takes CUDA where there is a GPU, else the CPU.")
THREADS = described("CPU threads that compute, at least 0. 0 takes all cores of the machine.")
