"""Trains the text side in two stages: spelling, then speech.

`SpellingStage` teaches the text encoder which phonemes each letter speaks, from text alone. `SpeechStage` teaches text
encoder, duration predictor and flow the teacher's durations and latents by regression; the decoder stays the teacher's.
Knows nothing about audio.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import VitsModel

from tessera.starters.optimize import Average, adamw, autocast, cosine, generator, set_learning_rate
from tessera.starters.run import Run
from tessera_speech.starter.synthesis.data import (
    NO_LABEL,
    Spellings,
    SynthesisBatch,
    TrainingUtterance,
    collate,
    padded,
    tokens_of,
)
from tessera_speech.starter.synthesis.model import HIDDEN
from tessera_speech.starter.synthesis.teacher import CHANNELS

SPELLING_BATCH = 48
PEAK_SPELLING = 2e-3
SPEECH_BATCH = 16
PEAK_SPEECH = 2e-3
LABEL_SHARE = 0.3
LATENT_SHARE = 0.2
DURATION_SHARE = 1.0
HALF_FRAME = 0.5
"""Frames that are subtracted from the durations to predict, because the model rounds its durations up."""


class SpellingStage:
    """The stage in which the text encoder learns the phonemes of each letter.

    Implements `tessera.starters.run.Stage`.
    """

    name = "spelling"

    def __init__(self, run: Run, model: VitsModel, head: nn.Linear, spellings: Spellings, *, steps: int) -> None:
        self.steps = steps
        self._run, self._model, self._head = run, model, head
        numbers = {label: number for number, label in enumerate(spellings.labels)}
        self._rows = sorted(
            (
                (tokens_of(text), np.array([numbers.get(chunk, NO_LABEL) for chunk in spoken]))
                for text, spoken in zip(spellings.texts, spellings.spoken, strict=True)
            ),
            key=lambda row: len(row[0]),
        )
        self._optimizer = adamw([model.text_encoder.embed_tokens, model.text_encoder.encoder, head], PEAK_SPELLING)

    def modules(self) -> dict[str, nn.Module]:
        """The trained modules, by name."""
        return {"encoder": self._model.text_encoder, "head": self._head}

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Their optimizers, by name."""
        return {"adamw": self._optimizer}

    def step(self, index: int) -> dict[str, float]:
        """Make one update."""
        random = generator(self._run.seed, 1, index)
        start = int(random.integers(len(self._rows) - SPELLING_BATCH))
        rows = self._rows[start : start + SPELLING_BATCH]
        tokens = padded([row[0] for row in rows], 0).to(self._run.device)
        labels = padded([row[1] for row in rows], NO_LABEL).to(self._run.device)
        set_learning_rate(self._optimizer, cosine(index, self.steps, PEAK_SPELLING, warmup=50, floor=0.2))
        with autocast(self._run.device):
            hidden = encode(self._model, tokens)[0]
            scores = self._head(hidden)
        loss = functional.cross_entropy(scores.float().flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL)
        update(self._optimizer, loss)
        kept = labels != NO_LABEL
        right = (scores.argmax(-1) == labels)[kept].float().mean()
        return {"loss": loss.item(), "right": right.item()}


class SpeechStage:
    """The stage in which the text side learns durations and latents. Implements `tessera.starters.run.Stage`."""

    name = "speech"

    def __init__(
        self, run: Run, model: VitsModel, head: nn.Linear, utterances: list[TrainingUtterance], *, steps: int
    ) -> None:
        self.steps = steps
        self._run, self._model, self._head = run, model, head
        self._utterances = sorted(utterances, key=lambda one: len(one.latents))
        self._average = Average(model, 0.99)
        parts = [model.text_encoder, model.duration_predictor, model.flow, model.embed_speaker, head]
        self._optimizer = adamw(parts, PEAK_SPEECH)

    def modules(self) -> dict[str, nn.Module]:
        """The trained modules, by name."""
        return {"model": self._model, "head": self._head, "average": self._average}

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Their optimizers, by name."""
        return {"adamw": self._optimizer}

    def step(self, index: int) -> dict[str, float]:
        """Make one update."""
        random = generator(self._run.seed, 2, index)
        start = int(random.integers(len(self._utterances) - SPEECH_BATCH))
        batch = collate(self._utterances[start : start + SPEECH_BATCH])
        set_learning_rate(self._optimizer, cosine(index, self.steps, PEAK_SPEECH, warmup=50))
        with autocast(self._run.device):
            values = losses(self._model, self._head, batch)
        loss = values["heard"] + LATENT_SHARE * values["latents"]
        loss = loss + DURATION_SHARE * values["durations"] + LABEL_SHARE * values["letters"]
        update(self._optimizer, loss)
        self._average.update(self._model)
        return {name: value.item() for name, value in values.items()}

    def finish(self) -> None:
        """Copy the averaged weights into the model."""
        self._average.copy_to(self._model)


def losses(model: VitsModel, head: nn.Linear, batch: SynthesisBatch) -> dict[str, torch.Tensor]:
    """Losses of the model on a batch: `heard` at the decoder's first layer, the others at the layers that they name."""
    hidden, means = encode(model, batch.tokens)
    speakers = model.embed_speaker(batch.voices).unsqueeze(-1)
    letters = (batch.tokens != 0).unsqueeze(1).to(hidden.dtype)
    logs = model.duration_predictor(hidden.transpose(1, 2), letters, speakers)[:, 0]
    there = batch.tokens != 0
    wanted = torch.log(batch.frames.clamp_min(1) - HALF_FRAME)
    durations = functional.l1_loss(logs.float()[there], wanted[there])
    codes, mask = spread(means, batch.frames)
    spoken = model.flow(codes, mask, speakers, reverse=True)
    # Frames past the end add no loss: the mask sets both sides to zero.
    difference = (spoken[:, CHANNELS:] - batch.latents) * mask
    heard = functional.conv1d(difference, model.decoder.conv_pre.weight[:, CHANNELS:], padding="same")
    count = mask.sum()
    scores = head(hidden)
    return {
        "heard": heard.float().abs().sum() / (count * heard.shape[1]),
        "latents": difference.float().abs().sum() / (count * CHANNELS),
        "durations": durations,
        "letters": functional.cross_entropy(
            scores.float().flatten(0, 1), batch.labels.flatten(), ignore_index=NO_LABEL
        ),
    }


def encode(model: VitsModel, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [batch, letters, HIDDEN] and prior means [batch, letters, latents] of padded tokens."""
    there = tokens != 0
    output = model.text_encoder(
        input_ids=tokens, padding_mask=there.unsqueeze(-1).to(torch.float32), attention_mask=there.long()
    )
    assert output.last_hidden_state.shape[-1] == HIDDEN
    return output.last_hidden_state, output.prior_means


def spread(means: torch.Tensor, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The means of each letter, repeated for its frames: [batch, latents, frames] and the mask [batch, 1, frames].

    Args:
        means: [batch, letters, latents].
        frames: int64 [batch, letters].
    """
    ends = frames.cumsum(1)
    longest = int(ends[:, -1].max())
    at = torch.arange(longest, device=frames.device).expand(len(frames), -1).contiguous()
    letters = torch.searchsorted(ends, at, right=True).clamp_max(frames.shape[1] - 1)
    mask = (at < ends[:, -1:]).unsqueeze(1).to(means.dtype)
    return means.gather(1, letters.unsqueeze(-1).expand(-1, -1, means.shape[-1])).transpose(1, 2), mask


def update(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Make one optimizer step, with the norm of the gradient clipped to 1."""
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
