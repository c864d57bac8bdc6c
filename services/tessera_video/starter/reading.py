"""The third training stage of the video starter: the text encoder learns which thing each word of a prompt describes.

Afterwards the embedding of every word contains all attributes of its thing, and of the other thing. A denoiser alone
learns that late: it shows everything that was named, but mixes up which thing does what. Knows no clips.

Shapes: B prompts, L words of the longest one, D their width.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

from tessera.starters.optimize import adamw, autocast, cosine, generator, set_learning_rate
from tessera.starters.run import Run
from tessera_video.starter import data
from tessera_video.starter.model import TEXT_WIDTH, make_text_encoder, make_tokenizer

STEPS, BATCH = 800, 64
"""Optimizer steps, and prompts per step."""
RATE = 2e-3
"""Peak learning rate."""
NO_ANSWER = -100
"""Class of tokens that describe no thing; the loss ignores it."""
ORDER = ("alone", "first", "second")
"""Answers to the question for a thing's order in the prompt."""
VALUES: dict[str, tuple[str, ...]] = {"colour": tuple(data.COLOURS), "shape": data.SHAPES, "motion": data.MOTIONS}
"""Values of each attribute of a thing; answer k + 1 stands for the value at index k."""


def meanings(scene: data.ClipScene) -> dict[str, list[int]]:
    """Return for each question the answer of each thing's words; 0 stands for a thing that does not exist."""
    order = (0,) if len(scene.things) == 1 else (1, 2)
    answers: dict[str, list[int]] = {"order": list(order)}
    for name, values in VALUES.items():
        own = [1 + values.index(getattr(thing, name)) for thing in scene.things]
        answers[f"own {name}"] = own
        answers[f"other {name}"] = own[::-1] if len(own) == 2 else [0]
    answers["background"] = [list(data.BACKGROUNDS).index(scene.background)] * len(scene.things)
    return answers


def questions() -> dict[str, int]:
    """Return the number of answers of each question."""
    sizes = {f"{whose} {name}": 1 + len(values) for whose in ("own", "other") for name, values in VALUES.items()}
    return {"order": len(ORDER), **sizes, "background": len(data.BACKGROUNDS)}


def owners(tokenizer: PreTrainedTokenizerFast, pieces: list[tuple[str, int | None]]) -> list[int | None]:
    """Return for each token of a prompt the index of the thing that it describes, or None."""
    of_character = [owner for text, owner in pieces for _ in text]
    offsets = tokenizer("".join(text for text, _ in pieces), return_offsets_mapping=True)["offset_mapping"]
    return [of_character[start] for start, _ in offsets]


class ReadingStage:
    """A `Stage` that trains the text encoder."""

    name = "reading"
    steps = STEPS

    def __init__(self, run: Run) -> None:
        run.reseed(self.name)
        self.run = run
        self.tokenizer = make_tokenizer()
        self.text_encoder = make_text_encoder(self.tokenizer).to(run.device).train()
        self.heads = nn.ModuleDict({name: nn.Linear(TEXT_WIDTH, size) for name, size in questions().items()})
        self.heads.to(run.device)
        self.optimizer = adamw([self.text_encoder, self.heads], RATE)

    def modules(self) -> dict[str, nn.Module]:
        """Implement this part of `Stage`."""
        return {"text_encoder": self.text_encoder, "heads": self.heads}

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Implement this part of `Stage`."""
        return {"optimizer": self.optimizer}

    def step(self, index: int) -> dict[str, float]:
        """Implement this part of `Stage`."""
        set_learning_rate(self.optimizer, cosine(index, self.steps, RATE))
        self.optimizer.zero_grad(set_to_none=True)
        loss, right = self.read(generator(self.run.seed_of(self.name, index)))
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.modules()["text_encoder"].parameters(), 1.0)
        self.optimizer.step()
        return {"loss": loss.item(), "right": right}

    def read(self, random: np.random.Generator, *, held: bool = False) -> tuple[torch.Tensor, float]:
        """Return the loss of a batch of random prompts, and the share (0 to 1) of answers that are right."""
        scenes = [data.draw_scene(random, held=held, things=2 if row % 3 else 1) for row in range(BATCH)]
        described = [data.describe_in_pieces(scene, random) for scene in scenes]
        prompts = ["".join(text for text, _ in pieces) for pieces in described]
        tokens = self.tokenizer(prompts, padding=True, return_tensors="pt").to(self.run.device)
        wanted = {name: np.full(tokens.input_ids.shape, NO_ANSWER) for name in questions()}
        for row, (scene, pieces) in enumerate(zip(scenes, described, strict=True)):
            answers = meanings(scene)
            for column, owner in enumerate(owners(self.tokenizer, pieces)):
                if owner is not None:
                    for name, answer in answers.items():
                        wanted[name][row, column] = answer[owner]
        with autocast(self.run.device):
            text_BLD = self.text_encoder(tokens.input_ids.long(), tokens.attention_mask).last_hidden_state
        total, right = torch.zeros((), device=self.run.device), []
        for name, head in self.heads.items():
            answer_BL = torch.from_numpy(wanted[name]).to(self.run.device)
            score_BLK = head(text_BLD.float())
            total = total + functional.cross_entropy(score_BLK.transpose(1, 2), answer_BL, ignore_index=NO_ANSWER)
            asked_BL = answer_BL != NO_ANSWER
            right.append((score_BLK.argmax(-1) == answer_BL)[asked_BL].float().mean().item())
        return total, float(np.mean(right))
