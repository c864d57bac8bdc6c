"""Finds out whether a model on a CPU is a stack of layers that `int8_decoder` can run, and runs it there.

No model is named: the parts are recognized by the structure of the modules, `trial` checks before weights are quantized
that they compute what is assumed, and the compiled decoder is checked once more. A model that does not fit runs through
its own layers, and the log gives the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from tessera.models.attention import AttentionBatch, AttentionOptions, Probe
from tessera.models.fusion import FusedSlice, RMSNorm
from tessera.models.quantized import Int8Linear
from tessera.sequence.batch import TopLogit
from tessera.sequence.runner.compiled.key_smoothing import smooth_keys
from tessera.sequence.runner.compiled.rotary_order import reorder, rotations
from tessera.sequence.runner.compiled.trial import try_layers
from tessera_kernels.int8_decoder import (
    Activation,
    Decoder,
    DecoderConfig,
    DecoderLayer,
    DecoderLinear,
    unsupported_reason,
)
from tessera_kernels.int8_linear import Int8Weight
from tessera_kernels.paged_attention import Ragged
from tessera_kernels.storage.paged_kv import PagedKV

TRIAL_TOKENS = 24
"""Number of random tokens that the compiled decoder is checked with."""
MAX_LOGIT_DIFFERENCE = 0.05
"""Largest accepted relative root-mean-square difference of logits. Values that are quantized to the neighbouring
integer cause 0.01: a model's own logits differ by as much when its inputs change by 1e-7."""
MEMORY_BOUND_MAX_ROWS = 4
"""Most rows of a step that is bound by reading weights from memory, so that one thread less computes as fast."""
DOWN_GROUP = 128
"""Number of inputs of the down projection that share a scale. Gated activations are uneven, and quantizing them costs
more than all else. The perplexity of SmolLM2-135M over 20,000 tokens is 1.0040 to 1.0047 times that of float32 (`make
bench ARGS=quality`; the spread is that of rounding), and 1.0087 times with one scale for a row."""
ROTARY_TABLE_POSITIONS = 8192
"""Number of first positions whose rotations are computed once and kept."""
STATIC_ROTARY = {"default", "linear", "llama3", "yarn"}
"""Types of rotary embeddings that do not depend on the length of the sequence."""
_ACTIVATIONS: dict[str, Activation] = {
    "SiLUActivation": "silu",
    "SiLU": "silu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}


class _DifferentError(Exception):
    """The model is not what `int8_decoder` runs; the message says what is different."""


def spared_threads(rows: int) -> int:
    """Number of threads that a step of `rows` rows leaves idle: one for few rows, else none.

    A step of few rows is bound by memory bandwidth, which one thread less uses as fully; and threads that wait for each
    other hold the cores that the service needs to send the tokens.
    """
    return 1 if rows <= MEMORY_BOUND_MAX_ROWS else 0


class CompiledDecoder:
    """A model's decoder as one compiled step.

    Args:
        model: its embeddings, rotary embedding and last norm are used.
        decoder: the compiled layers and head, made from the model.
    """

    def __init__(self, model: PreTrainedModel, decoder: Decoder) -> None:
        self._embed = model.get_input_embeddings()
        self._rotary = model.get_decoder().rotary_emb
        self._rotary_table: tuple[torch.Tensor, torch.Tensor] | None = None
        """Cosines and sines of the first positions, which Transformers computes at each step in ten operations."""
        self._norm: RMSNorm = model.get_decoder().norm
        self._decoder = decoder

    def run(
        self,
        input_1T: torch.Tensor,
        position_1T: torch.Tensor,
        batch: AttentionBatch,
        rows_R: torch.Tensor,
        *,
        hidden: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, TopLogit | None]:
        """Run one step.

        Args:
            input_1T: int64 token ids, or float embeddings [1, T, C].
            position_1T: int64 positions of the tokens.
            batch: the slots that keys and values are written to, and the pages that are read.
            rows_R: int64 indices of the tokens whose logits are wanted.
            hidden: whether the last hidden states are wanted too.

        Returns:
            Logits [R, V]; hidden states [T, C] behind the final norm, or None; and the largest logit of each row.
        """
        embedded = input_1T if input_1T.is_floating_point() else self._embed(input_1T)
        # A copy, because the layers write to it.
        x_TC = embedded[0].to(torch.float32).clone(memory_format=torch.contiguous_format)
        cosine_TD, sine_TD = self._rotations(position_1T)
        logits_RV, *likeliest = self._decoder.run(
            x_TC,
            (cosine_TD, sine_TD),
            batch.slots_T,
            batch.ragged,
            rows_R,
            threads=max(1, torch.get_num_threads() - spared_threads(len(x_TC))),
        )
        return logits_RV, self._norm(x_TC) if hidden else None, TopLogit(*likeliest)

    def _rotations(self, position_1T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of the tokens' positions, float32 [T, D]."""
        most = int(position_1T.max()) + 1
        if most > ROTARY_TABLE_POSITIONS or getattr(self._rotary, "rope_type", None) not in STATIC_ROTARY:
            return rotations(self._rotary, position_1T)
        if self._rotary_table is None:
            self._rotary_table = rotations(self._rotary, torch.arange(ROTARY_TABLE_POSITIONS)[None])
        cosine_PD, sine_PD = self._rotary_table
        return cosine_PD[position_1T[0]], sine_PD[position_1T[0]]


@dataclass(frozen=True)
class Examination:
    """Result of examining a model whose weights are not quantized yet.

    Attributes:
        reason: why the model cannot run as one compiled step; empty when it can.
        order_D: the order of a head's elements that `rotary_order` found, int64.
    """

    reason: str
    order_D: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))


