"""Makes a Whisper of `base`'s size with seeded random weights, for benchmarks; its transcripts are noise.

It has the class, loader, tokenizer files and shapes of `openai/whisper-base.en`, so its speed is that of the trained
model on a sentence. Its card says so. Knows nothing about how it is used.
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
"""Tokens of a transcript and its prompt; the 26 of the transcript are those of a sentence of twenty words."""
LIVELY = 1.0
"""Standard deviation of the decoder's input embeddings, so that tokens differ between positions; few differ between
clips."""
SURE = 100.0
"""Scale of the decoder's last norm, which makes tokens so likely that no fallback decodes them again."""


def build(directory: Path, report: Report) -> Card:
    """Write the model into the empty `directory`, with the same weights on every machine."""
    report("making a Whisper of 73 million random weights")
    return write(directory, width=512, layers=6)


def write(directory: Path, *, width: int, layers: int) -> Card:
    """Write a model of this width, with `layers` layers in its encoder and as many in its decoder."""
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
        # Otherwise every token would equal the one before.
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
    """A vocabulary of Whisper's size: a token for each byte, unused words, special tokens and timestamps."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    # All words differ: a transcript that repeats itself would be decoded again.
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
