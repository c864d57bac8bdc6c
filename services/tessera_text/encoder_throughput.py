"""Embeddings of many texts by our encoder, beside Transformers one by one and in padded batches, in one process.

All three run the same random BERT of MiniLM's shape (6 layers, 384 wide) on the same tokens and threads, in turns, so
that the ratios hold on a busy machine. `python -m tessera_text.encoder_throughput`; `make bench ARGS=encoders` runs it.
Knows no HTTP: the front door is measured elsewhere.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from tessera.encoders.loading import load_encoder
from tessera.hub.cards import read_card
from tessera.settings.encoders import EncoderSettings
from tessera.wire.engine import EncoderText

PADDED = 32
"""Texts of one padded batch, which is sentence-transformers' default."""
SHAPE = {
    "vocab_size": 30522,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
SHORTEST, LONGEST = 6, 256
"""Tokens of a text: between these, most of them short, as in queries and passages."""


def run(folder: Path, *, texts: int, batch_tokens: int, rounds: int) -> None:
    """Measure and print tokens a second and ratios.

    Args:
        folder: where the model is written.
        texts: number of texts.
        batch_tokens: tokens of one of our steps.
        rounds: of everything; the fastest counts.
    """
    directory = folder / "bert-minilm-random"
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**SHAPE)).save_pretrained(directory)
    model = transformers.BertModel.from_pretrained(directory).eval()
    encoder = load_encoder(
        directory,
        read_card(directory),
        EncoderSettings(source=str(directory)),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    made = _texts(texts)
    tokens = sum(map(len, made))
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "ours, packed": lambda: _packed(encoder.run, made, batch_tokens),
        "one by one": lambda: torch.cat([_padded(model, [ids]) for ids in made]),
        f"padded, {PADDED} at once": lambda: _in_batches(model, made, range(len(made))),
        "padded, sorted by length": lambda: _in_batches(
            model, made, sorted(range(len(made)), key=lambda at: len(made[at]))
        ),
    }
    best: dict[str, float] = {}
    vectors: dict[str, torch.Tensor] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            vectors[name] = way()
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - started)
    ours, *others = ways
    print(f"\nencoders: {texts} texts, {tokens} tokens, {torch.get_num_threads()} threads, best of {rounds}")
    print(f"  {'':<26} {'tokens/s':>9}  {'ours is':>8}  largest difference")
    print(f"  {ours:<26} {tokens / best[ours]:>9.0f}")
    for name in others:
        off = float((vectors[name] - vectors[ours]).abs().max())
        print(f"  {name:<26} {tokens / best[name]:>9.0f}  {best[name] / best[ours]:>7.2f}×  {off:.1e}")


def _texts(count: int) -> list[list[int]]:
    chance = random.Random(0)  # noqa: S311 - texts, no secrets
    lengths = [min(LONGEST, SHORTEST + int(chance.lognormvariate(3.3, 0.8))) for _ in range(count)]
    return [[chance.randrange(1000, 30000) for _ in range(length)] for length in lengths]


def _packed(
    encode: Callable[[list[EncoderText]], torch.Tensor], texts: list[list[int]], batch_tokens: int
) -> torch.Tensor:
    rows, step, used = [], list[EncoderText](), 0
    for ids in texts:
        if step and used + len(ids) > batch_tokens:
            rows.append(encode(step))
            step, used = [], 0
        step.append(EncoderText(ids))
        used += len(ids)
    return torch.cat([*rows, encode(step)])


def _in_batches(model: transformers.BertModel, texts: list[list[int]], order: range | list[int]) -> torch.Tensor:
    found: list[torch.Tensor] = [torch.empty(0)] * len(texts)
    places = list(order)
    for begin in range(0, len(places), PADDED):
        batch = places[begin : begin + PADDED]
        for place, row in zip(batch, _padded(model, [texts[place] for place in batch]), strict=True):
            found[place] = row
    return torch.stack(found)


@torch.inference_mode()
def _padded(model: transformers.BertModel, texts: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    counted = mask.unsqueeze(-1).float()
    return torch.nn.functional.normalize((hidden * counted).sum(1) / counted.sum(1), dim=1)


def main() -> int:
    """Measure as the command line says, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=256, help="to embed (%(default)s)")
    parser.add_argument("--batch-tokens", type=int, default=2048, help="of one step (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of everything, the fastest counts (%(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        run(Path(folder), texts=given.texts, batch_tokens=given.batch_tokens, rounds=given.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
