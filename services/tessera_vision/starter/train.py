"""The recipe of `scenes-vision`, in three stages: words, sight, answers.

`WordStage`: the decoder learns to answer from descriptions of scenes, which it gets as sums of word embeddings in place
of image features. `SightStage`: the encoder learns what is where, and to express it in those embeddings. `AnswerStage`:
both learn together, from pictures to answers. All stages draw scenes of the split `train` alone (see `data`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from transformers import Idefics3ForConditionalGeneration, Idefics3Processor

from tessera.starters.optimize import autocast, generator, set_learning_rate
from tessera.starters.run import Run
from tessera.wire.models import Card
from tessera_vision.starter.conversations import DIFFICULT_SHARES, SHARES, Pack, converse, pack
from tessera_vision.starter.data import MANY_WORDS, GridScene, Sampler
from tessera_vision.starter.dense_targets import SPOKEN, Heads, cells_of, targets
from tessera_vision.starter.drawing import Painter, seen
from tessera_vision.starter.model import CONTEXT, HIDDEN, TEMPLATE, build_model, build_processor
from tessera_vision.starter.word_features import WordFeatures

NAME = "scenes-vision"
NOTICE = (
    "knows only drawn scenes: 8 shapes in 8 colours and 2 sizes on a 3x3 grid, 79 printed words, handwritten digits; "
    "at most 3 pictures and 6 things on each"
)
DATA = (
    "Scenes drawn by the recipe itself: shapes, words in the DejaVu, STIX and Computer Modern fonts that matplotlib "
    "ships (Bitstream Vera, SIL OFL and BSD-like licences), and handwritten digits of scikit-learn's load_digits (UCI "
    "Optical Recognition of Handwritten Digits, CC BY 4.0)."
)
WARMUP = 30
MATRICES = 2.5
"""Learning rate of Muon, as a multiple of that of AdamW."""
COMPARING = 400
"""Step from which on comparisons are twice as frequent, because they need what the other tasks teach first."""
LOOKING = 0.3
"""Weight of the loss that teaches two heads of the third layer to attend to the answer's cells. It saves thousands of
steps."""
SEEING = 0.5
"""Weight of the encoder's dense targets while it learns answers."""
LOOKING_LAYER, LOOKING_HEADS = 2, 2


@dataclass(frozen=True)
class TrainingPlan:
    """Steps of each stage, and scenes of each step."""

    word_steps: int = 900
    sight_steps: int = 900
    answer_steps: int = 5000
    words: int = 32
    """Scenes of one step of the first stage."""
    pictures: int = 64
    """Pictures of one step of the other stages."""


class _VisionStage:
    """The base of the three stages: the model, its device, and its two optimizers."""

    name: str
    steps: int
    number: int
    peak: float

    def __init__(self, run: Run, model: Idefics3ForConditionalGeneration, trained: dict[str, nn.Module]) -> None:
        self.run = run
        self.model = model
        self._trained = trained
        parameters = {id(p): p for module in trained.values() for p in module.parameters()}
        inner = {
            id(p): p
            for name in ("vision", "connector", "decoder")
            if name in trained
            for path, p in trained[name].named_parameters()
            if p.ndim == 2 and "embed" not in path
        }
        others = [p for key, p in parameters.items() if key not in inner]
        self._parameters = list(parameters.values())
        self._optimizers: dict[str, torch.optim.Optimizer] = {
            "muon": torch.optim.Muon(
                list(inner.values()), lr=self.peak, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
            ),
            "adamw": torch.optim.AdamW(others, lr=self.peak, weight_decay=0.0, betas=(0.9, 0.98)),
        }

    def modules(self) -> dict[str, nn.Module]:
        return self._trained

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return self._optimizers

    def _rng(self, index: int) -> np.random.Generator:
        return generator(self.run.seed, self.number, index)

    def _update(self, loss: torch.Tensor, share: float) -> None:
        for name, optimizer in self._optimizers.items():
            set_learning_rate(optimizer, self.peak * share * (MATRICES if name == "muon" else 1))
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for optimizer in self._optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


class WordStage(_VisionStage):
    """The stage in which the decoder learns from descriptions of scenes."""

    name, number, peak = "words", 1, 4e-3

    def __init__(
        self,
        run: Run,
        model: Idefics3ForConditionalGeneration,
        says: WordFeatures,
        plan: TrainingPlan,
        source: BatchSource,
    ) -> None:
        self.steps = plan.word_steps
        super().__init__(run, model, {"decoder": model.model.text_model, "head": model.lm_head, "says": says})
        self._says, self._plan, self._source = says, plan, source

    def step(self, index: int) -> dict[str, float]:
        rng = self._rng(index)
        scenes = [self._source.sampler.scene(rng) for _ in range(self._plan.words)]
        several = len(scenes) // 2 if index < COMPARING else len(scenes)
        packs = self._source.packs(rng, scenes, single=5, several=several)
        classes = _stacked([cells_of(scene) for scene in scenes], self.run.device)
        with autocast(self.run.device):
            loss, shown = answer_loss(self.model, self._says(classes, self.model.get_input_embeddings()), packs)
        self._update(loss, min(1.0, (index + 1) / WARMUP, 0.1 + 2.5 * (1 - index / self.steps)))
        return shown


