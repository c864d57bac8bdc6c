"""Trains the starter: its tokenizer, then next-token prediction on the answers alone, in two stages.

The first stage has all tasks, the second a greater share of the difficult ones. The loss that balances the experts is
that of the model's class, taken for each layer, so that no layer leaves an expert unused. Knows nothing about judging.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from transformers import Qwen3MoeForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from tessera.starters import optimize
from tessera.starters.run import Run
from tessera.wire.models import Card
from tessera_text.starter import data, model
from tessera_text.starter.batches import PackedBatch, draw_batch
from tessera_text.starter.muon import Muon

NAME = "arithmetic-moe"
MUON_PEAK, ADAMW_PEAK = 0.02, 3e-3


@dataclass(frozen=True)
class StageSchedule:
    """The schedule of one stage: its steps, its learning rate and its tasks.

    Attributes:
        name: name of the stage, which its checkpoint has too.
        begins: number of the stage's first batch; no two stages have a batch of the same number.
        steps: number of updates.
        warm_up: updates until the learning rate reaches its peak.
        decay: updates at the end in which the learning rate falls to zero.
        peak: highest learning rate, as a fraction of `MUON_PEAK` and `ADAMW_PEAK`.
        shares: percentage of questions of each task, in the order of `data.TASKS`.
    """

    name: str
    begins: int
    steps: int
    warm_up: int
    decay: int
    peak: float
    shares: tuple[int, ...]

    def share_of_peak(self, index: int) -> float:
        """The learning rate of a step, as a fraction: a linear rise, a plateau, and a linear fall to zero."""
        return self.peak * min(1.0, (index + 1) / self.warm_up, (self.steps - index) / self.decay)


# add, subtract, multiply, divide, sort, extreme, median, convert, compare, measure, other
ALL_TASKS = StageSchedule("answers", 0, 6000, 100, 2400, 1.0, (13, 14, 8, 11, 14, 5, 5, 11, 8, 9, 2))
DIFFICULT_TASKS = StageSchedule("difficult", 6000, 2000, 50, 1600, 0.6, (14, 8, 7, 12, 15, 4, 4, 14, 9, 12, 1))
TOKENIZER_QUESTIONS = 2000
"""Questions of each task on which the tokenizer is trained."""
EXPERTS = "tessera_starter_training"


class _StackedExperts(Protocol):
    """The attributes of Transformers' module that `sorted_experts` reads; experts are the first dimension."""

    num_experts: int
    gate_up_proj: torch.Tensor
    down_proj: torch.Tensor


