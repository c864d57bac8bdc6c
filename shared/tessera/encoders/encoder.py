"""An encoder that is loaded: texts in, one row of float32 values for each out.

Texts are sorted by length and packed into one row without padding; `packing` keeps them apart. Knows no queue.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from tessera.encoders.packing import Packing
from tessera.hub.encoder_files import EncoderFiles
from tessera.wire.engine import EncoderText
from tessera.wire.models import Card

Head = Callable[[torch.Tensor, Sequence[EncoderText]], torch.Tensor]
"""Makes a row of values for each text of the hidden states [T, H] of a packed row."""


class PackedModel:
    """The base of an encoder: hidden states of packed texts.

    Args:
        model: runs on our attention.
        first_position: position of the first token of a text; the RoBERTas begin behind their padding.
    """

    def __init__(self, model: PreTrainedModel, first_position: int = 0) -> None:
        self.model = model
        self.first_position = first_position
        takes = inspect.signature(model.forward).parameters
        self._takes_types = "token_type_ids" in takes
        self._more: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}

    def hidden(self, texts: Sequence[EncoderText], packing: Packing) -> torch.Tensor:
        """The last hidden states [T, H] of texts, which are in ascending order of their lengths."""
        device = self.model.device
        ids = [token for text in texts for token in text.token_ids]
        positions = [
            position
            for text in texts
            for position in range(self.first_position, self.first_position + len(text.token_ids))
        ]
        more = dict(self._more)
        if self._takes_types:
            types = [kind for text in texts for kind in text.types or [0] * len(text.token_ids)]
            more["token_type_ids"] = torch.tensor([types], device=device)
        found: torch.Tensor = self.model(
            input_ids=torch.tensor([ids], device=device),
            position_ids=torch.tensor([positions], device=device),
            tessera_packing=packing,
            **more,
        ).last_hidden_state
        return found[0]


class Encoder:
    """A model with its head.

    Args:
        card: says what it is and how long texts may be.
        directory: where its files are.
        files: what they say.
        model: computes hidden states.
        head: makes rows of them.
    """

    def __init__(self, card: Card, directory: Path, files: EncoderFiles, model: PackedModel, head: Head) -> None:
        self.card = card
        self.directory = directory
        self.files = files
        self.model = model
        self.head = head

    @torch.inference_mode()
    def run(self, texts: Sequence[EncoderText]) -> torch.Tensor:
        """A row of float32 values for each text, in the order of the texts, on the CPU."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index].token_ids))
        ordered = [texts[index] for index in order]
        packing = Packing.of([len(text.token_ids) for text in ordered], self.model.model.device)
        rows = self.head(self.model.hidden(ordered, packing), ordered).cpu()
        unordered = torch.empty_like(rows)
        unordered[torch.tensor(order)] = rows
        return unordered
