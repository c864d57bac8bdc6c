"""Eight elements of four bits in a 32-bit word, as GPTQ and AWQ store them. Knows nothing of what elements mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch

IN_ORDER = tuple(range(8))


def unpack_words(words: torch.Tensor, order: Sequence[int] = IN_ORDER) -> torch.Tensor:
    """Unpack int32 [..., words] to uint8 [..., 8 · words]; the i-th lowest four bits are element `order[i]`."""
    found = (words[..., None] >> torch.arange(0, 32, 4, device=words.device, dtype=torch.int32)) & 15
    places = torch.tensor([list(order).index(place) for place in range(8)], device=words.device)
    return found[..., places].flatten(-2).to(torch.uint8)


def check_words(name: str, words: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Check words.

    Raises:
        ValueError: they are not int32 of that shape.
    """
    if words.dtype != torch.int32 or tuple(words.shape) != shape:
        raise ValueError(f"{name} must be int32 {shape}, not {words.dtype} {tuple(words.shape)}")
