"""The untrained model: Parakeet-CTC's architecture at a small size, its tokenizer and its feature settings.

All classes are Transformers' own, so that the directory has the layout of the large checkpoints
(nvidia/parakeet-ctc-0.6b). Knows nothing about training.
"""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch import nn
from transformers import (
    ParakeetCTCConfig,
    ParakeetEncoderConfig,
    ParakeetFeatureExtractor,
    ParakeetForCTC,
    ParakeetTokenizer,
)

from tessera_speech.starter.transcription import sentences
from tessera_speech.starter.transcription.voices import RATE

TOKENS = 1024
"""Size of the vocabulary, with the unknown token first and the blank last."""
UNKNOWN, BLANK = "<unk>", "<pad>"
TOKENIZER_SEED = 1
TOKENIZER_SENTENCES = 6000
MELS = 80
FRAME_S = 0.08
"""Seconds of one output of the encoder, which are eight frames of features of 10 ms each."""


def tokenizer() -> ParakeetTokenizer:
    """A byte-pair encoding with a mark at the beginning of words, trained on sentences of the grammar."""
    random = np.random.default_rng(TOKENIZER_SEED)
    text = [sentences.grammatical(random) for _ in range(TOKENIZER_SENTENCES)] + list(sentences.vocabulary())
    made = Tokenizer(BPE(unk_token=UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    alphabet = list("▁'abcdefghijklmnopqrstuvwxyz")
    trainer = BpeTrainer(
        vocab_size=TOKENS - 1, initial_alphabet=alphabet, special_tokens=[UNKNOWN], show_progress=False
    )
    made.train_from_iterator(text, trainer)
    made.add_special_tokens([BLANK])
    assert made.get_vocab_size() == TOKENS
    assert made.token_to_id(BLANK) == TOKENS - 1
    return ParakeetTokenizer(tokenizer_object=made, unk_token=UNKNOWN, pad_token=BLANK)


def extractor() -> ParakeetFeatureExtractor:
    """The extractor of log-mel features with a hop of 10 ms, normalized over the recording."""
    return ParakeetFeatureExtractor(feature_size=MELS, sampling_rate=RATE)


def network() -> ParakeetForCTC:
    """A Fast Conformer of 3.9 million parameters with a CTC head and initial weights from torch's generator."""
    encoder = ParakeetEncoderConfig(
        hidden_size=160,
        num_hidden_layers=7,
        num_attention_heads=4,
        intermediate_size=512,
        num_mel_bins=MELS,
        subsampling_conv_channels=16,
        dropout=0.0,
        layerdrop=0.0,
        activation_dropout=0.0,
        attention_dropout=0.0,
        # The positions' inner product grows with the square root of the width when the input is scaled by it.
        scale_input=False,
    )
    config = ParakeetCTCConfig(vocab_size=TOKENS, pad_token_id=TOKENS - 1, encoder_config=encoder)
    made = ParakeetForCTC(config)
    for module in made.modules():
        # Transformers draws convolutions as small as linear layers; three of them would suppress the signal.
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            module.reset_parameters()
    return made
