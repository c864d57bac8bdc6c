"""Makes the untrained `scenes-vision`: an Idefics3 (the class of SmolVLM) of 2 million parameters, and its processor.

A picture is scaled to 72x72, cut into 9x9 patches, and given to the decoder as 3x3 features, one for each cell of the
grid on which scenes are laid out. Knows nothing about training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    PreTrainedTokenizerFast,
)

SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<end_of_utterance>",
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    "<pad>",
]
IMAGE_SIZE = 72
PATCH_SIZE = 8
SCALE_FACTOR = 3
IMAGE_TOKENS = (IMAGE_SIZE // PATCH_SIZE // SCALE_FACTOR) ** 2
CONTEXT = 1024
HIDDEN = 128
LAYERS = 6
DECODER_LAYERS = 4
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:"
    "{% if message['content'] is string %} {{ message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] != 'image' %} {{ part['text'] }}{% endfor %}{% endif %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""The chat template. Pictures come before the text of their message wherever the client puts them, as in training."""
__all__ = ["CONTEXT", "HIDDEN", "IMAGE_TOKENS", "TEMPLATE", "build_model", "build_processor"]


def build_processor(texts: Iterable[str]) -> Idefics3Processor:
    """Make the processor; its tokenizer, a byte-level BPE that can write any text, is trained on `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        min_frequency=3,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
    )
    tokenizer.train_from_iterator(texts, trainer)
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
    return Idefics3Processor(images, fast, image_seq_len=IMAGE_TOKENS)


def build_model(tokenizer: PreTrainedTokenizerFast) -> Idefics3ForConditionalGeneration:
    """Make the model with initial weights from torch's generator, on the CPU in float32."""
    config = Idefics3Config(
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        scale_factor=SCALE_FACTOR,
        tie_word_embeddings=False,
        vision_config={
            "hidden_size": HIDDEN,
            "intermediate_size": 4 * HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "image_size": IMAGE_SIZE,
            "patch_size": PATCH_SIZE,
            "hidden_act": "relu",
        },
        text_config={
            "model_type": "llama",
            "vocab_size": -(-len(tokenizer) // 16) * 16,
            "hidden_size": HIDDEN,
            "intermediate_size": 3 * HIDDEN,
            "num_hidden_layers": DECODER_LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": CONTEXT,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "tie_word_embeddings": False,
        },
    )
    config._attn_implementation = "eager"  # for training: fused attention takes twice as long in bfloat16 on a CPU
    model = Idefics3ForConditionalGeneration(config)
    _initialise(model)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def _initialise(model: Idefics3ForConditionalGeneration) -> None:
    """Initialize weights by fan-in, and the decoder's residual branches with zeros.

    Transformers' standard deviation of 0.02 suits wide models: here the embedding of a token would be small beside what
    the first layers add.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=1 / math.sqrt(module.weight[0].numel()))
            if name.endswith(("out_proj", "fc2")):
                module.weight.data.mul_(1 / math.sqrt(2 * LAYERS))
            if name.endswith(("o_proj", "down_proj")):
                nn.init.zeros_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    nn.init.normal_(model.model.vision_model.embeddings.position_embedding.weight, std=0.1)
    nn.init.normal_(model.model.text_model.embed_tokens.weight, std=0.7)
    # The head begins as the embedding, so that a feature predicts its own word.
    model.lm_head.weight.data.copy_(0.04 * model.model.text_model.embed_tokens.weight.data)
