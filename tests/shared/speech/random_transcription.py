"""A transcriber with random weights: a whole Whisper directory, made offline in a second.

Its transcripts are letters and timestamps that depend on the audio, without meaning. Everything else is real:
Transformers' own class, generation rules, log-mel features, a byte-level tokenizer with Whisper's special tokens.
Knows nothing of serving.
"""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.models.whisper.tokenization_whisper import LANGUAGES, WhisperTokenizer

from tessera.wire.models import Card

SEED = 20_220_921
WIDTH = 64
TIMESTAMPS = 1501
"""0.00 to 30.00 seconds in steps of 0.02."""
MAX_TOKENS = 48


def build(directory: Path) -> Card:
    """Fill `directory` with weights, configuration, tokenizer and feature settings, and say what it is."""
    tokenizer = _tokenizer()
    ids = tokenizer.get_vocab()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = WhisperForConditionalGeneration(_config(ids)).eval()
        _make_lively(model, ids)
    model.generation_config = _generation(ids)
    model.save_pretrained(directory)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(directory)
    WhisperTokenizer(tokenizer_object=tokenizer, model_max_length=MAX_TOKENS).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    return Card(
        id="tiny-random-transcription",
        family="WhisperForConditionalGeneration",
        tasks=["transcription"],
        source="made by a test",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        licence="Apache-2.0",
        notice="random weights: the output is noise, only the way there is real",
        revision=f"seed-{SEED}",
        sample_rate=16_000,
    )


def _tokenizer() -> Tokenizer:
    """One token a byte, then Whisper's special tokens in Whisper's order, then the timestamps."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES)]
    specials += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>"]
    specials += ["<|notimestamps|>"]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    stamps = [f"<|{index * 0.02:.2f}|>" for index in range(TIMESTAMPS)]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in stamps])
    return tokenizer


def _config(ids: dict[str, int]) -> WhisperConfig:
    end = ids["<|endoftext|>"]
    return WhisperConfig(
        vocab_size=len(ids),
        num_mel_bins=80,
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=2 * WIDTH,
        decoder_ffn_dim=2 * WIDTH,
        max_source_positions=1500,
        max_target_positions=256,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=ids["<|startoftranscript|>"],
        suppress_tokens=None,
        begin_suppress_tokens=None,
        tie_word_embeddings=False,
    )


def _generation(ids: dict[str, int]) -> GenerationConfig:
    end, stamps = ids["<|endoftext|>"], ids["<|0.00|>"]
    return GenerationConfig(
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=ids["<|startoftranscript|>"],
        max_length=MAX_TOKENS,
        is_multilingual=True,
        lang_to_id={f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES},
        task_to_id={"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]},
        no_timestamps_token_id=ids["<|notimestamps|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        return_timestamps=False,
        max_initial_timestamp_index=50,
        suppress_tokens=list(range(ids["<|startoftranscript|>"], stamps)),
        begin_suppress_tokens=[ids["Ġ"], end],
        # What random weights write is always unlikely; it is not to be tried again hotter.
        logprob_threshold=-1000.0,
        compression_ratio_threshold=1000.0,
    )


def _make_lively(model: WhisperForConditionalGeneration, ids: dict[str, int]) -> None:
    """Scale the random weights so that the output is letters and timestamps, and differs from audio to audio."""
    with torch.no_grad():
        decoder, scores = model.model.decoder, model.proj_out.weight
        decoder.embed_tokens.weight.normal_(0, 0.5)
        decoder.embed_positions.weight.normal_(0, 0.5)
        scores.normal_(0, 0.01)
        spread = 3.5 / WIDTH**0.5
        for letter in string.ascii_lowercase:
            scores[ids[letter]].normal_(0, spread)
        scores[ids["Ġ"]].normal_(0, 1.3 * spread)
        scores[ids["<|endoftext|>"]].normal_(0, spread)
        scores[ids["<|0.00|>"] :].normal_(0, 0.3 / WIDTH**0.5)
        for layer in decoder.layers:
            attention = layer.encoder_attn
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
                projection.weight.mul_(20)
            layer.fc1.weight.mul_(5)
            layer.fc2.weight.mul_(5)
        for parameter in model.model.encoder.layers.parameters():
            if parameter.dim() == 2:
                parameter.mul_(5)
        model.model.encoder.conv1.weight.mul_(3)
        model.model.encoder.conv2.weight.mul_(3)
