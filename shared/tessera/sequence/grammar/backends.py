"""Choice of the library that compiles a model's grammars. Both are imported only when a request has a grammar.

llguidance comes with the suite. xgrammar, whose masks take microseconds, comes with the extra `gpu`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from tessera.errors import StartError
from tessera.sequence.grammar.digit_bound import DigitBoundCompiler
from tessera.sequence.grammar.matcher import Matcher
from tessera.sequence.grammar.queue import Compiler
from tessera.sequence.grammar.schemas import UnsupportedSchemaError
from tessera.sequence.grammar.vocabulary import Vocabulary
from tessera.wire.engine import Grammar

Backend = Literal["auto", "xgrammar", "llguidance"]


def check_backend(backend: Backend) -> None:
    """Refuse a backend that is not installed.

    Raises:
        StartError: It is not; says how to install it.
    """
    if backend == "xgrammar" and not _has_xgrammar():
        raise StartError(
            'grammar_backend is "xgrammar", which is not installed: pip install "tessera[gpu]", or set it to "auto"'
        )


def _has_xgrammar() -> bool:
    return find_spec("xgrammar") is not None


def compiler_for(backend: Backend, directory: Path, vocabulary: int) -> Compiler:
    """Return the compiler of a model's grammars.

    Args:
        backend: `auto` is xgrammar if it is installed, with llguidance for what xgrammar would not enforce or not
            compile in good time; without xgrammar it is llguidance.
        directory: Directory of the model, with its `tokenizer.json`.
        vocabulary: Number of token ids of the model.
    """
    words = Vocabulary.from_directory(directory, vocabulary)
    return DigitBoundCompiler(_library_for(backend, directory, words), words.tokens)


def _library_for(backend: Backend, directory: Path, words: Vocabulary) -> Compiler:
    def llguidance() -> Compiler:
        from tessera.sequence.grammar.llguidance_backend import LlguidanceCompiler  # noqa: PLC0415

        return LlguidanceCompiler(directory, words)

    if backend == "llguidance" or not _has_xgrammar():
        return llguidance()
    from tessera.sequence.grammar.xgrammar_backend import XgrammarCompiler  # noqa: PLC0415

    first = XgrammarCompiler(words)
    return first if backend == "xgrammar" else FallbackCompiler(first, llguidance)


class FallbackCompiler:
    """Uses a second compiler for what the first does not support, and for grammars in EBNF.

    Some EBNF grammars keep xgrammar busy for minutes, also while it matches; llguidance gives up early.

    Args:
        first: Compiler that is tried first.
        second: Makes the other one when it is first needed.
    """

    def __init__(self, first: Compiler, second: Callable[[], Compiler]) -> None:
        self._first = first
        self._make_second = second
        self._second: Compiler | None = None

    def compile(self, grammar: Grammar) -> Callable[[], Matcher]:
        """Compile as `Compiler.compile` says."""
        if grammar.kind != "ebnf":
            with contextlib.suppress(UnsupportedSchemaError):
                return self._first.compile(grammar)
        self._second = self._second or self._make_second()
        return self._second.compile(grammar)
