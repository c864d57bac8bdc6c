"""Packs training questions into rows of a batch, where each question attends to itself alone.

Knows nothing about the model: a batch is tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from tessera_text.starter import data
from tessera_text.starter.model import ASSISTANT, END, prompt

ROWS, WIDTH = 32, 96
"""Size of a batch: rows, and tokens of a row."""


@dataclass(frozen=True)
class PackedBatch:
    """A batch of questions with their answers.

    Attributes:
        ids_BT: token ids, padded at the end of each row.
        positions_BT: position of each token in its own question.
        mask_B1TT: attention mask; 0 where a token attends to another, else a large negative value.
        real_BT: 1 at tokens, 0 at padding.
        predicts_BT: whether the next token belongs to the same answer, so that its prediction is trained.
    """

    ids_BT: torch.Tensor
    positions_BT: torch.Tensor
    mask_B1TT: torch.Tensor
    real_BT: torch.Tensor
    predicts_BT: torch.Tensor


def draw_batch(random: np.random.Generator, tokenizer: Tokenizer, shares: dict[str, int]) -> PackedBatch:
    """Draw a batch of training questions whose tasks have the given shares."""
    names, weights = list(shares), np.array(list(shares.values()))
    room, texts = ROWS * WIDTH, []
    # Questions have about 30 tokens, hardly ever fewer than 20.
    for name in random.choice(names, size=room // 20, p=weights / weights.sum()):
        question = data.draw(random, str(name), "train", phrasing="train")
        texts.append(prompt(question.text) + question.answer + END)
    encoded = [np.array(one.ids) for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    chosen: list[np.ndarray] = []
    for ids in encoded:
        room -= len(ids)
        if room < 0:
            break
        chosen.append(ids)
    assistant = tokenizer.token_to_id(ASSISTANT)
    assert assistant is not None
    return pack(chosen, assistant)


def pack(sequences: list[np.ndarray], assistant: int) -> PackedBatch:
    """Pack sequences into rows: each, longest first, into the fullest row that has room. Drops those without room."""
    ids = np.zeros((ROWS, WIDTH), dtype=np.int64)
    owner = np.full((ROWS, WIDTH), -1)
    positions = np.zeros((ROWS, WIDTH), dtype=np.int64)
    predicts = np.zeros((ROWS, WIDTH), dtype=bool)
    used = np.zeros(ROWS, dtype=np.int64)
    for index, sequence in enumerate(sorted(sequences, key=len, reverse=True)):
        length = len(sequence)
        fits = used + length <= WIDTH
        if not fits.any():
            continue
        row = int(np.where(fits, used, -1).argmax())
        place = slice(used[row], used[row] + length)
        ids[row, place], owner[row, place], positions[row, place] = sequence, index, np.arange(length)
        answer = int(np.flatnonzero(sequence == assistant)[0])
        predicts[row, used[row] + answer : used[row] + length - 1] = True
        used[row] += length
    owners = torch.from_numpy(owner)
    sees = (owners[:, :, None] == owners[:, None, :]).tril()
    return PackedBatch(
        torch.from_numpy(ids),
        torch.from_numpy(positions),
        torch.zeros(sees.shape).masked_fill(~sees, -1e4)[:, None],
        (owners >= 0).long(),
        torch.from_numpy(predicts),
    )
