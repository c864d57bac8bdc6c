"""How a request says that texts that are too long are cut, on the routes of encoders."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

Truncate = bool | Literal["NONE", "START", "END", "none", "start", "end"]
"""Whether a text that is too long is cut, and at which side it loses tokens. `true` is `END`."""
TruncateTokens = Annotated[int, Meta(ge=-1)]
"""Tokens that a text is cut to; -1 for as many as the model takes."""
