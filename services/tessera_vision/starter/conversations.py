"""Makes training conversations about pictures, as the chat template writes them, and packs them into tensors.

A conversation names its pictures by their numbers in a batch. Knows nothing about how pictures are drawn or encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from tessera_vision.starter.comparisons import compare
from tessera_vision.starter.data import CELLS, GridScene
from tessera_vision.starter.questions import SceneQuestion, ask

IMAGE = "<fake_token_around_image><global-img>" + "<image>" * len(CELLS) + "<fake_token_around_image>"
"""The text by which the processor replaces `<image>` in a prompt."""
START, END = "<|im_start|>", "<end_of_utterance>"
SYSTEM = (
    "You are a helpful assistant.",
    "You are a careful observer of images.",
    "Answer questions about images.",
    "Be brief.",
)
BLIND = "Please show me an image."
"""The answer to a question that comes without a picture."""
SHARES = {"describe": 0.19, "count": 0.23, "locate": 0.14, "identify": 0.16, "read": 0.1, "yes/no": 0.18}
"""Shares of the tasks among questions about one picture."""
DIFFICULT_SHARES = {"describe": 0.15, "count": 0.25, "locate": 0.1, "identify": 0.14, "read": 0.12, "yes/no": 0.24}
"""Shares of the tasks in the later part of the training, with more difficult questions."""
_IGNORED = -100


@dataclass(frozen=True)
class PictureConversation:
    """A conversation: prompts up to the assistant's turn, the answers, and the numbers of its pictures."""

    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    cells: tuple[tuple[tuple[int, ...], ...], ...]
    """The cells of each word of each answer, as in `SceneQuestion`."""
    pictures: tuple[int, ...]


@dataclass(frozen=True)
class Pack:
    """Conversations of about the same length, as tensors.

    Attributes:
        ids: token ids [conversations, tokens], padded at the end.
        labels: the next token where it belongs to an answer, else -100; [conversations, tokens].
        answers: the number of the answer that a label belongs to, else -1; [conversations, tokens].
        looks: targets of attention, for each word of an answer that a picture shows: the row and the position from
            which the word is predicted, and which image tokens show it; [looks], [looks], [looks, tokens].
        pictures: numbers of the pictures, in the order of their image tokens.
    """

    ids: torch.Tensor
    labels: torch.Tensor
    answers: torch.Tensor
    looks: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    pictures: torch.Tensor


def converse(
    rng: np.random.Generator,
    scenes: Sequence[GridScene],
    *,
    single: int,
    several: int,
    shared: dict[str, float] = SHARES,
) -> Iterator[PictureConversation]:
    """Yield `single` questions about each scene, and `several` about two or three scenes.

    Questions about one scene follow each other in one conversation. A request for a description has a conversation of
    its own, because its answer contains the other answers.
    """
    tasks, shares = list(shared), list(shared.values())
    for number, scene in enumerate(scenes):
        turns: list[SceneQuestion] = []
        for _ in range(single):
            question = None
            while question is None:
                question = ask(rng, scene, tasks[int(rng.choice(len(tasks), p=shares))])
            if question.task == "describe":
                yield conversation(rng, [question], (number,))
            elif question not in turns:
                turns.append(question)
        if turns and rng.random() < 0.03:
            yield conversation(rng, [SceneQuestion("", turns[0].text, BLIND)], ())
        if turns:
            yield conversation(rng, turns, (number,))
    count = 0
    while count < several:
        comparison = compare(rng, scenes)
        if comparison is not None:
            count += 1
            yield conversation(rng, [comparison.question], comparison.scenes)


def conversation(
    rng: np.random.Generator, turns: Sequence[SceneQuestion], pictures: tuple[int, ...]
) -> PictureConversation:
    """The conversation of some turns as the chat template writes it, with the pictures before the first question."""
    system = f"System: {SYSTEM[int(rng.integers(len(SYSTEM)))]}{END}\n" if rng.random() < 0.04 else ""
    prompts = [
        (START + system if index == 0 else "\n")
        + f"User:{IMAGE * len(pictures) if index == 0 else ''} {_varied(rng, turn.text)}{END}\nAssistant:"
        for index, turn in enumerate(turns)
    ]
    answers = tuple(f" {turn.answer}{END}" for turn in turns)
    return PictureConversation(tuple(prompts), answers, tuple(turn.cells for turn in turns), pictures)


def pack(tokenizer: Tokenizer, conversations: Sequence[PictureConversation], *, packs: int) -> list[Pack]:
    """Pack conversations into `packs` groups, sorted by length so that there is little padding."""
    pieces = [piece for one in conversations for pair in zip(one.prompts, one.answers, strict=True) for piece in pair]
    encoded = iter(tokenizer.encode_batch(pieces, add_special_tokens=False))
    rows = [[next(encoded).ids for _ in range(2 * len(one.prompts))] for one in conversations]
    lengths = [sum(map(len, row)) for row in rows]
    order = sorted(range(len(rows)), key=lengths.__getitem__)
    special = (tokenizer.token_to_id("<pad>") or 0, tokenizer.token_to_id("<image>") or 0)
    return [
        _pack([rows[index] for index in part], [conversations[index] for index in part], special)
        for part in np.array_split(np.array(order), packs)
    ]


def _pack(
    rows: Sequence[list[list[int]]], conversations: Sequence[PictureConversation], special: tuple[int, int]
) -> Pack:
    padding, image = special
    longest = max(sum(map(len, row)) for row in rows)
    ids = torch.full((len(rows), longest), padding)
    labels, answers = torch.full_like(ids, _IGNORED), torch.full_like(ids, -1)
    looks: list[tuple[int, int, list[int]]] = []
    number = 0
    for place, row in enumerate(rows):
        features = [position for position, token in enumerate(row[0]) if token == image]
        end = 0
        for index, piece in enumerate(row):
            start, end = end, end + len(piece)
            ids[place, start:end] = torch.tensor(piece)
            if index % 2:
                labels[place, start - 1 : end - 1] = torch.tensor(piece)
                answers[place, start - 1 : end - 1] = number
                number += 1
                cells = conversations[place].cells[index // 2]
                cells = cells * (len(piece) - 1) if len(cells) == 1 else cells
                looks += [(place, start - 1 + at, [features[c] for c in some]) for at, some in enumerate(cells) if some]
    seen = torch.zeros(len(looks), longest, dtype=torch.bool)
    for look, (_, _, tokens) in enumerate(looks):
        seen[look, tokens] = True
    where = (torch.tensor([look[0] for look in looks]).long(), torch.tensor([look[1] for look in looks]).long(), seen)
    pictures = torch.tensor([picture for one in conversations for picture in one.pictures])
    return Pack(ids, labels, answers, where, pictures.long())


def _varied(rng: np.random.Generator, text: str) -> str:
    draw = rng.random()
    if draw < 0.08:
        return text.rstrip(".?")
    if draw < 0.12:
        return text[0].lower() + text[1:]
    return f"Please {text[0].lower()}{text[1:]}" if draw < 0.14 and text.endswith(".") else text
