"""What every section of the settings is made of: its base class, its numeric types, its descriptions."""

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
    """Base of every section."""


def says(description: str) -> Meta:
    """The sentence that the documented example shows above a key."""
    return Meta(description=description)