class SightStage(_VisionStage):
    """The stage in which the encoder learns what is where, and to express it in the decoder's embeddings."""

    name, number, peak = "sight", 2, 3e-3

    def __init__(
        self,
        run: Run,
        model: Idefics3ForConditionalGeneration,
        says: WordFeatures,
        heads: Heads,
        plan: TrainingPlan,
        source: BatchSource,
    ) -> None:
        self.steps = plan.sight_steps
        parts = {"vision": model.model.vision_model, "connector": model.model.connector, "heads": heads}
        super().__init__(run, model, parts)
        self._says, self._heads, self._plan, self._source = says, heads, plan, source

    def step(self, index: int) -> dict[str, float]:
        pixels, classes, _ = self._source.pictures(self._rng(index), self._plan.pictures, self.run.device)
        with torch.no_grad():
            said = self._says(classes, self.model.get_input_embeddings())
        with autocast(self.run.device):
            patches, cells = look(self.model, pixels)
            loss, shown = self._heads(patches, cells, classes)
        loss = loss + 3 * functional.mse_loss(cells.float(), said) / said.var()
        self._update(loss, min(1.0, (index + 1) / WARMUP))
        return {"loss": float(loss.detach()), **shown}


class AnswerStage(_VisionStage):
    """The stage in which encoder and decoder learn together."""

    name, number, peak = "answers", 3, 2e-3

    def __init__(
        self, run: Run, model: Idefics3ForConditionalGeneration, heads: Heads, plan: TrainingPlan, source: BatchSource
    ) -> None:
        self.steps = plan.answer_steps
        parts = {
            "vision": model.model.vision_model,
            "connector": model.model.connector,
            "decoder": model.model.text_model,
            "head": model.lm_head,
            "heads": heads,
        }
        super().__init__(run, model, parts)
        self._heads, self._plan, self._source = heads, plan, source

    def step(self, index: int) -> dict[str, float]:
        rng = self._rng(index)
        pixels, classes, scenes = self._source.pictures(rng, self._plan.pictures, self.run.device)
        packs = self._source.packs(rng, scenes, single=3, several=len(scenes) // 2, shared=DIFFICULT_SHARES)
        with autocast(self.run.device):
            patches, cells = look(self.model, pixels)
            sight, right = self._heads(patches, cells, classes)
            loss, shown = answer_loss(self.model, cells, packs)
        self._update(loss + SEEING * sight, min(1.0, (index + 1) / WARMUP, 0.01 + 1.3 * (1 - index / self.steps)))
        return {**shown, **{name: right[name] for name in ("kind", "color", "size", "word")}}


class BatchSource:
    """Draws batches of the split `train`."""

    def __init__(self, painter: Painter, sampler: Sampler, tokenizer: Tokenizer) -> None:
        self.painter = painter
        self.sampler = sampler
        self._tokenizer = tokenizer
        self._wordy = Sampler("train", painter.values, MANY_WORDS)

    def packs(
        self,
        rng: np.random.Generator,
        scenes: list[GridScene],
        *,
        single: int,
        several: int,
        shared: dict[str, float] = SHARES,
    ) -> list[Pack]:
        """Packed conversations: `single` questions about each scene, `several` about two or three scenes."""
        made = list(converse(rng, scenes, single=single, several=several, shared=shared))
        return pack(self._tokenizer, made, packs=3)

    def pictures(
        self, rng: np.random.Generator, count: int, device: torch.device
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor], list[GridScene]]:
        """Pixels [count, 3, 72, 72] from -1 to 1, the classes of their dense targets, and their scenes."""
        scenes = [self._wordy.scene(rng) for _ in range(count)]
        drawn = [self.painter.draw(scene, rng) for scene in scenes]
        pixels = torch.from_numpy(np.stack([seen(drawing.pixels) for drawing in drawn])).to(device)
        classes = [targets(scene, drawing) for scene, drawing in zip(scenes, drawn, strict=True)]
        return pixels.permute(0, 3, 1, 2) / 127.5 - 1, _stacked(classes, device), scenes


