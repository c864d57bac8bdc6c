"""Text into a FastSpeech model's token ids, without torch: phonemes of English in ARPAbet, one token each.

A word's phonemes are those that SSML says (`<phoneme ph="T EH1 S ER0 AH0">tessera</phoneme>`, in ARPAbet or IPA), or
those of `lexicon.txt` in the model's directory, in the form of the CMU Pronouncing Dictionary, which anybody may take
(`WORD  W ER1 D`). Nothing is guessed: the programs that guess are no part of the suite, so a word that nobody has told
is refused by name. Does not know sentences or voices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera_speech.text.traced_text import Span

LEXICON_FILE = "lexicon.txt"
MOST_LEXICON_BYTES = 32 * 1024 * 1024
NAMED = 5
"""Words without phonemes that an error names."""

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
    """What `tokenizer_config.json` says, with Transformers' defaults."""

    eos_token: str = "<sos/eos>"  # noqa: S105 - a token of a vocabulary
    should_strip_spaces: bool = False


class PhonemeTokenizer:
    """A model's phonemes and what words sound like.

    Args:
        directory: holds `vocab.json`; `tokenizer_config.json` and `lexicon.txt` where there are any.

    Raises:
        ModelLoadError: a file is missing, damaged or too large, or the token at a sentence's end is not in it.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer_config.json"
        try:
            self._ids = msgspec.json.decode((directory / "vocab.json").read_bytes(), type=dict[str, int])
            content = path.read_bytes() if path.is_file() else b"{}"
            settings = msgspec.json.decode(content, type=_PhonemeTokenizerSettings)
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
    def knows_words(self) -> bool:
        """Whether there is a lexicon."""
        return bool(self._lexicon)

    def written(self, phonemes: str, alphabet: str) -> list[str]:
        """The model's phonemes for what SSML says.

        Raises:
            ValueError: says what is no phoneme.
        """
        found = phonemes.split() if alphabet == "x-arpabet" else from_ipa(phonemes)
        unknown = [name for name in found if name not in self._ids]
        if unknown or not found:
            raise ValueError(f"{unknown[0]!r} is no phoneme of this model" if unknown else "there is no phoneme")
        return found

    def encode_with_places(
        self, text: str, origins: Sequence[Span], said: dict[Span, list[str]]
    ) -> list[tuple[int, int]]:
        """Token ids of a sentence, each with the place of its word in it; -1 for what stands between words.

        Args:
            text: the sentence, written out.
            origins: where each of its characters comes from.
            said: phonemes of what comes from there.

        Raises:
            InvalidRequestError: words that nobody has told; names some.
        """
        tokens: list[tuple[int, int]] = []
        unknown: list[str] = []
        for match in _PIECE.finditer(text):
            at = match.start()
            if match["mark"]:
                mark = self._ids.get(_MARKS.get(match["mark"], match["mark"]))
                tokens += [(mark, -1)] if mark is not None else []
                continue
            sounds = said.get(origins[at]) or self._lexicon.get(match["word"].upper().replace("’", "'"))
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
        names = ", ".join(repr(word) for word in dict.fromkeys(words[:NAMED]))
        cure = 'write it as <phoneme alphabet="x-arpabet" ph="…">word</phoneme> in SSML'
        place = f"`{LEXICON_FILE}` has no pronunciation of" if self.knows_words else "this model reads phonemes, not"
        return f"{place} {names}: {cure}, or put a dictionary into `{LEXICON_FILE}` in the model's directory"


def from_ipa(text: str) -> list[str]:
    """English in IPA as ARPAbet, the stress written behind its vowel.

    Raises:
        ValueError: says which character is none of English.
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
    """A dictionary in CMU's form; of several pronunciations the first. Empty where there is no file."""
    if not path.is_file():
        return {}
    if path.stat().st_size > MOST_LEXICON_BYTES:
        raise ValueError(f"{path.name} is larger than {MOST_LEXICON_BYTES} bytes")
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
