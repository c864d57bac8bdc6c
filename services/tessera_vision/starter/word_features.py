"""What stands in for a picture while the decoder learns to answer: features made of words.

Does not know questions; only training uses it.
"""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch import nn

from tessera_vision.starter.data import CELLS as CELL_NAMES
from tessera_vision.starter.model import HIDDEN
from tessera_vision.starter.sight import CELLS, SPOKEN


class WordFeatures(nn.Module):
    """Cell features of a scene without a picture: sums of the decoder's own vectors of the words for what is there.

    So that to read a feature is to copy a word, and to find what a question means is to find the same word.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(CELLS, HIDDEN))
        self._ids = {
            name: torch.tensor([_word_ids(tokenizer, words) for words in spoken])
            for name, spoken in {**SPOKEN, "place": tuple(cell.split() for cell in CELL_NAMES)}.items()
        }

    def forward(self, classes: dict[str, torch.Tensor], embedding: nn.Embedding) -> torch.Tensor:
        """[scenes, 9, hidden]."""
        place = torch.arange(CELLS, device=self.places.device).expand_as(classes["kind"])
        word = classes["word"].repeat_interleave(3, dim=1)
        known = {
            "place": place,
            "kind": classes["kind"],
            "color": classes["color"],
            "size": classes["size"],
            "word": word,
        }
        ids = torch.cat([self._ids[name].to(place.device)[value] for name, value in known.items()], dim=-1)
        vectors = embedding(ids.clamp(min=0)) * (ids >= 0)[..., None]
        total: torch.Tensor = vectors.sum(dim=2) + self.places
        return total


def _word_ids(tokenizer: Tokenizer, words: list[str]) -> list[int]:
    """Token ids of at most two words as they stand after a space; -1 where there is none."""
    ids: list[int] = []
    for word in words:
        token = tokenizer.token_to_id(f"Ġ{word}")
        assert token is not None, f"{word} is no token"
        ids.append(token)
    return [*ids, -1, -1][:2]