def examine(model: PreTrainedModel, layers: Probe, caches: Sequence[PagedKV]) -> Examination:
    """Find out whether a model can run as one compiled step once its weights are int8.

    Args:
        model: on a CPU, fused and with our attention.
        layers: from a probe of the model.
        caches: have the dtype, page size and shapes of those that the model will get.
    """
    try:
        sizes, parts, norm, head = _describe(model, layers)
    except _DifferentError as error:
        return Examination(str(error))
    if reason := unsupported_reason(sizes, parts, head, caches):
        return Examination(reason)
    tried = try_layers(model, sizes, parts, _weight_of(norm), head)
    return Examination(tried) if isinstance(tried, str) else Examination("", tried)


def compile_decoder(
    model: PreTrainedModel,
    layers: Probe,
    caches: Sequence[PagedKV],
    largest_keys: Sequence[torch.Tensor],
    order_D: torch.Tensor,
) -> tuple[CompiledDecoder | None, str]:
    """The model's decoder as a compiled step, or None and the reason why it cannot be one.

    Args:
        model: on a CPU, fused and with int8 weights. The weights of its own layers are freed when it was compiled.
        layers: from a probe of the model.
        caches: attached to the model.
        largest_keys: largest magnitudes of each layer's keys, for `smooth_keys`.
        order_D: from `examine`, before weights were quantized.
    """
    try:
        sizes, parts, norm, head = _describe(model, layers)
    except _DifferentError as error:
        return None, str(error)
    if reason := unsupported_reason(sizes, parts, head, caches):
        return None, reason
    linears = [linear for part in parts for linear in (part.qkv, part.out, part.gate_up, part.down)]
    if any(linear.weight.weight_KN.dtype != torch.int8 for linear in [*linears, head]):
        return None, "some of its layers are too small to be kept in 8 bits"
    parts = [reorder(part, sizes, order_D) for part in parts]
    if caches[0].key_PSHD.dtype == torch.int8:
        largest_HD = [largest[:, order_D] for largest in largest_keys]
        parts = [smooth_keys(part, sizes, largest) for part, largest in zip(parts, largest_HD, strict=True)]
    compiled = CompiledDecoder(model, Decoder(sizes, parts, _weight_of(norm), head, caches))
    if (far := _logit_difference(model, compiled, caches)) > MAX_LOGIT_DIFFERENCE:
        return None, f"its layers compute something else: logits differ by {far:.3f}"
    for module in model.get_decoder().layers.modules():
        if isinstance(module, Int8Linear):
            module.free()
    output = model.get_output_embeddings()
    if isinstance(output, Int8Linear):
        output.free()
    return compiled, ""


def _describe(
    model: PreTrainedModel, layers: Probe
) -> tuple[DecoderConfig, list[DecoderLayer], RMSNorm, DecoderLinear]:
    decoder = model.get_decoder()
    output = model.get_output_embeddings()
    blocks, norm = getattr(decoder, "layers", None), getattr(decoder, "norm", None)
    if not isinstance(blocks, nn.ModuleList) or not isinstance(norm, RMSNorm) or not hasattr(decoder, "rotary_emb"):
        raise _DifferentError("it is not a row of layers with rotary positions and one norm behind them")
    if len(blocks) != len(layers.modules):
        raise _DifferentError(f"{len(blocks)} layers, but {len(layers.modules)} attend")
    attending = {module: (shape, one) for (module, *shape), one in zip(layers.modules, layers.options, strict=True)}
    described = [_layer(block, attending) for block in blocks]
    if len({sizes for sizes, _ in described}) != 1:
        raise _DifferentError("its layers are not all of one shape")
    return described[0][0], [layer for _, layer in described], norm, _linear(output)


