"""The workload that every server and peer gets, the speeds that come out, and virtual environments for peers.

A peer's environment lies under `.tessera/peers` and is made when it is first needed; nothing of it is installed into
ours.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import venv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

FOLDER = Path(".tessera/peers")
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_WORDS = (
    "the sea a mountain fresh bread an old clock heavy rain the market of our town bees a stone bridge and then people "
    "walked slowly home while children told each other stories about ships winter apples music lamps and long roads"
)
WORDS = _WORDS.split()
LONG_WORDS = 940
"""Words of a long question; with the chat template they are about 980 tokens."""
SINGLE, LONG = 10_000, 20_000
"""Numbers of the questions that are asked alone, which are higher than those of questions that are asked at once."""
ROUNDS = 4
"""Rounds in which all streams run at once."""


@dataclass(frozen=True)
class Speeds:
    """What was measured of one server or peer.

    Attributes:
        one: tokens per second of a single stream.
        many: tokens per second of all streams at once.
        ttft_cold: seconds to the first token of a long prompt.
        ttft_warm: seconds to the first token of the same prompt asked again.
    """

    one: float
    many: float
    ttft_cold: float
    ttft_warm: float


@dataclass(frozen=True)
class Workload:
    """The questions that every server and peer answers.

    Attributes:
        directory: the model, as safetensors and, for peers that read it, as `GGUF_FILE`.
        rounds: questions of the streams, one list for each round; no two questions share a prefix.
        tokens: tokens that each stream generates, no fewer, by greedy decoding.
        first: the questions of a warm-up round, as many as in the others, so that compiling, planning and first touches
            of memory at that batch size are not measured.
        single: the question of the stream that runs alone.
        long_question: the question by which the time to the first token is measured.
    """

    directory: Path
    rounds: list[list[str]]
    tokens: int
    first: list[str]
    single: str
    long_question: str

    @property
    def gguf(self) -> Path:
        """Path of the model's GGUF file."""
        found = self.directory / GGUF_FILE
        if not found.is_file():
            raise SystemExit(f"this peer reads {GGUF_FILE}, which {self.directory} has not: measure the default model")
        return found


def make_workload(directory: Path, *, streams: int, words: int, tokens: int) -> Workload:
    """A workload of `streams` questions a round with `words` words each."""
    first, *rounds = [_questions(words, streams, number) for number in range(1 + ROUNDS)]
    return Workload(directory, rounds, tokens, first, _question(words, SINGLE), _question(LONG_WORDS, LONG))


def fresh_workload(workload: Workload, time: int) -> Workload:
    """A workload of the same size with new questions; another `time` gives others."""
    words, streams, rounds = len(workload.single.split()) - 2, len(workload.first), len(workload.rounds)
    return replace(
        workload,
        rounds=[_questions(words, streams, 1 + rounds * time + number) for number in range(rounds)],
        single=_question(words, SINGLE + time),
        long_question=_question(LONG_WORDS, LONG + time),
    )


def mean_speeds(speeds: Sequence[Speeds]) -> Speeds:
    """The mean of several measurements of equal workloads, taken over their seconds."""
    return Speeds(
        statistics.harmonic_mean([one.one for one in speeds]),
        statistics.harmonic_mean([one.many for one in speeds]),
        statistics.mean(one.ttft_cold for one in speeds),
        statistics.mean(one.ttft_warm for one in speeds),
    )


def ratio(value: float, peer: float) -> str:
    """A quotient as text: two decimals, or two significant digits when it is below 0.1."""
    quotient = value / peer
    return f"{quotient:.2f}" if quotient >= 0.1 else f"{quotient:.2g}"


def _questions(words: int, count: int, number: int) -> list[str]:
    return [_question(words, number * count + index + 1) for index in range(count)]


def _question(words: int, number: int) -> str:
    """A question of `words` words in an order that follows from its number."""
    chosen = random.Random(number).choices(WORDS, k=words)  # noqa: S311 (no secret)
    return " ".join(["Go on:", *chosen])


def environment(name: str, packages: Sequence[str], *, without: Sequence[str] = ()) -> Path:
    """Path of the interpreter of a peer's own virtual environment, which is made when it is missing.

    Args:
        name: name of the environment's folder.
        packages: packages to install.
        without: packages that these bring along and that are uninstalled again.
    """
    folder = FOLDER / name
    python = folder / "bin" / "python"
    if not (folder / "ready").is_file():
        print(f"installing {', '.join(packages)} into {folder}, once")
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        if without:
            subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *without], check=True)
        (folder / "ready").touch()
    return python.absolute()
