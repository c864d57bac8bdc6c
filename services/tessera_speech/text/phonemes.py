"""Text to token ids of a FastSpeech model, without torch: phonemes of English in ARPAbet, one token each.

The phonemes of a word come from SSML (`<phoneme ph="T EH1 S ER0 AH0">tessera</phoneme>`, in ARPAbet or IPA), or from
`lexicon.txt` in the model's directory, in the form of the CMU Pronouncing Dictionary (`WORD  W ER1 D`). Pronunciations
are never predicted: programs that do so are not part of the suite, and a word without phonemes is refused by name.
Knows nothing about sentences or voices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.tokenizer.model_files import read_as
from tessera_speech.text.traced_text import Span

LEXICON_FILE = "lexicon.txt"
"""File of pronunciations in a model's directory."""
MAX_LEXICON_BYTES = 32 * 1024 * 1024
MAX_NAMED_WORDS = 5
"""Words without phonemes that an error names at most."""

_ENTRY = re.compile(r"(?P<word>[^\s(]+)(?:\(\d+\))?\s+(?P<phonemes>[A-Z]{1,3}[0-2]?(?: +[A-Z]{1,3}[0-2]?)*)")
_PIECE = re.compile(r"(?P<word>\w[\w'’]*)|(?P<mark>[.,!?;:…])")
_MARKS = {";": ",", ":": ",", "…": "."}
_STRESSES = {"ˈ": "1", "ˌ": "2"}
_VOWELS = {
    "eɪ": "EY", "aɪ": "AY", "ɔɪ": "OY", "aʊ": "AW", "oʊ": "OW", "əʊ": "OW", "ɝ": "ER", "ɚ": "ER", "ɜ": "ER", "ɜː": "ER",
    "iː": "IY", "i": "IY", "ɪ": "IH", "ɛ": "EH", "e": "EH", "æ": "AE", "ɑː": "AA", "ɑ": "AA", "ɒ": "AA", "ɔː": "AO",
    "ɔ": "AO", "ʊ": "UH", "uː": "UW", "u": "UW", "ʌ": "AH", "ə": "AH",
}  # fmt: skip
_CONSONANTS = {
    "tʃ": "CH", "dʒ": "JH", "p": "P", "b": "B", "t": "T", "d": "D", "k": "K", "ɡ": "G", "g": "G", "f": "F", "v": "V",
    "θ": "TH", "ð": "DH", "s": "S", "z": "Z", "ʃ": "SH", "ʒ": "ZH", "h": "HH", "m": "M", "n": "N", "ŋ": "NG", "l": "L",
    "ɹ": "R", "r": "R", "j": "Y", "w": "W",
}  # fmt: skip
_LETTERS = _VOWELS | _CONSONANTS
_IPA = re.compile("|".join([*sorted(_LETTERS, key=len, reverse=True), *_STRESSES, r"[.\s]"]))


class _PhonemeTokenizerSettings(msgspec.Struct, frozen=True):
    """The fields of `tokenizer_config.json` that are used, with Transformers' defaults."""

    eos_token: str = "<sos/eos>"  # noqa: S105 - a token of a vocabulary
    should_strip_spaces: bool = False


