"""Makes the untrained model: a VITS whose text side is small and new and whose decoder is the teacher's.

The latents have two halves. The first half from the text encoder is a code that only the flow reads. The second half is
corrected by the flow frame by frame, and the decoder speaks from it. One coupling layer thus is a whole frame-level
network (a WaveNet), which a regression needs. Knows nothing about training.
"""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
from torch import nn
from transformers import VitsConfig, VitsModel

from tessera_speech.starter.synthesis.teacher import CHANNELS, RATE, Floats

VOICES = ["joe", "anna"]
HIDDEN = 128
PAD, UNKNOWN = "<pad>", "<unk>"
CHARACTERS = " " + string.ascii_lowercase + "',.?!"
VOCABULARY = {token: index for index, token in enumerate([PAD, UNKNOWN, *CHARACTERS])}
OFFSET = 64.0
"""An offset larger than the magnitude of any negative activation of the decoder; a power of two, so that adding it
loses little."""


def configuration() -> VitsConfig:
    """The configuration; all of the decoder's values are the teacher's."""
    return VitsConfig(
        vocab_size=len(VOCABULARY),
        pad_token_id=VOCABULARY[PAD],
        hidden_size=HIDDEN,
        num_hidden_layers=5,
        num_attention_heads=2,
        window_size=4,
        ffn_dim=256,
        flow_size=2 * CHANNELS,
        spectrogram_bins=16,
        num_speakers=len(VOICES),
        speaker_embedding_size=16,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        wavenet_dropout=0.0,
        duration_predictor_dropout=0.0,
        layerdrop=0.0,
        use_stochastic_duration_prediction=False,
        duration_predictor_filter_channels=HIDDEN,
        prior_encoder_num_flows=1,
        prior_encoder_num_wavenet_layers=4,
        posterior_encoder_num_wavenet_layers=1,
        wavenet_kernel_size=5,
        wavenet_dilation_rate=2,
        upsample_initial_channel=256,
        upsample_rates=[8, 8, 4],
        upsample_kernel_sizes=[16, 16, 8],
        resblock_kernel_sizes=[3, 5, 7],
        resblock_dilation_sizes=[[1, 2], [2, 6], [3, 12]],
        sampling_rate=RATE,
        noise_scale=0.0,
        noise_scale_duration=0.0,
        speaking_rate=1.0,
    )


def untrained() -> VitsModel:
    """Make the model in float32 with random weights from torch's generator."""
    model = VitsModel(configuration())
    # The posterior encoder takes no part in synthesis and is not trained.
    model.posterior_encoder.requires_grad_(False)
    for parameter in model.posterior_encoder.parameters():
        nn.init.zeros_(parameter)
    return model


@torch.no_grad()
def adopt_decoder(model: VitsModel, weights: dict[str, Floats]) -> None:
    """Copy the teacher's decoder into the model, exactly.

    The teacher's residual blocks have one convolution where VITS has two with a leaky ReLU between them. The second
    convolution becomes the identity, and an offset that makes its input positive keeps the ReLU from acting.

    Args:
        model: model that gets the weights, which are not trained.
        weights: the weights that `teacher.decoder_weights` returns.
    """
    decoder = model.decoder
    decoder.requires_grad_(False)
    decoder.conv_pre.weight.zero_()
    decoder.conv_pre.weight[:, CHANNELS:].copy_(torch.tensor(weights["conv_pre.weight"]))
    decoder.conv_pre.bias.copy_(torch.tensor(weights["conv_pre.bias"]))
    decoder.cond.weight.zero_()
    decoder.cond.bias.zero_()
    for index, layer in enumerate(decoder.upsampler):
        layer.weight.copy_(torch.tensor(weights[f"ups.{index}.weight"]))
        layer.bias.copy_(torch.tensor(weights[f"ups.{index}.bias"]))
    for index, block in enumerate(decoder.resblocks):
        for number, (first, second) in enumerate(zip(block.convs1, block.convs2, strict=True)):
            first.weight.copy_(torch.tensor(weights[f"resblocks.{index}.convs.{number}.weight"]))
            first.bias.copy_(torch.tensor(weights[f"resblocks.{index}.convs.{number}.bias"]) + OFFSET)
            nn.init.dirac_(second.weight)
            second.bias.fill_(-OFFSET)
    decoder.conv_post.weight.copy_(torch.tensor(weights["conv_post.weight"]))


def write_tokenizer(directory: Path) -> None:
    """Write the files that `VitsTokenizer` reads."""
    settings = {
        "tokenizer_class": "VitsTokenizer",
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "language": "eng",
        "add_blank": False,
        "normalize": True,
        "phonemize": False,
        "is_uroman": False,
    }
    (directory / "vocab.json").write_text(json.dumps(VOCABULARY, indent=2), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
