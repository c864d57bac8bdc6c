"""Eight numbers of four bits in a 32-bit word, as GPTQ and AWQ store them. Does not know what the numbers mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch

IN_ORDER = tuple(range(8))


def numbers_of(words: torch.Tensor, order: Sequence[int] = IN_ORDER) -> torch.Tensor:
    """uint8 [..., 8 · words] of int32 [..., words]; the i-th four bits, from the lowest, are number `order[i]`."""
    found = (words[..., None] >> torch.arange(0, 32, 4, device=words.device, dtype=torch.int32)) & 15
    places = torch.tensor([list(order).index(place) for place in range(8)], device=words.device)
    return found[..., places].flatten(-2).to(torch.uint8)


def check_words(name: str, words: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless these are words of that shape."""
    if words.dtype != torch.int32 or tuple(words.shape) != shape:
        raise ValueError(f"{name} must be int32 {shape}, not {words.dtype} {tuple(words.shape)}")
