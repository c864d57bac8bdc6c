"""The last stage of training: the decoder learns to speak the text side's latents in two voices of even pitch.

The text side cannot know where in a frame the teacher's pulses fall. Its latents therefore have none of the teacher's
melody, and a decoder that expects it sounds hoarse. Here the decoder learns pulses at fixed places: one a frame for the
first voice, two for the second, whose formants are higher too. Knows nothing about letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import VitsModel

from tessera.starters.optimize import Average, adamw, autocast, cosine, generator, set_learning_rate
from tessera.starters.run import Run
from tessera_speech.starter.synthesis.data import TrainingUtterance, collate
from tessera_speech.starter.synthesis.model import OFFSET
from tessera_speech.starter.synthesis.pitch import revoiced
from tessera_speech.starter.synthesis.teacher import CHANNELS, HOP, Floats
from tessera_speech.starter.synthesis.text_side import encode, spread, update

PERIODS = (HOP, HOP // 2)
STRETCHES = (1.0, 1.15)
"""Factors by which the spectra of the two voices are stretched."""
PIECES = 12
"""Pieces of utterances in a batch, half of them in each voice."""
FRAMES = 24
MARGIN = 32
"""Frames around a piece that the flow reads and the decoder does not speak."""
PEAK = 5e-4
PEAK_VOICES = 4e-3
CYCLE = 400
"""Steps from one warm-up to the next."""
WINDOWS = (256, 512, 1024)
HEARD_BELOW = 70
"""Bands of the widest window, up to 1.5 kHz, in which the loss includes the phase."""
FLOOR = 1e-3


@dataclass(frozen=True)
class VoicePair:
    """The audio of an utterance in both voices, float32 [frames * HOP] each."""

    utterance: TrainingUtterance
    samples: tuple[Floats, ...]


def recordings(model: VitsModel, utterances: Sequence[TrainingUtterance]) -> list[VoicePair]:
    """The utterances as the teacher's decoder speaks them, in both voices."""
    made: list[VoicePair] = []
    for one in utterances:
        samples = teacher_speech(model, torch.from_numpy(one.latents.astype(np.float32)))
        voices = (
            revoiced(samples, period=period, stretch=stretch)
            for period, stretch in zip(PERIODS, STRETCHES, strict=True)
        )
        made.append(VoicePair(one, tuple(voices)))
    return made


@torch.inference_mode()
def teacher_speech(model: VitsModel, latents: torch.Tensor) -> Floats:
    """Samples [frames * HOP] of the teacher's latents [frames, CHANNELS], by a model that has its decoder."""
    padded = torch.zeros(1, 2 * CHANNELS, len(latents))
    padded[0, CHANNELS:] = latents.T
    samples: Floats = speak(model, padded, None)[0].float().numpy()
    return samples


def speak(model: VitsModel, latents: torch.Tensor, speakers: torch.Tensor | None) -> torch.Tensor:
    """The output of `model.decoder`, without computing the convolutions that are the identity: half the work.

    Args:
        model: model with the decoder of `adopt_decoder`.
        latents: [batch, 2 * CHANNELS, frames].
        speakers: [batch, embedding, 1], or None for neither voice.

    Returns:
        Samples [batch, frames * HOP].
    """
    decoder = model.decoder
    hidden = decoder.conv_pre(latents)
    if speakers is not None:
        hidden = hidden + decoder.cond(speakers)
    slope, kinds = model.config.leaky_relu_slope, decoder.num_kernels
    for index, upsample in enumerate(decoder.upsampler):
        hidden = upsample(functional.leaky_relu(hidden, slope))
        blocks = []
        for block in decoder.resblocks[index * kinds : (index + 1) * kinds]:
            branch = hidden
            for layer in block.convs1:
                branch = branch + functional.conv1d(
                    functional.leaky_relu(branch, slope),
                    layer.weight,
                    layer.bias - OFFSET,
                    padding=layer.padding,
                    dilation=layer.dilation,
                )
            blocks.append(branch)
        hidden = torch.stack(blocks).mean(0)
    return torch.tanh(decoder.conv_post(functional.leaky_relu(hidden)))[:, 0]


