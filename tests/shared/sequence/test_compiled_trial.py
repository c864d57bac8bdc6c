"""Layers of a decoder are tried for what compiled steps take them for, and what they do beside is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tessera.models import attention
from tessera.models.decoders import load_decoder
from tessera.models.fusion import fuse
from tessera.sequence.runner.compiled import decoder as compiled_decoder
from tessera.sequence.runner.compiled.decoder import Examination, examine
from tessera.sequence.runner.compiled.rotary_order import half_order, neighbour_order
from tessera_kernels.cpu import instructions

pytestmark = pytest.mark.skipif(not instructions.available(), reason="the processor has no AVX-512 VNNI")

DIM = 16
SMALL = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": DIM,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SCALED = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 1024}
QUERIES_GROW = SCALED | {"llama_4_scaling_beta": 0.1, "max_position_embeddings": 1024}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., transformers.PreTrainedModel]:
    def make(name: str, **changes: Any) -> transformers.PreTrainedModel:
        config = transformers.AutoConfig.for_model(name, **(SMALL | changes))
        torch.manual_seed(4)
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.3 * torch.randn_like(parameter)  # norms and biases that matter
        directory: Path = tmp_path_factory.mktemp(name)
        made.save_pretrained(directory)
        loaded = load_decoder(directory, device=torch.device("cpu"), dtype=torch.float32)
        fuse(loaded)
        return loaded

    return make


def examined(model: transformers.PreTrainedModel) -> Examination:
    layers = attention.probe(model)
    room = {"pages": 1, "page_size": 16, "dtype": torch.float32, "device": torch.device("cpu")}
    return examine(model, layers, attention.make_caches(layers, **room))


@pytest.mark.parametrize(
    ("name", "changes", "order"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}, half_order),
        ("llama", {"rope_parameters": SCALED}, half_order),
        ("qwen3", {}, half_order),
        ("gemma", {"hidden_activation": "gelu_pytorch_tanh"}, half_order),
        ("helium", {}, neighbour_order),
        ("ernie4_5", {}, neighbour_order),
    ],
)
def test_what_fits_is_taken_in_the_order_in_which_its_heads_are_rotated(
    name: str, changes: dict[str, Any], order: Callable[[int], torch.Tensor], model: Any
) -> None:
    assert examined(model(name, **changes)).reason == ""
    assert examined(model(name, **changes)).order_D.tolist() == order(DIM).tolist()


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        # Every fourth layer has no positions.
        ("smollm3", {}, "layer 3 makes queries and keys in another way"),
        # Behind a fourth of its positions queries are made larger.
        ("ministral3", {"rope_parameters": QUERIES_GROW}, "layer 0 makes queries and keys in another way"),
        # Norms behind the rotation.
        ("hunyuan_v1_dense", {}, "layer 0 makes queries and keys in another way"),
        ("granite", {"embedding_multiplier": 2.0}, "its layers do not begin with the embeddings"),
        ("granite", {"residual_multiplier": 0.9}, "layer 0 makes something else of what it attended to"),
        ("granite", {"logits_scaling": 2.0}, "its head makes other logits"),
    ],
)
def test_anything_else_that_a_layer_does_is_seen(name: str, changes: dict[str, Any], words: str, model: Any) -> None:
    assert examined(model(name, **changes)).reason == words


def test_values_and_what_is_between_layers_are_compared_too(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model("llama")
    values = made.model.layers[2].self_attn.v_proj
    with monkeypatch.context() as patch:
        patch.setattr(values, "forward", lambda x, forward=values.forward: forward(x) * 1.01)
        assert examined(made).reason == "layer 2 makes values in another way"
    with monkeypatch.context() as patch:
        layer = made.model.layers[1]
        handle = layer.register_forward_pre_hook(lambda _, arguments: (arguments[0] * 1.01, *arguments[1:]))
        assert examined(made).reason == "something is done before layer 1"
        handle.remove()
    assert examined(made).reason == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_layer_adds_may_be_small_beside_what_is_there(dtype: torch.dtype, model: Any) -> None:
    made = model("llama").to(dtype)
    with torch.no_grad():
        made.get_input_embeddings().weight[:, 5] += 200
    assert examined(made).reason == ""
    out = made.model.layers[1].self_attn.o_proj
    out.forward = lambda x, forward=out.forward: forward(x) * 1.2
    assert examined(made).reason == "layer 1 makes something else of what it attended to"


def test_heads_that_are_rotated_in_part_are_refused(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model("llama")
    whole = compiled_decoder._describe
    wider = {"head_dim": 2 * DIM, "heads": 4, "kv_heads": 2}

    def described(*arguments: Any) -> Any:
        sizes, *rest = whole(*arguments)
        return replace(sizes, **wider), *rest

    monkeypatch.setattr(compiled_decoder, "_describe", described)
    assert examined(made).reason == "16 of a head's 32 elements are rotated"


def test_attention_by_a_mask_of_its_own_is_refused_by_name(model: Any) -> None:
    with pytest.raises(attention.ModelLoadError, match="DogeAttention decide by a mask of their own"):
        model("doge")
