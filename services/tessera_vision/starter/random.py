"""A tiny vision-language model with seeded random weights: the real Idefics3 classes, so the real way of a request.

It exists so that the service works before a trained starter does; its answers are noise, and its card says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    PreTrainedTokenizerFast,
)

from tessera.wire.models import Card

SEED = 20261121
IMAGE_SIZE = 64
PATCH_SIZE = 8
SCALE_FACTOR = 2
CONTEXT = 2048
SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<end_of_utterance>",
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    "<pad>",
]
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:"
    "{% if message['content'] is string %} {{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>' }}"
    "{% else %} {{ part['text'] }}{% endif %}{% endfor %}{% endif %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
NOTICE = "random weights: the output is noise, only the way there is real"


def build(directory: Path, report: Callable[[str], None]) -> Card:
    """Fill `directory` with the model and its processor. See `tessera.hub.store`."""
    report("making a tiny vision-language model with random weights")
    processor = _processor()
    processor.save_pretrained(directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = processor.tokenizer
    config = Idefics3Config(
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        scale_factor=SCALE_FACTOR,
        tie_word_embeddings=False,
        vision_config={
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": IMAGE_SIZE,
            "patch_size": PATCH_SIZE,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": CONTEXT,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "tie_word_embeddings": False,
            "initializer_range": 0.5,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = Idefics3ForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(directory)
    return Card(
        id="tiny-random-vision",
        family="Idefics3ForConditionalGeneration",
        tasks=["chat", "vision"],
        source=f"generated:seed {SEED}",
        parameters=model.num_parameters(),
        licence="apache-2.0",
        notice=NOTICE,
        context_length=CONTEXT,
    )


def _processor() -> Idefics3Processor:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<end_of_utterance>",
        pad_token="<pad>",
        model_max_length=CONTEXT,
    )
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": IMAGE_SIZE},
        max_image_size={"longest_edge": IMAGE_SIZE},
        do_image_splitting=False,
    )
    tokens = (IMAGE_SIZE // PATCH_SIZE // SCALE_FACTOR) ** 2
    return Idefics3Processor(images, fast, image_seq_len=tokens)
