"""The formant synthesizer espeak-ng as a teacher: text to samples, with the time of every word and phoneme.

Wraps the library in the wheel `espeakng-loader` (a training dependency under the GPL, so nothing that serves imports
this module). The library is global state: make one `EspeakTeacher` a process and use it from one thread; the voice may
change with every call. Knows nothing about what the speech is used for.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

_SYNCHRONOUS = 2
_PHONEME_EVENTS, _PHONEMES_AS_IPA, _DO_NOT_EXIT = 0x1, 0x2, 0x8000
_UTF8 = 1
_RATE, _VOLUME, _PITCH, _RANGE = 1, 2, 3, 4
_END_OF_LIST, _WORD, _SENTENCE, _END, _PHONEME = 0, 1, 2, 5, 7
_KINDS: dict[int, Literal["word", "sentence", "end", "phoneme"]] = {
    _WORD: "word",
    _SENTENCE: "sentence",
    _END: "end",
    _PHONEME: "phoneme",
}


class _Identifier(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _EspeakEvent(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Identifier),
    )


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_EspeakEvent))


@dataclass(frozen=True)
class EspeakEvent:
    """An event of the synthesizer: a phoneme, a word or a sentence begins, or a clause has ended.

    Args:
        kind: kind of the event.
        sample: index of the sample at which it happens, at the teacher's sample rate.
        name: name of the phoneme in IPA; empty for the pause that ends a clause, and for the other kinds.
        position: index of the word's first character in the text, for words and sentences.
        length: characters of the word.
    """

    kind: Literal["word", "sentence", "end", "phoneme"]
    sample: int
    name: str = ""
    position: int = 0
    length: int = 0


@dataclass(frozen=True)
class EspeakSpeech:
    """Synthesized speech.

    Args:
        samples: int16 [time].
        rate: samples a second.
        events: events in the order of their samples.
    """

    samples: npt.NDArray[np.int16]
    rate: int
    events: list[EspeakEvent]


class EspeakTeacher:
    """The synthesizer espeak-ng. Make one a process.

    Args:
        data: folder of the library's data, with its voices; None takes the wheel's own.

    Raises:
        ModuleNotFoundError: the wheel `espeakng-loader` is not installed.
        RuntimeError: the library refuses to start.
    """

    def __init__(self, data: Path | None = None) -> None:
        loader = importlib.import_module("espeakng_loader")
        self._library = ctypes.CDLL(str(loader.get_library_path()))
        self._library.espeak_Synth.argtypes = (
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_uint,
            ctypes.c_int,
            ctypes.c_uint,
            ctypes.c_uint,
            ctypes.c_void_p,
            ctypes.c_void_p,
        )
        options = _PHONEME_EVENTS | _PHONEMES_AS_IPA | _DO_NOT_EXIT
        self.rate: int = self._library.espeak_Initialize(
            _SYNCHRONOUS, 0, str(data or loader.get_data_path()).encode(), options
        )
        if self.rate <= 0:
            raise RuntimeError(f"espeak-ng did not start: {self.rate}")
        self._pieces: list[npt.NDArray[np.int16]] = []
        self._events: list[EspeakEvent] = []
        # The library keeps the pointer, so the callback must live as long as the library.
        self._callback = _CALLBACK(self._collect)
        self._library.espeak_SetSynthCallback(self._callback)

    def speak(
        self, text: str, voice: str = "en-us", *, words_per_minute: int = 175, pitch: int = 50, pitch_range: int = 50
    ) -> EspeakSpeech:
        """Speak `text`.

        Args:
            text: one or more sentences.
            voice: a language, and a variant after `+`: `en-us`, `en-gb+f2`, `en-us+klatt4`.
            words_per_minute: pace, 80 to 450.
            pitch: pitch within the voice's own range, 0 to 100.
            pitch_range: range of the pitch, 0 (monotone) to 100.

        Raises:
            ValueError: the voice does not exist.
            RuntimeError: the library failed.
        """
        library = self._library
        if library.espeak_SetVoiceByName(voice.encode()):
            raise ValueError(f"espeak-ng has no voice {voice!r}")
        for parameter, value in ((_RATE, words_per_minute), (_VOLUME, 100), (_PITCH, pitch), (_RANGE, pitch_range)):
            library.espeak_SetParameter(parameter, value, 0)
        self._pieces, self._events = [], []
        data = text.encode() + b"\0"
        if library.espeak_Synth(data, len(data), 0, 1, 0, _UTF8, None, None) or library.espeak_Synchronize():
            raise RuntimeError(f"espeak-ng did not speak {text!r}")
        samples = np.concatenate(self._pieces) if self._pieces else np.zeros(0, np.int16)
        # Python slices `str` by characters, and the library counts them from one.
        return EspeakSpeech(samples, self.rate, sorted(self._events, key=lambda event: event.sample))

    def _collect(
        self, samples: ctypes._Pointer[ctypes.c_short], count: int, events: ctypes._Pointer[_EspeakEvent]
    ) -> int:
        if samples and count > 0:
            self._pieces.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())
        for index in itertools.count():
            event = events[index]
            if event.type == _END_OF_LIST:
                break
            kind = _KINDS.get(event.type)
            if kind is not None:
                name = bytes(event.id.string).decode() if kind == "phoneme" else ""
                position = max(event.text_position - 1, 0)
                self._events.append(EspeakEvent(kind, event.sample, name, position, event.length))
        return 0
