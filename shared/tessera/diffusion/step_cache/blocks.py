"""Runs a transformer's blocks for the rows of a pass that need them; the other rows reuse an earlier step's residual.

`SkippingBlocks` takes the place of the transformer's list of blocks, so the model's own `forward` runs it unchanged.
Blocks are called with keyword arguments; the arguments that have one value per row are indexed together with the rows.
Does not decide which rows skip (`tessera.diffusion.step_cache.policies` does), and knows no family of models.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from tessera.diffusion.step_cache.policies import RESIDUAL, RowMemory, StepPolicy

HIDDEN, ENCODER = "hidden_states", "encoder_hidden_states"
"""Block arguments with the tokens of the clip and of the prompt."""
EMBEDDED_TIMESTEP = "temb"
"""Block argument with the embedded timestep."""
PROMPT_BIAS = "prompt_bias"
"""Key of the bias that cross-attention adds to its scores. No block has such an argument; `PromptBiasing` takes it."""
ROW_ARGUMENTS = frozenset({HIDDEN, ENCODER, EMBEDDED_TIMESTEP, PROMPT_BIAS, "encoder_attention_mask", "attention_mask"})
"""Block arguments whose first dimension is the rows of the pass. Any other argument counts as one when it has at least
three dimensions and the first is as long as the pass has rows (positions, in some families)."""
OnRowComputed = Callable[[int, torch.Tensor, torch.Tensor], None]
"""Called with the row's index, embedded timestep and residual for each row that all blocks have computed."""


class PromptBiasing(Protocol):
    """The cross-attention of a transformer whose prompts are shorter than it was trained with."""

    def use_bias(self, bias_NS: torch.Tensor | None) -> AbstractContextManager[None]:
        """Add `bias_NS` to the scores of prompt tokens while the context is open; None adds nothing."""
        ...


@dataclass(frozen=True)
class CachedRow:
    """A row of a pass whose request has a step cache: what the row remembers, and the policy of this step."""

    memory: RowMemory
    policy: StepPolicy