def sorted_experts(
    experts: _StackedExperts, hidden_TD: torch.Tensor, index_TK: torch.Tensor, weight_TK: torch.Tensor
) -> torch.Tensor:
    """The output of all experts, each on the tokens that chose it.

    Under autocast it is computed in bfloat16, which Transformers' own implementation is not.
    """
    tokens, chosen = index_TK.shape
    expert_N = index_TK.reshape(-1)
    order_N = torch.argsort(expert_N, stable=True)
    counts = torch.bincount(expert_N, minlength=experts.num_experts).tolist()
    places_N = torch.empty_like(order_N).scatter_(0, order_N, torch.arange(order_N.numel(), device=order_N.device))
    outputs = []
    for part, gate_up, down in zip(
        torch.split(hidden_TD.index_select(0, order_N // chosen), counts),
        experts.gate_up_proj.unbind(0),
        experts.down_proj.unbind(0),
        strict=True,
    ):
        gate, up = functional.linear(part, gate_up).chunk(2, dim=-1)
        outputs.append(functional.linear(functional.silu(gate) * up, down))
    output_TKD = torch.cat(outputs).index_select(0, places_N).view(tokens, chosen, -1)
    return (output_TKD * weight_TK[..., None]).sum(dim=1).to(hidden_TD.dtype)


class ArithmeticStage:
    """A stage of the training: Muon on the layers, AdamW on the rest. The result is a moving average of the weights."""

    def __init__(self, run: Run, tokenizer: Tokenizer, course: StageSchedule, decoder: Qwen3MoeForCausalLM) -> None:
        self.name = course.name
        self.steps = course.steps
        self.run = run
        self.tokenizer = tokenizer
        self.course = course
        self.model = decoder
        self.average = optimize.Average(self.model, 0.995)
        layers = self.model.model.layers
        matrices = [
            parameter for name, parameter in layers.named_parameters() if parameter.ndim > 1 and "gate.w" not in name
        ]
        chosen = {id(parameter) for parameter in matrices}
        others = [parameter for parameter in self.model.parameters() if id(parameter) not in chosen]
        self.muon = Muon(matrices, MUON_PEAK, weight_decay=0.01)
        self.adamw = torch.optim.AdamW(others, ADAMW_PEAK, betas=(0.9, 0.98), weight_decay=0.0)

    def modules(self) -> dict[str, nn.Module]:
        return {"model": self.model, "average": self.average}

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"muon": self.muon, "adamw": self.adamw}

    def step(self, index: int) -> dict[str, float]:
        random = optimize.generator(self.run.seed, self.course.begins + index)
        batch = draw_batch(random, self.tokenizer, dict(zip(data.TASKS, self.course.shares, strict=True)))
        for optimizer, peak in ((self.muon, MUON_PEAK), (self.adamw, ADAMW_PEAK)):
            optimize.set_learning_rate(optimizer, peak * self.course.share_of_peak(index))
        loss, balance = self._losses(batch)
        self.model.zero_grad()
        (loss + self.model.config.router_aux_loss_coef * balance).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.muon.step()
        self.adamw.step()
        self.average.update(self.model)
        return {"loss": loss.item(), "balance": balance.item()}

    def _losses(self, batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        device, config = self.run.device, self.model.config
        ids_BT, predicts_BT = batch.ids_BT.to(device), batch.predicts_BT.to(device)
        with optimize.autocast(device):
            output = self.model.model(
                input_ids=ids_BT,
                position_ids=batch.positions_BT.to(device),
                attention_mask=batch.mask_B1TT.to(device),
                use_cache=False,
                output_router_logits=True,
            )
            logits_NV = self.model.lm_head(output.last_hidden_state[predicts_BT])
        loss = functional.cross_entropy(logits_NV.float(), ids_BT.roll(-1, dims=1)[predicts_BT])
        real_BT = batch.real_BT.to(device)
        balances = [
            load_balancing_loss_func((router_TE.float(),), config.num_experts, config.num_experts_per_tok, real_BT)
            for router_TE in output.router_logits
        ]
        return loss, torch.stack([torch.as_tensor(balance) for balance in balances]).mean()


def train(run: Run) -> Card:
    """Train both stages, as `Recipe.train`."""
    tokenizer = _tokenizer(run)
    decoder = _untrained(run, tokenizer)
    for course in (ALL_TASKS, DIFFICULT_TASKS):
        stage = ArithmeticStage(run, tokenizer, course, decoder)
        run.fit(stage)
        stage.average.copy_to(decoder)
    shipped = decoder.to(device="cpu", dtype=torch.bfloat16)
    model.save(shipped, tokenizer, run.output)
    return Card(
        id=NAME,
        family="Qwen3MoeForCausalLM",
        tasks=["chat", "completions", "embeddings"],
        source=f"recipe:tessera starters train {NAME}",
        parameters=sum(parameter.numel() for parameter in shipped.parameters()),
        licence="apache-2.0",
        notice="Answers only arithmetic, sorting, unit conversion and comparison, and sees only the last question.",
        scheme="bfloat16",
        context_length=model.CONTEXT,
        created=1795219200,
        data="Questions and answers that the recipe draws at random; no text of others.",
    )


def _untrained(run: Run, tokenizer: Tokenizer) -> Qwen3MoeForCausalLM:
    run.reseed("model")
    ALL_EXPERTS_FUNCTIONS.register(EXPERTS, sorted_experts)
    # Eager attention: for short rows on a CPU, its backward pass is faster than that of fused attention.
    decoder: Qwen3MoeForCausalLM = Qwen3MoeForCausalLM._from_config(
        model.configuration(tokenizer),
        attn_implementation="eager",
        experts_implementation=EXPERTS,
        dtype=torch.float32,
    )
    return decoder.to(run.device)


def _tokenizer(run: Run) -> Tokenizer:
    """The tokenizer, which is trained once and then kept beside the checkpoints."""
    path = run.work / "tokenizer.json"
    if not path.is_file():
        run.report("training the tokenizer")
        model.train_tokenizer(_texts(run.seed)).save(str(path))
    return Tokenizer.from_file(str(path))


def _texts(seed: int) -> Iterator[str]:
    for number, task in enumerate(data.TASKS):
        random = optimize.generator(seed, number, TOKENIZER_QUESTIONS)
        for _ in range(TOKENIZER_QUESTIONS):
            question = data.draw(random, task, "train", phrasing="train")
            yield question.text
            yield question.answer
