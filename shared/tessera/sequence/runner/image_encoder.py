"""Encodes a request's images once, when it arrives, and puts their features in place of its image tokens.

Works with every Transformers class that has `get_image_features` and one token per feature, as long as its decoder
treats an image token like any other token. Does not know how an image became pixel tensors: the service's preprocessing
does.
"""

from __future__ import annotations

import inspect
import json
import logging
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from tessera.errors import InvalidRequestError
from tessera.sequence.batch import Chunk
from tessera.wire.engine import Array

logger = logging.getLogger(__name__)

_DTYPES = frozenset({"float32", "float16", "int64", "int32", "bool", "uint8"})


@dataclass(frozen=True)
class ImageFeatures:
    """Image features of one request.

    Attributes:
        rows_ND: [image tokens, hidden], in the order of the request's image tokens.
        positions: row of `rows_ND` by position in the request.
    """

    rows_ND: torch.Tensor
    positions: dict[int, int]


def to_tensor(array: Array) -> torch.Tensor:
    """Copy an array from the wire into a tensor.

    Raises:
        InvalidRequestError: the dtype is not allowed, or the size does not fit the shape.
    """
    if array.dtype not in _DTYPES:
        raise InvalidRequestError(f"arrays of dtype {array.dtype!r} are not accepted")
    try:
        return torch.from_numpy(np.frombuffer(array.data, dtype=array.dtype).reshape(array.shape).copy())
    except ValueError as error:
        raise InvalidRequestError(f"an array does not fit its shape {array.shape}: {error}") from error


def why_unsupported(model: PreTrainedModel) -> str | None:
    """The reason why this model's answers would be silently wrong with one position per token and features in place of
    image tokens; None when they are right."""
    needed = inspect.signature(model.forward).parameters.keys() & {"token_type_ids", "mm_token_type_ids"}
    if needed or hasattr(model.base_model, "get_rope_index"):
        return "its decoder gives image tokens positions or attention of their own"
    if "deepstack" in json.dumps(model.config.to_dict(), default=str):
        return "its decoder takes features in several layers"
    return None


class ImageEncoder:
    """The vision part of a loaded vision-language model.

    Args:
        model: the whole model.
        image_token: id of the token that stands for one image feature.
    """

    def __init__(self, model: PreTrainedModel, image_token: int) -> None:
        self.model = model
        self.image_token = image_token

    @classmethod
    def of(cls, model: PreTrainedModel) -> ImageEncoder | None:
        """The encoder of `model`; None when it has none, or when its decoder needs more than the features."""
        token = getattr(model.config, "image_token_id", None)
        if token is None or not hasattr(model, "get_image_features"):
            return None
        if reason := why_unsupported(model):
            logger.warning("%s: images are refused, because %s", type(model).__name__, reason)
            return None
        return cls(model, token)

    @torch.inference_mode()
    def encode(self, token_ids: list[int], media: dict[str, Array]) -> ImageFeatures:
        """Compute the features of a request's images.

        Args:
            token_ids: the prompt, with one image token per feature.
            media: the processor's tensors, by the names that `get_image_features` takes.

        Raises:
            InvalidRequestError: the images give another number of features than the prompt has image tokens.
        """
        device, dtype = self.model.device, self.model.dtype
        tensors = {name: to_tensor(array).to(device) for name, array in media.items()}
        tensors = {name: value.to(dtype) if value.is_floating_point() else value for name, value in tensors.items()}
        output = self.model.get_image_features(**tensors)
        rows = output if isinstance(output, torch.Tensor) else output.pooler_output
        rows_ND = torch.cat([part.flatten(0, -2) for part in rows]) if isinstance(rows, list | tuple) else rows
        rows_ND = rows_ND.flatten(0, -2)
        positions = [index for index, token in enumerate(token_ids) if token == self.image_token]
        if len(positions) != rows_ND.shape[0]:
            raise InvalidRequestError(
                f"the prompt has {len(positions)} image tokens, but the images give {rows_ND.shape[0]} features"
            )
        return ImageFeatures(rows_ND, {position: row for row, position in enumerate(positions)})

    def embed(self, ids_1T: torch.Tensor, chunks: list[Chunk]) -> torch.Tensor:
        """Input embeddings [1, tokens, hidden] of a ragged batch, with image features in place of image tokens."""
        embeds_1TD: torch.Tensor = self.model.get_input_embeddings()(ids_1T).clone()
        offset = 0
        for chunk in chunks:
            features: ImageFeatures | None = chunk.request.media
            if features is not None:
                inside = [p for p in range(chunk.start, chunk.start + chunk.count) if p in features.positions]
                if inside:
                    targets = torch.tensor([offset + p - chunk.start for p in inside], device=embeds_1TD.device)
                    rows = torch.tensor([features.positions[p] for p in inside], device=embeds_1TD.device)
                    embeds_1TD[0, targets] = features.rows_ND[rows].to(embeds_1TD.dtype)
            offset += chunk.count
        return embeds_1TD
