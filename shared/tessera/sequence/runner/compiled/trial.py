"""Tries whether a decoder's layers compute what `int8_decoder` assumes, before weights are quantized.

The model's own layers run on a few tokens, at positions from the first to the last that the model was trained for, and
are recorded. Each layer's queries, keys and values, and what it makes of the result of attention, are compared with the
same computation written out here. So anything else that a model does (no positions in some layers, queries that grow
with their position, a factor on a sum) is detected at the precision of the model's dtype, with the layer that does it.

Shape letters: T tokens, C features, H heads, D head dim, N outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.functional import gelu, silu
from transformers import PreTrainedModel

from tessera.models.attention import Probe
from tessera.sequence.runner.compiled.rotary_order import ORDERS, rotate, rotations
from tessera_kernels.int8_decoder import DecoderConfig, DecoderLayer, DecoderLinear

TRIAL_TOKENS = 8
"""Number of tokens that the layers run on."""
MAX_DIFFERENCE = 1e-4
"""Largest accepted relative root-mean-square difference of a model that computes in float32. Sums in another order
cause less than 1e-6."""
MAX_DIFFERENCE_16_BIT = 0.01
"""Largest accepted relative difference of a model that computes in bfloat16 or float16. SmolLM2 in bfloat16 differs by
up to 0.004."""


@dataclass(frozen=True)
class _RecordingProbe(Probe):
    """Replaces attention: records the queries, keys and values of each layer, and returns random values.

    Attributes:
        attention_inputs: queries, keys and values of each layer.
        attention_outputs: the random values that each layer got, [T, Q·E].
        block_inputs: what enters each layer, [T, C].
        block_outputs: what leaves each layer, [T, C].
        random: makes the random values.
    """

    attention_inputs: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    attention_outputs: list[torch.Tensor] = field(default_factory=list)
    block_inputs: list[torch.Tensor] = field(default_factory=list)
    block_outputs: list[torch.Tensor] = field(default_factory=list)
    random: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))

    def attended(self, query_1QTD: torch.Tensor, key_1HTD: torch.Tensor, value_1HTE: torch.Tensor) -> torch.Tensor:
        random_1TQE = torch.randn(super().attended(query_1QTD, key_1HTD, value_1HTE).shape, generator=self.random)
        self.attention_inputs.append((query_1QTD, key_1HTD, value_1HTE))
        self.attention_outputs.append(random_1TQE[0].flatten(1))
        return random_1TQE.to(query_1QTD)

    def record(self, block: nn.Module) -> list[torch.utils.hooks.RemovableHandle]:
        """Record what enters and what leaves a layer, until the returned handles are removed."""

        def entering(_: nn.Module, arguments: tuple[torch.Tensor, ...], named: dict[str, torch.Tensor]) -> None:
            self.block_inputs.append((arguments[0] if arguments else named["hidden_states"])[0].float())

        def leaving(_: nn.Module, __: object, out: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
            self.block_outputs.append((out if isinstance(out, torch.Tensor) else out[0])[0].float())

        return [
            block.register_forward_pre_hook(entering, with_kwargs=True),
            block.register_forward_hook(leaving),
        ]


@torch.inference_mode()
def try_layers(
    model: PreTrainedModel,
    sizes: DecoderConfig,
    layers: Sequence[DecoderLayer],
    norm_C: torch.Tensor,
    head: DecoderLinear,
) -> torch.Tensor | str:
    """Try a model on a CPU whose weights are not quantized yet.

    Args:
        model: fused, with our attention.
        sizes: of its layers.
        layers: what its layers are assumed to be, with float weights.
        norm_C: weight of the norm behind the last layer.
        head: the linear layer that makes logits.

    Returns:
        The order of a head's elements in which they are rotated (`rotary_order`), int64 [D]; or a sentence that says
        what is different.
    """
    decoder = model.get_decoder()
    last = int(getattr(model.config.get_text_config(), "max_position_embeddings", TRIAL_TOKENS)) - 1
    # The first positions, then positions up to the last one.
    far = [last * part // TRIAL_TOKENS for part in range(TRIAL_TOKENS // 2 + 1, TRIAL_TOKENS + 1)]
    position_1T = torch.tensor([[*range(TRIAL_TOKENS // 2), *far]])
    vocabulary = model.get_input_embeddings().num_embeddings
    ids_1T = torch.randint(vocabulary, (1, TRIAL_TOKENS), generator=torch.Generator().manual_seed(0))
    recorded = _RecordingProbe([])
    handles = [handle for block in decoder.layers for handle in recorded.record(block)]
    try:
        logits_TN = model(
            input_ids=ids_1T,
            position_ids=position_1T,
            use_cache=False,
            logits_to_keep=torch.arange(TRIAL_TOKENS),
            tessera_batch=recorded,
        ).logits[0]
    finally:
        for handle in handles:
            handle.remove()
    bound = MAX_DIFFERENCE if model.dtype == torch.float32 else MAX_DIFFERENCE_16_BIT
    step = torch.finfo(model.dtype).eps

    def same(got: torch.Tensor, expected: torch.Tensor, room: torch.Tensor | float = 0.0) -> bool:
        apart = ((got - expected).abs() - room).clamp_min(0)
        return bool(apart.norm() <= bound * expected.norm())

    cosine_TD, sine_TD = rotations(decoder.rotary_emb, position_1T)
    if cosine_TD.shape[-1] != sizes.head_dim:
        return f"{cosine_TD.shape[-1]} of a head's {sizes.head_dim} elements are rotated"
    if not same(model.get_input_embeddings()(ids_1T)[0].float(), recorded.block_inputs[0]):
        return "its layers do not begin with the embeddings"
    orders = [order(sizes.head_dim) for order in ORDERS]
    for number, layer in enumerate(layers):
        x_TC = recorded.block_inputs[number]
        if number and not same(recorded.block_outputs[number - 1], x_TC):
            return f"something is done before layer {number}"
        query_THD, key_THD, value_THD = (one[0].transpose(0, 1).float() for one in recorded.attention_inputs[number])
        both_THD, ours_THD = _heads(x_TC, layer, sizes)
        theirs_THD = torch.cat([query_THD, key_THD], dim=1)
        rotation = (cosine_TD[:, None], sine_TD[:, None])
        orders = [order for order in orders if same(rotate(both_THD[..., order], *rotation), theirs_THD[..., order])]
        if not orders:
            return f"layer {number} makes queries and keys in another way"
        if not same(ours_THD, value_THD):
            return f"layer {number} makes values in another way"
        made_TC = _behind_attention(x_TC, recorded.attention_outputs[number], layer, sizes)
        # What the layer adds is compared. A few elements of its input may be much larger than that: each element is
        # allowed the rounding error of its own input and output, and no more.
        left_TC = recorded.block_outputs[number]
        if not same(made_TC - x_TC, left_TC - x_TC, step * torch.maximum(x_TC.abs(), left_TC.abs())):
            return f"layer {number} makes something else of what it attended to"
    if not same(_product(_norm(recorded.block_outputs[-1], norm_C, sizes), head), logits_TN.float()):
        return "its head makes other logits"
    return orders[0]


def _heads(x_TC: torch.Tensor, layer: DecoderLayer, sizes: DecoderConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys before they are rotated, in one tensor [T, H, D]; and values [T, H, D]."""
    heads_THD = _product(_norm(x_TC, layer.norm_C, sizes), layer.qkv).view(len(x_TC), -1, sizes.head_dim)
    query_THD, key_THD, value_THD = torch.split(heads_THD, [sizes.heads, sizes.kv_heads, sizes.kv_heads], dim=1)
    if layer.query_norm_D is not None:
        query_THD = _norm(query_THD, layer.query_norm_D, sizes)
    if layer.key_norm_D is not None:
        key_THD = _norm(key_THD, layer.key_norm_D, sizes)
    return torch.cat([query_THD, key_THD], dim=1), value_THD


def _behind_attention(
    x_TC: torch.Tensor, attended_TN: torch.Tensor, layer: DecoderLayer, sizes: DecoderConfig
) -> torch.Tensor:
    x_TC = x_TC + _product(attended_TN, layer.out)
    gate_TN, up_TN = _product(_norm(x_TC, layer.mlp_norm_C, sizes), layer.gate_up).chunk(2, dim=-1)
    gate_TN = silu(gate_TN) if sizes.activation == "silu" else gelu(gate_TN, approximate="tanh")
    return x_TC + _product(gate_TN * up_TN, layer.down)


def _norm(x: torch.Tensor, weight: torch.Tensor, sizes: DecoderConfig) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + sizes.epsilon).rsqrt() * weight


def _product(x: torch.Tensor, linear: DecoderLinear) -> torch.Tensor:
    bias = 0 if linear.bias_N is None else linear.bias_N.float()
    return x @ linear.weight.weight_KN.float() + bias
