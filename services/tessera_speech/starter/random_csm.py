"""Makes codec language models with seeded random weights: a tiny one for tests, one of 100 million for benchmarks.

They have the classes, loader, tokenizer files and codec of `sesame/csm-1b`; their speech is noise, as their cards say.
Knows nothing about how they are used.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import CsmConfig, CsmForConditionalGeneration
from transformers.utils import logging as transformers_logging

from tessera.hub.store import Report
from tessera.wire.models import Card

NOTICE = "random weights: the output is noise, only the way there is real"
SEED = 20_250_227
LOUDNESS = 0.02
"""Scale of the codec's last layer, so that the noise is quiet enough to play."""
DECISION = 0.3
"""Standard deviation of the tiny model's weights; with less, all codes are about equally likely and rounding
decides."""
_SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>"]


def build(directory: Path, report: Report) -> Card:
    """Write the tiny model into the empty `directory`, with the same weights on every machine."""
    report("making a tiny codec language model with random weights")
    return write(directory, "tiny-random-csm", tiny_config(), deviation=DECISION)


def build_large(directory: Path, report: Report) -> Card:
    """Write a model with a backbone of 92 million weights, as many codebooks as CSM, and Mimi in its own size."""
    report("making a codec language model of 100 million random weights (a minute)")
    return write(directory, "random-csm-100m", large_config())


def write(directory: Path, name: str, config: CsmConfig, *, deviation: float | None = None) -> Card:
    """Write a model of these shapes with its tokenizer.

    Args:
        directory: an empty directory.
        name: name on the card.
        config: the complete configuration.
        deviation: standard deviation of the language model's matrices; None takes that of the configuration.
    """
    transformers_logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        model = CsmForConditionalGeneration(config).eval()
        for part in (model.backbone_model, model.depth_decoder, model.lm_head, model.embed_text_tokens):
            for parameter in part.parameters() if deviation is not None else ():
                if parameter.ndim > 1:
                    parameter.normal_(0.0, deviation)
        # Codes that the codec does not have are never the likeliest: a trained model does not choose them either.
        sounds = config.codec_config.codebook_size
        model.lm_head.weight[sounds:] = 0
        model.depth_decoder.codebooks_head.weight[:, :, sounds:] = 0
        # Codebooks are buffers, zero when new, by which every code would sound the same.
        for buffer_name, buffer in model.codec_model.named_buffers():
            if buffer_name.endswith("embed_sum"):
                buffer.normal_()
        model.codec_model.decoder.decoder_seanet.layers[-1].conv.weight.mul_(LOUDNESS)
    model.generation_config.update(do_sample=True, temperature=0.9, top_k=50, max_new_tokens=125)
    model.depth_decoder.generation_config.update(do_sample=True, temperature=0.9, top_k=50)
    model.save_pretrained(directory)
    _write_tokenizer(directory)
    return Card(
        id=name,
        family="CsmForConditionalGeneration",
        tasks=["speech"],
        source="tessera_speech.starter.random_csm",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        licence="Apache-2.0",
        notice=NOTICE,
        revision=f"seed-{SEED}",
        sample_rate=model.config.codec_config.sampling_rate,
        context_length=model.config.max_position_embeddings,
        created=int(time.time()),
    )


def tiny_config() -> CsmConfig:
    """A small configuration with all parts of CSM: 8 codebooks, and a codec whose window is shorter than a sentence."""
    return _config(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        num_codebooks=8,
        vocab_size=67,
        codebook_pad_token_id=66,
        depth_decoder_config={
            "num_codebooks": 8,
            "backbone_hidden_size": 32,
            "vocab_size": 67,
            "hidden_size": 24,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 9,
        },
        codec_config={
            "model_type": "mimi",
            "hidden_size": 32,
            "num_filters": 4,
            "codebook_size": 64,
            "codebook_dim": 16,
            "vector_quantization_hidden_dimension": 16,
            "num_quantizers": 8,
            "upsample_groups": 32,
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "sliding_window": 10,
            "layer_scale_initial_scale": 0.5,
        },
    )


def large_config() -> CsmConfig:
    """A configuration with a backbone of 92 million weights, CSM's other proportions, and Mimi in its own size."""
    return _config(
        hidden_size=768,
        intermediate_size=2560,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        depth_decoder_config={
            "backbone_hidden_size": 768,
            "hidden_size": 512,
            "intermediate_size": 2048,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
        },
        codec_config={"model_type": "mimi"},
    )


def _config(**shapes: object) -> CsmConfig:
    begin, _, audio, audio_end = range(256, 256 + len(_SPECIAL))
    return CsmConfig(
        text_vocab_size=256 + len(_SPECIAL),
        bos_token_id=begin,
        pad_token_id=audio,
        audio_token_id=audio,
        audio_eos_token_id=audio_end,
        **shapes,
    )


def _write_tokenizer(directory: Path) -> None:
    """A vocabulary of a token for each byte, followed by CSM's control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[1],
        "pad_token": _SPECIAL[1],
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
