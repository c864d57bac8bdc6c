"""Tiny random encoders of every family, written as directories, with a word tokenizer that has BERT's pair form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ["red", "green", "blue", "cat", "dog", "house", "tree", "river", "stone", "yes", "no", "one", "two", "three"]
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "pad_token_id": 0,
}
FAMILIES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "bert": (transformers.BertConfig, {"max_position_embeddings": 128}),
    "roberta": (transformers.RobertaConfig, {"max_position_embeddings": 130, "pad_token_id": 1, "type_vocab_size": 1}),
    "xlm_roberta": (
        transformers.XLMRobertaConfig,
        {"max_position_embeddings": 130, "pad_token_id": 1, "type_vocab_size": 1},
    ),
    "modernbert": (
        transformers.ModernBertConfig,
        {
            "max_position_embeddings": 2048,
            "local_attention": 16,
            "global_attn_every_n_layers": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "distilbert": (
        transformers.DistilBertConfig,
        {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 128},
    ),
    "qwen3": (
        transformers.Qwen3Config,
        {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "tie_word_embeddings": True},
    ),
    "qwen3_windowed": (
        transformers.Qwen3Config,
        {
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 1024,
            "use_sliding_window": True,
            "sliding_window": 12,
            "max_window_layers": 1,
        },
    ),
    "gemma3": (
        transformers.Gemma3TextConfig,
        {
            "num_key_value_heads": 2,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "use_bidirectional_attention": True,
            "max_position_embeddings": 512,
        },
    ),
}
"""Configurations by name; each class takes those of `SIZES` that it knows."""


def make(
    directory: Path, family: str, kind: str = "base", *, labels: list[str] | None = None, **config: Any
) -> transformers.PreTrainedModel:
    """Write a model directory and return the model.

    Args:
        directory: is made.
        family: of `FAMILIES`, or any class of configuration.
        kind: `base`, `classifier` or `decoder`.
        labels: of a classifier.
        config: values of the configuration beside those of the family.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config_class, values = FAMILIES[family]
    more = (
        {"id2label": dict(enumerate(labels)), "label2id": {label: index for index, label in enumerate(labels)}}
        if labels
        else {}
    )
    built = config_class(**{**SIZES, **values, **more, **config})
    auto = {
        "base": transformers.AutoModel,
        "classifier": transformers.AutoModelForSequenceClassification,
        "decoder": transformers.AutoModelForCausalLM,
    }[kind]
    torch.manual_seed(len(family) + len(kind))
    model = auto.from_config(built)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # small random matrices hide errors
                parameter.mul_(8)
    model.eval().save_pretrained(directory)
    write_tokenizer(directory)
    return model


def write_tokenizer(directory: Path) -> None:
    """A tokenizer of whole words, which writes `[CLS] a [SEP]` and `[CLS] a [SEP] b [SEP]`."""
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    tokenizer.save(str(directory / "tokenizer.json"))


def write_sentence_files(
    directory: Path,
    pooling: str,
    *,
    normalize: bool = True,
    prompts: dict[str, str] | None = None,
    dense: tuple[int, int] | None = None,
    include_prompt: bool = True,
) -> None:
    """The files of sentence-transformers around a model."""
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules += [("Dense", "2_Dense")] if dense else []
    modules += [("Normalize", "3_Normalize")] if normalize else []
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(modules)
    ]
    (directory / "modules.json").write_text(json.dumps(listed))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    modes = dict.fromkeys(("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken"), False)
    values = {f"pooling_mode_{name}": name == pooling for name in modes} | {"include_prompt": include_prompt}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **values}))
    (directory / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts or {}}))
    if dense:
        from safetensors.torch import save_file

        folder = directory / "2_Dense"
        folder.mkdir()
        torch.manual_seed(3)
        weights = {"linear.weight": torch.randn(dense[1], dense[0]), "linear.bias": torch.randn(dense[1])}
        save_file(weights, folder / "model.safetensors")
        shape = {"in_features": dense[0], "out_features": dense[1], "bias": True}
        (folder / "config.json").write_text(
            json.dumps({**shape, "activation_function": "torch.nn.modules.activation.Tanh"})
        )