class SkippingBlocks(nn.Module):
    """The blocks of a transformer as one module.

    Args:
        blocks: called one after the other. Each returns the hidden states, or the hidden states and the encoder's. A
            block that writes to its arguments names them in `written`; it gets copies, because others still read them.
    """

    def __init__(self, blocks: nn.ModuleList) -> None:
        super().__init__()
        self.blocks = blocks
        self.on_row_computed: OnRowComputed | None = None
        """Called for each computed row while no row has a step cache; None outside calibration."""
        self.prompt_biasing: PromptBiasing | None = None
        """Cross-attention that takes short prompts, set by the family; None where prompts have their full length."""
        self.prompt_bias: torch.Tensor | None = None
        """Bias [N, S] of the next pass, set by the family before that pass and consumed by it."""
        self.computed = 0
        """Number of rows that all blocks have computed since the model was loaded."""
        self._rows: Sequence[CachedRow | None] = ()
        self._pairs = False
        """Whether blocks return two tensors, which is known after the first call."""
        self._names = inspect.signature(type(blocks[0]).forward)
        self._written: tuple[str, ...] = getattr(blocks[0], "written", ())

    @contextlib.contextmanager
    def running(self, rows: Sequence[CachedRow | None]) -> Iterator[None]:
        """Say during one pass which rows have a step cache; a row that is None is always computed."""
        self._rows = rows if any(rows) else ()
        try:
            yield
        finally:
            self._rows = ()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the blocks return when they are called one after the other."""
        given = dict(self._names.bind(self, *args, **kwargs).arguments)
        given.pop("self")
        given[PROMPT_BIAS], self.prompt_bias = self.prompt_bias, None
        hidden_NLD: torch.Tensor = given[HIDDEN]
        if self._rows:
            result = self._skipping(given)
        else:
            result, _ = self._run(self.blocks, given)
            self.computed += len(hidden_NLD)
            if self.on_row_computed is not None:
                for row in range(len(hidden_NLD)):
                    residual = result[row : row + 1] - hidden_NLD[row : row + 1]
                    self.on_row_computed(row, given[EMBEDDED_TIMESTEP][row : row + 1], residual)
        # After their blocks, models read only the hidden states.
        return (result, given[ENCODER]) if self._pairs else result

    def _skipping(self, given: dict[str, Any]) -> torch.Tensor:
        rows, hidden_NLD = self._rows, given[HIDDEN]
        early = {index: row for index, row in enumerate(rows) if row is not None and not row.policy.after_first_block}
        skipped = self._decide(early, {index: given[EMBEDDED_TIMESTEP][index : index + 1] for index in early})
        results = {index: hidden_NLD[index : index + 1] + _residual(early[index]) for index in skipped}
        left = [index for index in range(len(rows)) if index not in results]
        if left:
            after, encoder = self._run(self.blocks[:1], _selected(given, left))
            first = {index: after[place : place + 1] for place, index in enumerate(left)}
            late = {index: row for index in left if (row := rows[index]) is not None and row.policy.after_first_block}
            changes = {index: first[index] - hidden_NLD[index : index + 1] for index in late}
            skipped = self._decide(late, changes)
            results |= {index: first[index] + _residual(late[index]) for index in skipped}
            places = [place for place, index in enumerate(left) if index not in results]
            if places:
                rest = {**_selected(given, left), HIDDEN: after}
                if encoder is not None:
                    rest[ENCODER] = encoder
                whole, _ = self._run(self.blocks[1:], _selected(rest, places))
                self.computed += len(places)
                for place, index in enumerate(left[place] for place in places):
                    results[index] = whole[place : place + 1]
                    self._remember(index, given, results[index], first.get(index), changes.get(index))
        return torch.cat([results[index] for index in range(len(rows))])

    def _remember(
        self,
        index: int,
        given: dict[str, Any],
        result: torch.Tensor,
        first: torch.Tensor | None,
        change: torch.Tensor | None,
    ) -> None:
        row = self._rows[index]
        if row is None:
            return
        if change is None or first is None:
            signal, base = given[EMBEDDED_TIMESTEP][index : index + 1], given[HIDDEN][index : index + 1]
        else:
            signal, base = change, first
        row.policy.computed(row.memory, signal, result - base)

    def _decide(self, rows: dict[int, CachedRow], signals: dict[int, torch.Tensor]) -> list[int]:
        """Return the indices of the rows that skip. One read from the device serves all rows."""
        changes = {index: row.policy.change(row.memory, signals[index]) for index, row in rows.items()}
        known = [index for index, change in changes.items() if change is not None]
        values = torch.stack([changes[index] for index in known]).tolist() if known else []  # type: ignore[misc]
        numbers = dict(zip(known, values, strict=True))
        return [index for index, row in rows.items() if row.policy.skips(row.memory, numbers.get(index))]

    def _run(self, blocks: nn.ModuleList, given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
        copies = {name: given[name].clone(memory_format=torch.contiguous_format) for name in self._written}
        given = {**given, **copies}
        bias = given.pop(PROMPT_BIAS)
        hidden, encoder = given[HIDDEN], None
        with contextlib.nullcontext() if self.prompt_biasing is None else self.prompt_biasing.use_bias(bias):
            for block in blocks:
                answer = block(**{**given, HIDDEN: hidden})
                if isinstance(answer, tuple):
                    self._pairs = True
                    hidden, encoder = answer
                    given = {**given, ENCODER: encoder}
                else:
                    hidden = answer
        return hidden, encoder


def _residual(row: CachedRow) -> torch.Tensor:
    found = row.memory.tensor(RESIDUAL)
    assert found is not None
    return found


def _selected(given: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Return the arguments with only the given rows."""
    count = len(given[HIDDEN])
    if len(rows) == count:
        return given

    def select(name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(select(name, each) for each in value)
        if not isinstance(value, torch.Tensor) or value.shape[:1] != (count,):
            return value
        return value[list(rows)] if name in ROW_ARGUMENTS or value.dim() > 2 else value

    return {name: select(name, value) for name, value in given.items()}
