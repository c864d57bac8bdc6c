"""A FastSpeech synthesizer with random weights: a whole directory in Transformers' form, made offline in a second.

What comes out is noise whose length follows the phonemes and the speed. Knows nothing of serving.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from transformers import (
    FastSpeech2ConformerConfig,
    FastSpeech2ConformerHifiGanConfig,
    FastSpeech2ConformerWithHifiGan,
    FastSpeech2ConformerWithHifiGanConfig,
)

from tessera.wire.models import Card

SEED = 20_200_608
VOICES = ["low", "high"]
FRAMES = 6
"""Of a phoneme, about."""
VOWELS = ["AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"]
CONSONANTS = [
    "B",
    "CH",
    "D",
    "DH",
    "F",
    "G",
    "HH",
    "JH",
    "K",
    "L",
    "M",
    "N",
    "NG",
    "P",
    "R",
    "S",
    "SH",
    "T",
    "TH",
    "V",
    "W",
    "Y",
    "Z",
    "ZH",
]
TOKENS = ["<blank>", "<unk>", *CONSONANTS, *(f"{v}{s}" for v in VOWELS for s in "012"), *",.!?", "<sos/eos>"]
LEXICON = """;;; a comment
HELLO  HH AH0 L OW1
HELLO(2)  HH EH0 L OW1
THERE  DH EH1 R
TWENTY  T W EH1 N T IY0 # as it is said
ONE  W AH1 N
DON'T  D OW1 N T
"""


def build(directory: Path) -> Card:
    """Fill `directory` with weights, configuration, vocabulary, lexicon and say what it is."""
    told = FastSpeech2ConformerConfig(
        vocab_size=len(TOKENS),
        hidden_size=16,
        num_mel_bins=10,
        encoder_layers=1,
        decoder_layers=1,
        encoder_linear_units=32,
        decoder_linear_units=32,
        speech_decoder_postnet_layers=2,
        speech_decoder_postnet_units=16,
        decoder_kernel_size=7,
        duration_predictor_channels=16,
        energy_predictor_channels=16,
        pitch_predictor_channels=16,
        pitch_predictor_layers=2,
        num_speakers=len(VOICES),
        reduction_factor=1,
    )
    vocoder = FastSpeech2ConformerHifiGanConfig(
        model_in_dim=10,
        upsample_initial_channel=32,
        upsample_rates=[8, 4],
        upsample_kernel_sizes=[16, 8],
        resblock_kernel_sizes=[3, 5],
        resblock_dilation_sizes=[[1, 3], [1, 3]],
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        config = FastSpeech2ConformerWithHifiGanConfig(model_config=told.to_dict(), vocoder_config=vocoder.to_dict())
        model = FastSpeech2ConformerWithHifiGan(config).eval()
        model.model.duration_predictor.linear.bias.fill_(math.log(1 + FRAMES))
        for parameter in model.vocoder.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.1)  # as they are when new, the audio would be silent
        model.vocoder.mean.normal_()
        model.vocoder.scale.uniform_(0.5, 2.0)
    model.save_pretrained(directory)
    (directory / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(TOKENS)}))
    (directory / "tokenizer_config.json").write_text(json.dumps({"should_strip_spaces": True}))
    (directory / "lexicon.txt").write_text(LEXICON)
    return Card(
        id="tiny-random-fastspeech",
        family="FastSpeech2ConformerWithHifiGan",
        tasks=["speech"],
        source="made by a test",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        licence="Apache-2.0",
        notice="random weights: the output is noise, only the way there is real",
        revision=f"seed-{SEED}",
        voices=VOICES,
    )
