"""Parts of Parakeet directories with random weights: a tokenizer of letters and a small encoder."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import ParakeetEncoderConfig

LETTERS = [*"▁abcdefghijklmnopqrstuvwxyz", "▁a", "▁b", "▁c", "▁d"]


def make_tokenizer(*special_tokens: str) -> Tokenizer:
    """A tokenizer of letters, of which some begin words; `special_tokens` have the last ids."""
    vocabulary = {token: index for index, token in enumerate(["<unk>", *LETTERS])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[("▁", letter) for letter in "abcd"], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(list(special_tokens))
    return tokenizer


def make_encoder_config(initializer_range: float) -> ParakeetEncoderConfig:
    return ParakeetEncoderConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        subsampling_conv_channels=8,
        initializer_range=initializer_range,
    )
