"""A synthesizer with random weights: a whole VITS directory, made offline in a second.

What comes out is noise whose length follows the text and the speed, at a level that is safe to play. Everything else is
real: Transformers' own class, its configuration, safetensors, a character tokenizer. Knows nothing of serving.
"""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
from transformers import VitsConfig, VitsModel

from tessera.wire.models import Card

SEED = 20_210_614
VOICES = ["first", "second"]
SAMPLE_RATE = 16_000
CHARACTERS = " " + string.ascii_lowercase + string.digits + ".,;:!?'\"-()&%$#@/+=*<>[]{}|~^_`\\\n\t"
# Found by trying: about 12 characters a second at speed 1, which is how people speak, and some ten frames a token, so
# that speeds from 0.25 to 4 stay far from the floor of one frame.
SLOWNESS = 0.1
LOUDNESS = 0.01


def build(directory: Path) -> Card:
    """Fill `directory` with weights, configuration, vocabulary and say what it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = VitsModel(_config()).eval()
    with torch.no_grad():
        model.duration_predictor.flows[0].translate.fill_(-SLOWNESS)
        model.decoder.conv_post.weight.mul_(LOUDNESS)
    model.save_pretrained(directory)
    _write_tokenizer(directory)
    return Card(
        id="tiny-random-speech",
        family="VitsModel",
        tasks=["speech"],
        source="made by a test",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        licence="Apache-2.0",
        notice="random weights: the output is noise, only the way there is real",
        revision=f"seed-{SEED}",
        voices=VOICES,
        sample_rate=SAMPLE_RATE,
    )


def _config() -> VitsConfig:
    return VitsConfig(
        vocab_size=len(CHARACTERS) + 2,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=64,
        flow_size=32,
        spectrogram_bins=33,
        num_speakers=len(VOICES),
        speaker_embedding_size=16,
        upsample_initial_channel=64,
        upsample_rates=[4, 4, 2, 2],
        upsample_kernel_sizes=[8, 8, 4, 4],
        resblock_kernel_sizes=[3, 5],
        resblock_dilation_sizes=[[1, 3], [1, 3]],
        depth_separable_num_layers=2,
        duration_predictor_num_flows=2,
        duration_predictor_filter_channels=32,
        prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=2,
        posterior_encoder_num_wavenet_layers=2,
        sampling_rate=SAMPLE_RATE,
        pad_token_id=0,
    )


def _write_tokenizer(directory: Path) -> None:
    """The files that `VitsTokenizer` reads: characters after `<pad>` (the blank between them) and `<unk>`."""
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<unk>", *CHARACTERS])}
    settings = {
        "tokenizer_class": "VitsTokenizer",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "language": "eng",
        "add_blank": True,
        "normalize": True,
        "phonemize": False,
        "is_uroman": False,
    }
    (directory / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False, indent=2), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
