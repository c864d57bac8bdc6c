"""Features made of word embeddings, in place of a picture's, while the decoder learns to answer.

Only training uses them. Knows nothing about questions.
"""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch import nn

from tessera_vision.starter.data import CELLS as CELL_NAMES
from tessera_vision.starter.dense_targets import CELLS, SPOKEN
from tessera_vision.starter.model import HIDDEN


class WordFeatures(nn.Module):
    """Cell features of a scene without a picture: sums of the decoder's own embeddings of the words for its items.

    The decoder can then answer by copying a word from a feature, and find what a question means by matching words.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(CELLS, HIDDEN))
        self._ids = {
            name: torch.tensor([_word_ids(tokenizer, words) for words in spoken])
            for name, spoken in {**SPOKEN, "place": tuple(cell.split() for cell in CELL_NAMES)}.items()
        }

    def forward(self, classes: dict[str, torch.Tensor], embedding: nn.Embedding) -> torch.Tensor:
        """Cell features of scenes with these classes, [scenes, 9, hidden]."""
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
    """Token ids of at most two words, each after a space; -1 where there is no word."""
    ids: list[int] = []
    for word in words:
        token = tokenizer.token_to_id(f"Ġ{word}")
        assert token is not None, f"{word} is no token"
        ids.append(token)
    return [*ids, -1, -1][:2]
