"""Whether a decoder's layers compute what `int8_decoder` takes them for: tried, before weights are rounded.

A model's own layers are run on a few tokens, at positions from the first to the last that it was made for, and watched:
each layer's queries, keys and values, and what it makes of what comes back from attention, are compared with the same
written down here. So whatever a model does beside (no positions in some layers, queries that grow with their position,
a factor on a sum) is seen at the precision of its numbers, and by which layer it is.

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
"""Tokens."""
MAX_DIFFERENCE = 1e-4
"""Relative root-mean-square difference of a model that computes in float32; sums in another order cost under 1e-6."""
MAX_DIFFERENCE_16_BIT = 0.01
"""Of one in bfloat16 or float16; SmolLM2 in bfloat16 differs by up to 0.004."""


@dataclass(frozen=True)
class _RecordingProbe(Probe):
    """Stands for attention: keeps what each layer hands to it, and answers with random numbers."""

    handed: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    answers: list[torch.Tensor] = field(default_factory=list)
    entered: list[torch.Tensor] = field(default_factory=list)
    left: list[torch.Tensor] = field(default_factory=list)
    random: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))

    def attended(self, query_1QTD: torch.Tensor, key_1HTD: torch.Tensor, value_1HTE: torch.Tensor) -> torch.Tensor:
        answer_1TQE = torch.randn(super().attended(query_1QTD, key_1HTD, value_1HTE).shape, generator=self.random)
        self.handed.append((query_1QTD, key_1HTD, value_1HTE))
        self.answers.append(answer_1TQE[0].flatten(1))
        return answer_1TQE.to(query_1QTD)

    def watch(self, block: nn.Module) -> list[torch.utils.hooks.RemovableHandle]:
        """Keep what goes in and what comes out."""

        def entering(_: nn.Module, arguments: tuple[torch.Tensor, ...], named: dict[str, torch.Tensor]) -> None:
            self.entered.append((arguments[0] if arguments else named["hidden_states"])[0].float())

        def leaving(_: nn.Module, __: object, out: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
            self.left.append((out if isinstance(out, torch.Tensor) else out[0])[0].float())

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
    """Try a model on a CPU, whose weights are not rounded yet.

    Args:
        model: fused, with our attention.
        sizes, layers: what its layers are taken for. Weights of linear layers are in float.
        norm_C: behind the last one.
        head: behind that.

    Returns:
        The order of a head's numbers in which they are rotated (`rotary_order`), int64 [D]; or what is different.
    """
    decoder = model.get_decoder()
    last = int(getattr(model.config.get_text_config(), "max_position_embeddings", TRIAL_TOKENS)) - 1
    # The first ones, then far ones.
    position_1T = torch.tensor(
        [
            [
                *range(TRIAL_TOKENS // 2),
                *(last * part // TRIAL_TOKENS for part in range(TRIAL_TOKENS // 2 + 1, TRIAL_TOKENS + 1)),
            ]
        ]
    )
    vocabulary = model.get_input_embeddings().num_embeddings
    ids_1T = torch.randint(vocabulary, (1, TRIAL_TOKENS), generator=torch.Generator().manual_seed(0))
    watch = _RecordingProbe([])
    handles = [handle for block in decoder.layers for handle in watch.watch(block)]
    try:
        logits_TN = model(
            input_ids=ids_1T,
            position_ids=position_1T,
            use_cache=False,
            logits_to_keep=torch.arange(TRIAL_TOKENS),
            tessera_batch=watch,
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
        return f"{cosine_TD.shape[-1]} of a head's {sizes.head_dim} numbers are rotated"
    if not same(model.get_input_embeddings()(ids_1T)[0].float(), watch.entered[0]):
        return "its layers do not begin with the embeddings"
    orders = [order(sizes.head_dim) for order in ORDERS]
    for number, layer in enumerate(layers):
        x_TC = watch.entered[number]
        if number and not same(watch.left[number - 1], x_TC):
            return f"something is done before layer {number}"
        query_THD, key_THD, value_THD = (one[0].transpose(0, 1).float() for one in watch.handed[number])
        both_THD, ours_THD = _heads(x_TC, layer, sizes)
        theirs_THD = torch.cat([query_THD, key_THD], dim=1)
        rotation = (cosine_TD[:, None], sine_TD[:, None])
        orders = [order for order in orders if same(rotate(both_THD[..., order], *rotation), theirs_THD[..., order])]
        if not orders:
            return f"layer {number} makes queries and keys in another way"
        if not same(ours_THD, value_THD):
            return f"layer {number} makes values in another way"
        made_TC = _behind_attention(x_TC, watch.answers[number], layer, sizes)
        # Of what it adds. A few numbers may be much larger than that: each has room for its own roundings, twice, no
        # other has.
        left_TC = watch.left[number]
        if not same(made_TC - x_TC, left_TC - x_TC, step * torch.maximum(x_TC.abs(), left_TC.abs())):
            return f"layer {number} makes something else of what it attended to"
    if not same(_product(_norm(watch.left[-1], norm_C, sizes), head), logits_TN.float()):
        return "its head makes other logits"
    return orders[0]


def _heads(x_TC: torch.Tensor, layer: DecoderLayer, sizes: DecoderConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys before they are rotated [T, H, D]; values."""
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
