"""Tessera's attention inside Transformers' models: an `AttentionInterface` with the name `tessera`.

A forward pass runs a ragged batch as `[1, tokens]`. The batch is the keyword argument `tessera_batch`, which the model
passes on to this function, so there is no global. Each attention module holds its own layer's cache. A probe finds the
modules: in a forward pass of one token each records the shape of its keys and values. So no model is named here.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from tessera.errors import ModelLoadError
from tessera_kernels.kv_store import kv_store
from tessera_kernels.paged_attention import Ragged, paged_attention
from tessera_kernels.storage.paged_kv import PagedKV, slot_bytes

NAME = "tessera"
_CACHE = "tessera_kv"


@dataclass(frozen=True)
class AttentionBatch:
    """What attention needs to know about a step.

    Attributes:
        slots_T: int64, the cache slot that each token's keys and values are written to.
        ragged: the pages of each sequence, and the positions that each query sees.
    """

    slots_T: torch.Tensor
    ragged: Ragged


@dataclass(frozen=True)
class AttentionOptions:
    """Options that a layer passes to attention, with the names of `paged_attention`."""

    scaling: float
    sliding_window: int | None
    softcap: float | None
    sinks: bool


@dataclass(frozen=True)
class Probe:
    """Passed instead of a batch to record every attention layer.

    Attributes:
        modules: attention module, key heads, head dim and value dim of each layer, in the order of the forward.
        options: what each layer passed to `attention` beside the tensors.
    """

    modules: list[tuple[torch.nn.Module, int, int, int]]
    options: list[AttentionOptions] = field(default_factory=list)

    def attended(self, query_1QTD: torch.Tensor, _key_1HTD: torch.Tensor, value_1HTE: torch.Tensor) -> torch.Tensor:
        """The tensor [1, T, Q, E] that the layer gets in place of the result of attention."""
        return query_1QTD.new_zeros(1, query_1QTD.shape[2], query_1QTD.shape[1], value_1HTE.shape[3])


def attention(
    module: torch.nn.Module,
    query_1QTD: torch.Tensor,
    key_1HTD: torch.Tensor,
    value_1HTE: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    tessera_batch: AttentionBatch | Probe | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Store this step's keys and values and attend over the pages. Transformers' attention modules call this.

    Returns:
        [1, tokens, query heads, value dim] and None for the weights.

    Raises:
        ModelLoadError: the model does not pass its keyword arguments on to its attention, or it has a mask of its own.
            `probe` raises it when the model is loaded.
    """
    if tessera_batch is None:
        raise ModelLoadError(
            f"the layers {type(module).__name__} do not pass keyword arguments on to their attention, so they cannot "
            "be run in batches of ours"
        )
    if attention_mask is not None:
        raise ModelLoadError(
            f"the layers {type(module).__name__} decide by a mask of their own what is attended to, which batches of "
            "ours have no place for"
        )
    if isinstance(tessera_batch, Probe):
        heads, dim = key_1HTD.shape[1], key_1HTD.shape[3]
        tessera_batch.modules.append((module, heads, dim, value_1HTE.shape[3]))
        tessera_batch.options.append(AttentionOptions(scaling, sliding_window, softcap, s_aux is not None))
        return tessera_batch.attended(query_1QTD, key_1HTD, value_1HTE), None
    cache: PagedKV = getattr(module, _CACHE)
    kv_store(key_1HTD[0].transpose(0, 1), value_1HTE[0].transpose(0, 1), cache, tessera_batch.slots_T)
    out_TQE = paged_attention(
        query_1QTD[0].transpose(0, 1),
        cache,
        tessera_batch.ragged,
        scaling=scaling,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks_Q=s_aux,
    )
    return out_TQE.unsqueeze(0), None


def register() -> None:
    """Register `attention` with Transformers. Idempotent."""
    AttentionInterface.register(NAME, attention)


def probe(model: PreTrainedModel) -> Probe:
    """Run one token through `model` and record its attention layers."""
    layers = Probe([])
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    with torch.inference_mode():
        model(input_ids=token, position_ids=token, use_cache=False, tessera_batch=layers)
    return layers


def bytes_per_token(layers: Probe, dtype: torch.dtype) -> int:
    """Bytes that the keys and values of one position take in all layers when they are stored as `dtype`."""
    return sum(slot_bytes(heads, (dim, value_dim), dtype) for _, heads, dim, value_dim in layers.modules)


def make_caches(
    layers: Probe, *, pages: int, page_size: int, dtype: torch.dtype, device: torch.device
) -> list[PagedKV]:
    """Zeroed storage for every layer. The storage of consecutive layers of equal shape is one block of memory.

    Host storage of a CUDA model is pinned, so that it can be copied asynchronously.
    """
    pinned = device.type == "cpu" and any(
        parameter.is_cuda for module, *_ in layers.modules for parameter in module.parameters()
    )
    caches: list[PagedKV] = []
    for (heads, dim, value_dim), equal in itertools.groupby(layers.modules, key=lambda layer: layer[1:]):
        caches += PagedKV.stacked(
            len(list(equal)), pages, page_size, heads, (dim, value_dim), dtype=dtype, device=device, pinned=pinned
        )
    return caches


def attach_caches(layers: Probe, caches: list[PagedKV]) -> None:
    """Attach each layer's storage to its attention module."""
    for (module, *_), cache in zip(layers.modules, caches, strict=True):
        setattr(module, _CACHE, cache)
