"""A Whisper of `base`'s size with seeded random weights, to measure with: it writes noise, as long as a sentence.

It takes the same way as `openai/whisper-base.en` (same class, loader, tokenizer files, shapes), so its speed is that of
the trained one on a sentence. Its card says so. Does not know how it is used.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.models.whisper.tokenization_whisper import WhisperTokenizer
from transformers.utils import logging as transformers_logging

from tessera.hub.store import Report
from tessera.wire.models import Card

NAME = "random-whisper-base"
NOTICE = "random weights: the output is noise, only the way there is real"
SEED = 20_220_921
TEXT_TOKENS = 50_256
STAMPS = 1501
SENTENCE = 28
"""Tokens of a transcript with its prompt: 26 are written, as of a sentence of twenty words."""
LIVELY = 1.0
"""Deviation of what the decoder reads, so that tokens differ from place to place; from clip to clip few do."""
SURE = 100.0
"""What the decoder's last norm multiplies with: a model that is sure of its tokens is not asked for others."""


def build(directory: Path, report: Report) -> Card:
    """Write the model into the empty `directory`; the same weights on every machine."""
    report("making a Whisper of 73 million random weights")
    return write(directory, width=512, layers=6)


def write(directory: Path, *, width: int, layers: int) -> Card:
    """Write one of this width, with so many layers in its encoder and in its decoder."""
    transformers_logging.disable_progress_bar()
    tokenizer = _tokenizer()
    ids = tokenizer.get_vocab()
    end, begin = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    config = WhisperConfig(
        vocab_size=len(ids),
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=width // 64,
        decoder_attention_heads=width // 64,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=begin,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        model = WhisperForConditionalGeneration(config).eval()
        for layer in model.model.decoder.layers:
            for projection in (layer.encoder_attn.v_proj, layer.encoder_attn.out_proj, layer.fc2):
                projection.weight.normal_(0.0, LIVELY / projection.in_features**0.5)
        # Else every token would be the one before it.
        model.model.decoder.embed_positions.weight.normal_()
        model.model.decoder.layer_norm.weight.fill_(SURE)
    model.generation_config = GenerationConfig(
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=begin,
        max_length=SENTENCE,
        is_multilingual=False,
        no_timestamps_token_id=ids["<|notimestamps|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        return_timestamps=False,
        max_initial_timestamp_index=50,
        suppress_tokens=list(range(end, ids["<|0.00|>"])),
    )
    model.save_pretrained(directory)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(directory)
    WhisperTokenizer(tokenizer_object=tokenizer, model_max_length=448).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    return Card(
        id=NAME,
        family="WhisperForConditionalGeneration",
        tasks=["transcription"],
        source="tessera_speech.starter.random_whisper",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        licence="Apache-2.0",
        notice=NOTICE,
        revision=f"seed-{SEED}",
        sample_rate=16_000,
        created=int(time.time()),
    )


def _tokenizer() -> Tokenizer:
    """As many tokens as Whisper has: one a byte, words that nothing is made of, Whisper's special tokens, times."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    # All different, and not alike: what repeats itself would be asked for again.
    words = [f"Ġ{number * 7919 % 65_521:04x}" for number in range(TEXT_TOKENS - len(letters))]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(letters + words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>"]
    specials += ["<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    stamps = [f"<|{index * 0.02:.2f}|>" for index in range(STAMPS)]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in stamps])
    return tokenizer
