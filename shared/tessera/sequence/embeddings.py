"""Embeddings: the normalized mean of a request's last hidden states, added up chunk by chunk."""

from __future__ import annotations

import numpy as np
import torch

from tessera.errors import InternalError
from tessera.sequence.batch import Batch
from tessera.sequence.request import SequenceRequest
from tessera.wire.engine import Array, Embedded

NOT_FINITE = "the model's output is not finite (overflow); try another prompt"


def add_hidden_states(batch: Batch, hidden_TD: torch.Tensor | None) -> list[SequenceRequest]:
    """Add a step's hidden states to its embedding requests.

    Args:
        batch: Computed batch.
        hidden_TD: Last hidden states of all its tokens; None if none of its requests is an embedding.

    Returns:
        The embedding requests that have all of their hidden states.
    """
    complete: list[SequenceRequest] = []
    offset = 0
    for chunk in batch.chunks:
        request = chunk.request
        if request.sampling is None:
            assert hidden_TD is not None
            part = hidden_TD[offset : offset + chunk.count].float().sum(dim=0)
            request.pooled = part if request.pooled is None else request.pooled + part
            if chunk.completes:
                complete.append(request)
        offset += chunk.count
    return complete


def finish_embedding(request: SequenceRequest) -> Embedded:
    """Return the answer to a request that `add_hidden_states` returned.

    Raises:
        InternalError: The model's output is not finite.
    """
    pooled: torch.Tensor = request.pooled
    if not torch.isfinite(pooled).all():
        raise InternalError(NOT_FINITE)
    vector = torch.nn.functional.normalize(pooled / len(request.token_ids), dim=0)
    data = np.ascontiguousarray(vector.cpu().numpy(), dtype="<f4")
    return Embedded(
        request_id=request.request_id,
        vector=Array(dtype="float32", shape=list(data.shape), data=data.tobytes()),
    )