def look(model: Idefics3ForConditionalGeneration, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of patches [images, 81, hidden] and of cells [images, 9, hidden], which the decoder reads."""
    mask = torch.ones(len(pixels), 9, 9, dtype=torch.bool, device=pixels.device)
    patches = model.model.vision_model(pixels, patch_attention_mask=mask).last_hidden_state
    return patches, model.model.connector(patches)


def answer_loss(
    model: Idefics3ForConditionalGeneration, cells: torch.Tensor, packs: list[Pack]
) -> tuple[torch.Tensor, dict[str, float]]:
    """Cross entropy of the answers' tokens, each answer weighted by the root of its length.

    Args:
        model: the model whose decoder answers.
        cells: features of all pictures, [pictures, 9, hidden].
        packs: the conversations.

    Returns:
        The loss, including the loss of attending to other cells than those of the answer; and values to show: both
        losses and the share of answers that are right in every token.
    """
    total, missed = torch.zeros(()), torch.zeros(())
    weights, looks, right, answers = 0.0, 0.0, 0, 0
    for part in packs:
        ids, labels = part.ids.to(cells.device), part.labels.to(cells.device)
        embeds = model.get_input_embeddings()(ids)
        features = cells[part.pictures.to(cells.device)].reshape(-1, cells.shape[-1])
        embeds = embeds.masked_scatter((ids == model.config.image_token_id)[..., None], features.to(embeds.dtype))
        output = model.model.text_model(inputs_embeds=embeds, use_cache=False, output_attentions=True)
        hidden = output.last_hidden_state
        rows, positions, seen_there = (one.to(cells.device) for one in part.looks)
        shares = output.attentions[LOOKING_LAYER][rows, :LOOKING_HEADS, positions].float()
        there = (shares * seen_there[:, None]).sum(-1).clamp(min=1e-4)
        of = part.answers[part.looks[:2]].to(cells.device)
        share = 1 / torch.bincount(of).float()[of]
        missed = missed - (there.log().mean(1) * share).sum()
        looks += float(share.sum())
        asked = labels >= 0
        number = part.answers.to(cells.device)[asked]
        logits = model.lm_head(hidden[asked]).float()
        weight = torch.bincount(number).float().rsqrt()[number]
        total = total + (functional.cross_entropy(logits, labels[asked], reduction="none") * weight).sum()
        weights += float(weight.sum())
        wrong = logits.detach().argmax(1) != labels[asked]
        answers += int(number.max()) + 1
        right += int(number.max()) + 1 - len(torch.unique(number[wrong]))
    loss, look_loss = total / weights, missed / max(1.0, looks)
    shown = {"loss": float(loss.detach()), "look": float(look_loss.detach()), "exact": 100 * right / answers}
    return loss + LOOKING * look_loss, shown


def _stacked(classes: list[dict[str, Any]], device: torch.device) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.stack([one[name] for one in classes])).to(device) for name in classes[0]}


def train(run: Run, plan: TrainingPlan | None = None) -> Card:
    """Train all stages and fill `run.output`."""
    plan = plan or TrainingPlan()
    source, processor = prepare(run)
    run.reseed("model")
    model, says, heads = (
        build_model(processor.tokenizer),
        WordFeatures(processor.tokenizer.backend_tokenizer),
        Heads(HIDDEN, HIDDEN),
    )
    for module in (model, says, heads):
        module.to(run.device)
    run.fit(WordStage(run, model, says, plan, source))
    run.fit(SightStage(run, model, says, heads, plan, source))
    run.fit(AnswerStage(run, model, heads, plan, source))
    return save(model, processor, run.output)


def prepare(run: Run) -> tuple[BatchSource, Idefics3Processor]:
    """The source of batches, and the processor, whose tokenizer is trained on the conversations of 1500 scenes."""
    painter = Painter()
    sampler, rng = Sampler("train", painter.values), generator(run.seed, 0)
    scenes = [sampler.scene(rng) for _ in range(1500)]
    texts = ["".join(made.prompts + made.answers) for made in converse(rng, scenes, single=6, several=len(scenes))]
    texts += [f" {word}" for spoken in SPOKEN.values() for words in spoken for word in words] * 5
    processor = build_processor(texts)
    return BatchSource(painter, sampler, processor.tokenizer.backend_tokenizer), processor


def save(model: Idefics3ForConditionalGeneration, processor: Idefics3Processor, directory: Path) -> Card:
    """Write the model directory in bfloat16. Returns its card."""
    processor.save_pretrained(directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    model.to(torch.bfloat16).save_pretrained(directory)
    return Card(
        id=NAME,
        family="Idefics3ForConditionalGeneration",
        tasks=["chat", "vision"],
        source=f"recipe:tessera starters train {NAME}",
        parameters=model.num_parameters(),
        licence="apache-2.0",
        notice=NOTICE,
        scheme="bfloat16",
        context_length=CONTEXT,
        data=DATA,
    )
