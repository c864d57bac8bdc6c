"""The starter's tokenizer, chat template and untrained model: a Qwen3-MoE of about two million parameters.

Each digit is a token, and a run of other characters than letters and digits (" + ", ", ") is one piece, so that sums
are short. Words that are not in the vocabulary become bytes. Knows neither questions nor training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
VOCABULARY = 1024
CONTEXT = 512
_PIECES = r"\d| ?\p{L}+(?: (?=\d))?|[^\p{L}\d]+"
"""Pieces: a digit; a word with the space before it and, before a number, the space after it; a run of anything else."""

TEMPLATE = """\
{#- Every question stands alone: the model sees only the last one, and no system message. -#}
{%- set asked = messages | selectattr("role", "equalto", "user") | list -%}
{%- if not asked -%}{{- raise_exception("there is no question of a user") -}}{%- endif -%}
{{- "<|user|>" + (asked | last).content | trim + "<|assistant|>" -}}
"""


def train_tokenizer(texts: Iterator[str]) -> Tokenizer:
    """Train a byte-level BPE tokenizer (Sennrich et al. 2016) on `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in (PAD, USER, ASSISTANT, END)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def prompt(text: str) -> str:
    """The prompt that the chat template makes of one question."""
    return f"{USER}{text.strip()}{ASSISTANT}"


def configuration(tokenizer: Tokenizer) -> Qwen3MoeConfig:
    """The configuration: four layers of eight experts, of which each token uses two."""
    return Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        intermediate_size=256,
        norm_topk_prob=True,
        router_aux_loss_coef=0.01,
        initializer_range=0.05,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        pad_token_id=tokenizer.token_to_id(PAD),
        bos_token_id=tokenizer.token_to_id(USER),
        eos_token_id=tokenizer.token_to_id(END),
    )


def save(model: Qwen3MoeForCausalLM, tokenizer: Tokenizer, directory: Path) -> None:
    """Write a complete model directory, with weights in the model's own dtype."""
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": USER,
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
    }
    _write(directory / "tokenizer_config.json", described)
    ids = {"eos_token_id": model.config.eos_token_id, "pad_token_id": model.config.pad_token_id}
    _write(directory / "generation_config.json", {**ids, "do_sample": False, "max_new_tokens": 64})


def _write(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
