"""What is made of the hidden states of an embedding model: pooling, dense layers, length one.

The definitions are those of sentence-transformers. Shape letters: T tokens of the row, N texts, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.functional import gelu, linear, normalize, relu

from tessera.errors import ModelLoadError
from tessera.hub.encoder_files import DenseLayer, EncoderFiles
from tessera.settings.encoders import PoolingKind
from tessera.wire.engine import EncoderText

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Tanh": torch.tanh,
    "ReLU": relu,
    "GELU": gelu,
    "Identity": lambda values: values,
}


def pool(hidden_TH: torch.Tensor, texts: Sequence[EncoderText], kind: PoolingKind) -> torch.Tensor:
    """One vector [N, H] for each text of a row, in float32."""
    lengths = [len(text.token_ids) for text in texts]
    ends = torch.cumsum(torch.tensor(lengths), 0).to(hidden_TH.device)
    if kind == "last":
        return hidden_TH[ends - 1].float()
    if kind == "cls":
        return hidden_TH[ends - torch.tensor(lengths).to(hidden_TH.device)].float()
    parts = [part[text.skip :].float() for part, text in zip(torch.split(hidden_TH, lengths), texts, strict=True)]
    # Text by text, so that the sum does not depend on what else is in the row.
    return torch.stack([part.amax(dim=0) if kind == "max" else part.mean(dim=0) for part in parts])


class EmbeddingHead:
    """Makes embeddings of hidden states.

    Args:
        files: says how.
        directory: has the weights of dense layers.
        device: where they are computed.

    Raises:
        ModelLoadError: the weights of a dense layer are missing or have other shapes than its configuration.
    """

    def __init__(self, files: EncoderFiles, directory: Path, device: torch.device) -> None:
        self.pooling = files.pooling
        self.normalized = files.normalized
        self._dense = [(_weights(directory, layer, device), layer) for layer in files.dense]

    def __call__(self, hidden_TH: torch.Tensor, texts: Sequence[EncoderText]) -> torch.Tensor:
        """The embeddings of the texts of a row, float32 [N, values]."""
        vectors = pool(hidden_TH, texts, self.pooling)
        for (weight, bias), layer in self._dense:
            vectors = _ACTIVATIONS[layer.activation](linear(vectors, weight, bias))
        return normalize(vectors, dim=1) if self.normalized else vectors


def _weights(directory: Path, layer: DenseLayer, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    path = directory / layer.folder / "model.safetensors"
    try:
        found = load_file(path)
        weight = found["linear.weight"].float()
        bias = found["linear.bias"].float() if layer.bias else None
    except Exception as error:  # safetensors raises its own SafetensorError, which derives from Exception alone
        raise ModelLoadError(f"cannot read the dense layer {path}: {error}") from error
    if weight.shape != (layer.outputs, layer.inputs):
        raise ModelLoadError(
            f"{path} is {tuple(weight.shape)}, but its configuration says ({layer.outputs}, {layer.inputs})"
        )
    return weight.to(device), None if bias is None else bias.to(device)
