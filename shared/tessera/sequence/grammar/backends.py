"""Which library compiles a model's grammars. Both are imported only when a grammar is asked for.

llguidance comes with the suite. xgrammar, whose masks take microseconds, comes with the extra `gpu`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from tessera.errors import StartError
from tessera.sequence.grammar.matcher import Matcher
from tessera.sequence.grammar.queue import Compiler
from tessera.sequence.grammar.schemas import UnsupportedSchemaError
from tessera.sequence.grammar.vocabulary import Vocabulary
from tessera.wire.engine import Grammar

Backend = Literal["auto", "xgrammar", "llguidance"]


def check_backend(backend: Backend) -> None:
    """Refuse a backend that is not there.

    Raises:
        StartError: says what installs it.
    """
    if backend == "xgrammar" and not _has_xgrammar():
        raise StartError(
            'grammar_backend is "xgrammar", which is not installed: pip install "tessera[gpu]", or set it to "auto"'
        )


def _has_xgrammar() -> bool:
    return find_spec("xgrammar") is not None


def compiler_for(backend: Backend, directory: Path, vocabulary: int) -> Compiler:
    """The compiler of a model's grammars.

    Args:
        backend: `auto` is xgrammar where it is installed, and llguidance for what xgrammar would not hold, or not in
            good time; llguidance for everything where it is not.
        directory: the model's, with its `tokenizer.json`.
        vocabulary: number of token ids the model knows.
    """
    words = Vocabulary.of(directory, vocabulary)

    def llguidance() -> Compiler:
        from tessera.sequence.grammar.llguidance_backend import LlguidanceCompiler  # noqa: PLC0415

        return LlguidanceCompiler(directory, words)

    if backend == "llguidance" or not _has_xgrammar():
        return llguidance()
    from tessera.sequence.grammar.xgrammar_backend import XgrammarCompiler  # noqa: PLC0415

    first = XgrammarCompiler(words)
    return first if backend == "xgrammar" else FallbackCompiler(first, llguidance)


class FallbackCompiler:
    """A compiler, and another one for what the first does not support, and for grammars that users wrote.

    Some of those keep xgrammar busy for minutes, also while it matches; llguidance gives up early.
    """

    def __init__(self, first: Compiler, second: Callable[[], Compiler]) -> None:
        self._first = first
        self._make_second = second
        self._second: Compiler | None = None

    def compile(self, grammar: Grammar) -> Callable[[], Matcher]:
        """As `Compiler.compile`."""
        if grammar.kind != "ebnf":
            with contextlib.suppress(UnsupportedSchemaError):
                return self._first.compile(grammar)
        self._second = self._second or self._make_second()
        return self._second.compile(grammar)