def _layer(
    block: nn.Module, attending: dict[nn.Module, tuple[list[int], AttentionOptions]]
) -> tuple[DecoderConfig, DecoderLayer]:
    children = dict(block.named_children())
    if set(children) != _LAYER:
        raise _DifferentError(f"a layer of {', '.join(sorted(children))}")
    attention, mlp = children["self_attn"], children["mlp"]
    norms = (children["input_layernorm"], children["post_attention_layernorm"])
    if attention not in attending or not all(isinstance(norm, RMSNorm) for norm in norms):
        raise _DifferentError("a layer's norms or its attention are of another kind")
    (kv_heads, dim, value_dim), options = attending[attention]
    if options.softcap is not None or options.sinks or dim != value_dim:
        raise _DifferentError("attention with capped scores, sinks, or values of another width than keys")
    qkv = _fused(attention, ("q_proj", "k_proj", "v_proj"))
    gate_up = _fused(mlp, ("gate_proj", "up_proj"))
    activation = _ACTIVATIONS.get(type(getattr(mlp, "act_fn", None)).__name__)
    if activation is None:
        raise _DifferentError(f"an MLP with {type(getattr(mlp, 'act_fn', None)).__name__}")
    first, second = norms
    assert isinstance(first, RMSNorm)
    assert isinstance(second, RMSNorm)
    if first.epsilon != second.epsilon:
        raise _DifferentError("norms of different epsilons")
    heads = qkv.weight.weight_KN.shape[1] // dim - 2 * kv_heads
    sizes = DecoderConfig(len(first.weight), heads, kv_heads, dim, activation, first.epsilon, options.scaling)
    return sizes, DecoderLayer(
        _weight_of(first),
        qkv,
        _head_norm(attention, "q_norm", sizes),
        _head_norm(attention, "k_norm", sizes),
        _linear(getattr(attention, "o_proj", None)),
        _weight_of(second),
        gate_up,
        replace(_linear(getattr(mlp, "down_proj", None)), group=DOWN_GROUP),
        options.sliding_window,
    )


def _head_norm(attention: nn.Module, name: str, sizes: DecoderConfig) -> torch.Tensor | None:
    norm = getattr(attention, name, None)
    if norm is None:
        return None
    if not isinstance(norm, RMSNorm) or len(norm.weight) != sizes.head_dim or norm.epsilon != sizes.epsilon:
        raise _DifferentError(f"`{name}` is not a norm of each head")
    return _weight_of(norm)


def _fused(owner: nn.Module, names: Sequence[str]) -> DecoderLinear:
    parts = [getattr(owner, name, None) for name in names]
    first = parts[0]
    if not all(isinstance(part, FusedSlice) and part.index == index for index, part in enumerate(parts)):
        raise _DifferentError(f"{' and '.join(names)} are not one product")
    assert isinstance(first, FusedSlice)
    if len(first.projections.widths) != len(names):
        raise _DifferentError(f"more than {' and '.join(names)} are one product")
    return _linear(first.projections.linear)


def _linear(module: Any) -> DecoderLinear:
    if isinstance(module, Int8Linear):
        return DecoderLinear(module.weight, module.bias)
    if type(module) is not nn.Linear:
        raise _DifferentError(f"{type(module).__name__} where a linear layer is expected")
    # Not quantized yet: only the shape is read.
    nothing = torch.zeros(0)
    return DecoderLinear(Int8Weight(module.weight.t(), nothing, nothing.long(), nothing, nothing), module.bias)


def _weight_of(norm: RMSNorm) -> torch.Tensor:
    return norm.weight.detach().float() + norm.offset


@torch.inference_mode()
def _logit_difference(model: PreTrainedModel, compiled: CompiledDecoder, caches: Sequence[PagedKV]) -> float:
    """Relative root-mean-square difference of the logits of some random tokens from the model's own."""
    page_size = caches[0].key_PSHD.shape[1]
    count = min(TRIAL_TOKENS, len(caches[0].key_PSHD) * page_size)
    vocabulary = model.get_input_embeddings().num_embeddings
    ids_1T = torch.randint(vocabulary, (1, count), generator=torch.Generator().manual_seed(0))
    position_1T = torch.arange(count)[None]
    pages = torch.arange(-(-count // page_size), dtype=torch.int32)[None]
    batch = AttentionBatch(torch.arange(count), Ragged(pages, torch.tensor([count]), [count]))
    every = torch.arange(count)
    expected = model(
        input_ids=ids_1T, position_ids=position_1T, use_cache=False, logits_to_keep=every, tessera_batch=batch
    ).logits[0]
    got, _, _ = compiled.run(ids_1T, position_1T, batch, every)
    return _relative_difference(got, expected)


def _relative_difference(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm().clamp_min(1e-9))
