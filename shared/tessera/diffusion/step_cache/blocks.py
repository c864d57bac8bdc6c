"""A transformer's blocks, run for the rows of a pass that need them: the others take what an earlier step computed.

Stands in the place of the list of blocks, so a model's own `forward` runs it without knowing. A block is called with
its arguments' names; those that have a value for each row are selected with the rows. Does not decide
(`tessera.diffusion.step_cache.policies`).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tessera.diffusion.step_cache.policies import RESIDUAL, RowMemory, StepPolicy

if TYPE_CHECKING:
    from tessera.diffusion.families.wan.short_prompts import ShortPromptAttention

HIDDEN, ENCODER = "hidden_states", "encoder_hidden_states"
EMBEDDED_TIMESTEP = "temb"
PROMPT_BIAS = "prompt_bias"
"""No argument of a block: what is added to the scores of prompts, told to those who add it."""
OF_EACH_ROW = frozenset({HIDDEN, ENCODER, EMBEDDED_TIMESTEP, PROMPT_BIAS, "encoder_attention_mask", "attention_mask"})
"""Arguments of blocks whose first dimension is the rows. Others are, where they have three dimensions and as many rows
(positions, in some families)."""
OnRowComputed = Callable[[int, torch.Tensor, torch.Tensor], None]
"""Told row, embedded timestep and residual of each row that was computed whole."""


@dataclass(frozen=True)
class CachedRow:
    """A row of a pass whose request has a step cache."""

    memory: RowMemory
    policy: StepPolicy


class SkippingBlocks(nn.Module):
    """The blocks of a transformer as one.

    Args:
        blocks: are called one after the other; each answers the hidden states, or those and the encoder's. Those that
            write to arguments say which, as `written`: they get copies of what others still read.
    """

    def __init__(self, blocks: nn.ModuleList) -> None:
        super().__init__()
        self.blocks = blocks
        self.look: OnRowComputed | None = None
        self.padded_prompt: ShortPromptAttention | None = None
        """Of blocks that take short prompts."""
        self.prompt_bias: torch.Tensor | None = None
        """Of the next pass' rows, see `ShortPromptAttention`."""
        self.computed = 0
        """Rows that all blocks have computed."""
        self._rows: Sequence[CachedRow | None] = ()
        self._pairs = False
        """Whether blocks answer two tensors: known when one has."""
        self._names = inspect.signature(type(blocks[0]).forward)
        self._written: tuple[str, ...] = getattr(blocks[0], "written", ())

    @contextlib.contextmanager
    def running(self, rows: Sequence[CachedRow | None]) -> Iterator[None]:
        """During one pass: whose rows they are. None computes all its steps."""
        self._rows = rows if any(rows) else ()
        try:
            yield
        finally:
            self._rows = ()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the blocks one after the other."""
        given = dict(self._names.bind(self, *args, **kwargs).arguments)
        given.pop("self")
        given[PROMPT_BIAS], self.prompt_bias = self.prompt_bias, None
        hidden_NLD: torch.Tensor = given[HIDDEN]
        if self._rows:
            result = self._skipping(given)
        else:
            result, _ = self._run(self.blocks, given)
            self.computed += len(hidden_NLD)
            if self.look is not None:
                for row in range(len(hidden_NLD)):
                    residual = result[row : row + 1] - hidden_NLD[row : row + 1]
                    self.look(row, given[EMBEDDED_TIMESTEP][row : row + 1], residual)
        # What models do behind their blocks reads the hidden states alone.
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
        """Those that skip. One look at the device for all of them."""
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
        with contextlib.nullcontext() if self.padded_prompt is None else self.padded_prompt.of(bias):
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
    """The arguments of some of the rows."""
    count = len(given[HIDDEN])
    if len(rows) == count:
        return given

    def select(name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(select(name, each) for each in value)
        if not isinstance(value, torch.Tensor) or value.shape[:1] != (count,):
            return value
        return value[list(rows)] if name in OF_EACH_ROW or value.dim() > 2 else value

    return {name: select(name, value) for name, value in given.items()}
