"""The order of a head's numbers in which a rotary embedding is the one that compiled steps compute."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tessera.models.rotary_order import order_of

DIM = 16
SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": DIM,
    "pad_token_id": 0,
}
NEIGHBOURS = [*range(0, DIM, 2), *range(1, DIM, 2)]


def parts(name: str, **changes: Any) -> tuple[nn.Module, nn.Module]:
    """A model's attention and its rotary embedding."""
    config = transformers.AutoConfig.for_model(name, **(SMALL | changes))
    decoder = transformers.AutoModelForCausalLM.from_config(config).get_decoder()
    return decoder.layers[0].self_attn, decoder.rotary_emb


@pytest.mark.parametrize(
    ("name", "order"), [("llama", list(range(DIM))), ("qwen3", list(range(DIM))), ("ernie4_5", NEIGHBOURS)]
)
def test_halves_and_neighbours_are_told_apart(name: str, order: list[int]) -> None:
    found = order_of(*parts(name), DIM)
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == order


def test_an_embedding_of_some_of_the_numbers_is_refused() -> None:
    assert "of a head's 16 numbers" in str(order_of(*parts("stablelm", partial_rotary_factor=0.5), DIM))


def test_what_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, rotary = parts("llama")
    module = sys.modules[type(attention).__module__]
    monkeypatch.setattr(module, "apply_rotary_pos_emb", lambda q, k, cosine, _: (q * cosine, k))
    assert order_of(attention, rotary, DIM) == "a rotary embedding of another kind"
    monkeypatch.setattr(module, "apply_rotary_pos_emb", lambda q, k, *, rest: (q, k))
    assert "called in another way" in str(order_of(attention, rotary, DIM))
    monkeypatch.delattr(module, "apply_rotary_pos_emb")
    assert order_of(attention, rotary, DIM) == "it has no rotary embedding that is known"