class PhonemeTokenizer:
    """The phonemes of a model, and its lexicon.

    Args:
        directory: has `vocab.json` and, optionally, `tokenizer_config.json` and `lexicon.txt`.

    Raises:
        ModelLoadError: a file is missing, damaged or too large, or the vocabulary has no token that ends a sentence.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer_config.json"
        try:
            self._ids = read_as(directory / "vocab.json", dict[str, int])
            settings = read_as(path, _PhonemeTokenizerSettings) if path.is_file() else _PhonemeTokenizerSettings()
            self._lexicon = _read(directory / LEXICON_FILE)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise ModelLoadError(f"cannot read the tokenizer in {directory}: {error}") from error
        end = self._ids.get(settings.eos_token)
        if end is None:
            raise ModelLoadError(
                f"{directory / 'vocab.json'} has no token {settings.eos_token!r}, which ends a sentence"
            )
        self._end = end
        self._space = None if settings.should_strip_spaces else self._ids.get(" ")

    @property
    def has_lexicon(self) -> bool:
        """Whether the model's directory has a lexicon."""
        return bool(self._lexicon)

    def parse(self, phonemes: str, alphabet: str) -> list[str]:
        """The model's phonemes for the `ph` of an SSML element.

        Raises:
            ValueError: names what is not a phoneme.
        """
        found = phonemes.split() if alphabet == "x-arpabet" else from_ipa(phonemes)
        unknown = [name for name in found if name not in self._ids]
        if unknown or not found:
            raise ValueError(f"{unknown[0]!r} is no phoneme of this model" if unknown else "there is no phoneme")
        return found

    def encode_with_places(
        self, text: str, origins: Sequence[Span], given: dict[Span, list[str]]
    ) -> list[tuple[int, int]]:
        """Token ids of a sentence, each with the index of its word; -1 for tokens between words.

        Args:
            text: the sentence, normalized.
            origins: span of the original text that each character comes from.
            given: phonemes that SSML gives for a span of the original text.

        Raises:
            InvalidRequestError: words without phonemes; names some.
        """
        tokens: list[tuple[int, int]] = []
        unknown: list[str] = []
        for match in _PIECE.finditer(text):
            at = match.start()
            if match["mark"]:
                mark = self._ids.get(_MARKS.get(match["mark"], match["mark"]))
                tokens += [(mark, -1)] if mark is not None else []
                continue
            sounds = given.get(origins[at]) or self._lexicon.get(match["word"].upper().replace("’", "'"))
            if sounds is None or any(name not in self._ids for name in sounds):
                unknown.append(match["word"])
                continue
            if tokens and self._space is not None:
                tokens.append((self._space, -1))
            tokens += [(self._ids[name], at) for name in sounds]
        if unknown:
            raise InvalidRequestError(self._missing(unknown), param="input", code="unknown_pronunciation")
        return [*tokens, (self._end, -1)] if any(at >= 0 for _, at in tokens) else []

    def _missing(self, words: list[str]) -> str:
        names = ", ".join(repr(word) for word in dict.fromkeys(words[:MAX_NAMED_WORDS]))
        cure = 'write it as <phoneme alphabet="x-arpabet" ph="…">word</phoneme> in SSML'
        place = f"`{LEXICON_FILE}` has no pronunciation of" if self.has_lexicon else "this model reads phonemes, not"
        return f"{place} {names}: {cure}, or put a dictionary into `{LEXICON_FILE}` in the model's directory"


def from_ipa(text: str) -> list[str]:
    """English phonemes in IPA as ARPAbet, with the stress after its vowel.

    Raises:
        ValueError: names a character that is not a sound of English.
    """
    found: list[str] = []
    stress, at = "0", 0
    while at < len(text):
        match = _IPA.match(text, at)
        if match is None:
            raise ValueError(f"{text[at]!r} is no sound of English in IPA")
        part, at = match[0], match.end()
        if part in _STRESSES:
            stress = _STRESSES[part]
        elif part in _VOWELS:
            found.append(_VOWELS[part] + stress)
            stress = "0"
        elif part in _CONSONANTS:
            found.append(_CONSONANTS[part])
    return found


def _read(path: Path) -> dict[str, list[str]]:
    """A dictionary in CMU's form, the first of several pronunciations of a word. Empty if there is no file."""
    if not path.is_file():
        return {}
    if path.stat().st_size > MAX_LEXICON_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_LEXICON_BYTES} bytes")
    lexicon: dict[str, list[str]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        entry = line.partition("#")[0].strip()
        if not entry or entry.startswith(";;;"):
            continue
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(f"{path.name}, line {number}, is not `WORD  PH ON EMES`: {entry[:40]!r}")
        lexicon.setdefault(match["word"].upper(), match["phonemes"].split())
    return lexicon