class VoiceStage:
    """The stage in which flow and decoder learn two voices. Implements `tessera.starters.run.Stage`."""

    name = "voices"

    def __init__(self, run: Run, model: VitsModel, kept: Sequence[VoicePair], *, steps: int) -> None:
        self.steps = steps
        self._run, self._model = run, model
        self._recordings = [one for one in kept if len(one.utterance.latents) >= FRAMES]
        run.reseed("voices")
        part_from_pace(model)
        train_decoder(model)
        self._codes = [_codes(model, one.utterance) for one in self._recordings]
        self._average = Average(model, 0.98)
        self._ends = Average(model, 1.0)
        # The embedding that distinguishes the voices begins at zero and needs a higher learning rate.
        apart = [model.embed_speaker, model.decoder.cond]
        self._body = adamw([model.flow, model.decoder], PEAK)
        mine = {id(parameter) for module in apart for parameter in module.parameters()}
        for group in self._body.param_groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in mine]
        self._apart = adamw(apart, PEAK_VOICES)

    def modules(self) -> dict[str, nn.Module]:
        """The trained modules, by name."""
        return {"model": self._model, "average": self._average, "ends": self._ends}

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Their optimizers, by name."""
        return {"body": self._body, "apart": self._apart}

    def step(self, index: int) -> dict[str, float]:
        """Make one update."""
        random = generator(self._run.seed, 3, index)
        codes, samples = [], []
        voices = torch.arange(PIECES) % 2
        for voice in voices.tolist():
            number = int(random.integers(len(self._recordings)))
            code, audio = self._codes[number], self._recordings[number].samples[voice]
            start = int(random.integers(code.shape[1] - FRAMES + 1))
            codes.append(functional.pad(code, (MARGIN, MARGIN))[:, start : start + FRAMES + 2 * MARGIN])
            samples.append(torch.from_numpy(audio[start * HOP : (start + FRAMES) * HOP]))
        wanted = torch.stack(samples)
        # The learning rate falls once a cycle and restarts (Loshchilov & Hutter 2017), so every cycle's end is usable.
        share = cosine(index % CYCLE, CYCLE, 1.0, warmup=30, floor=0.05)
        set_learning_rate(self._body, share * PEAK)
        set_learning_rate(self._apart, share * PEAK_VOICES)
        with autocast(self._run.device):
            speakers = self._model.embed_speaker(voices).unsqueeze(-1)
            batch = torch.stack(codes)
            mask = (batch.abs().sum(1, keepdim=True) > 0).to(torch.float32)
            latents = self._model.flow(batch, mask, speakers, reverse=True)
            spoken = speak(self._model, latents[:, :, MARGIN:-MARGIN], speakers)
        values = audio_losses(spoken.float(), wanted)
        self._apart.zero_grad(set_to_none=True)
        update(self._body, sum(values.values(), start=torch.zeros(())))
        self._apart.step()
        self._average.update(self._model)
        if (index + 1) % CYCLE == 0:
            take_in(self._ends, self._average, (index + 1) // CYCLE)
        return {name: value.item() for name, value in values.items()}

    def finish(self) -> None:
        """Copy the mean of the weights at the cycles' ends into the model (Izmailov et al. 2018)."""
        self._ends.copy_to(self._model)


@torch.no_grad()
def take_in(ends: Average, average: Average, count: int) -> None:
    """Update `ends` to the mean of `count` averages, of which `average` is the last."""
    for (name, mean), value in zip(ends.named_buffers(), average.buffers(), strict=True):
        if name != "updates":
            mean.lerp_(value, 1 / count)


def audio_losses(spoken: torch.Tensor, wanted: torch.Tensor) -> dict[str, torch.Tensor]:
    """Distances between samples [batch, time]: of log spectra, of spectra, and of low frequencies with their phase."""
    logs, spectra = [], []
    waves = torch.zeros(())
    for size in WINDOWS:
        window = torch.hann_window(size, device=spoken.device)
        ours, theirs = (torch.stft(x, size, size // 4, window=window, return_complex=True) for x in (spoken, wanted))
        us, them = torch.view_as_real(ours).square().sum(-1).add(1e-8).sqrt(), theirs.abs()
        logs.append((torch.log(us + FLOOR) - torch.log(them + FLOOR)).abs().mean())
        spectra.append((us - them).abs().sum() / them.sum())
        if size == WINDOWS[-1]:
            low = torch.view_as_real(ours - theirs)[:, :HEARD_BELOW]
            waves = low.square().sum(-1).add(1e-8).sqrt().sum() / them[:, :HEARD_BELOW].sum()
    return {"logs": torch.stack(logs).mean(), "spectra": torch.stack(spectra).mean(), "waves": waves}


@torch.no_grad()
def part_from_pace(model: VitsModel) -> None:
    """Give the second voice an embedding of its own; both keep the durations that were learned with the first voice."""
    layer = model.duration_predictor.cond
    layer.bias.add_(layer.weight[:, :, 0] @ model.embed_speaker.weight[0])
    layer.weight.zero_()
    nn.init.normal_(model.embed_speaker.weight[1], std=0.3)


def train_decoder(model: VitsModel) -> None:
    """Make flow, decoder and voice embeddings trainable, but for the decoder's identities; freeze the rest."""
    model.requires_grad_(False)
    for module in (model.flow, model.decoder, model.embed_speaker):
        module.requires_grad_(True)
    for block in model.decoder.resblocks:
        block.convs2.requires_grad_(False)


@torch.no_grad()
def _codes(model: VitsModel, utterance: TrainingUtterance) -> torch.Tensor:
    """The text encoder's output for an utterance, frame by frame: [2 * CHANNELS, frames]."""
    batch = collate([utterance])
    return spread(encode(model, batch.tokens)[1], batch.frames)[0][0]
