"""Samples into the bytes of an audio file, piece by piece as they are made.

PyAV encodes the compressed formats: its muxers need no seeking, so the first bytes leave while the rest is still
spoken. A file that is complete at once gets a header with its true length instead. Does not know where
samples come from.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

import av
import numpy as np
from av.audio.frame import AudioFrame

from tessera.wire.audio import AudioFormat

PCM_RATE = 24_000
"""OpenAI's `pcm` has no header and is always 24 kHz, so ours is too, whatever the model's rate is."""
UNKNOWN_LENGTH = 0xFFFFFFFF
"""What a WAV header says about its data when it is written before them; readers then take what comes."""


@dataclass(frozen=True)
class AudioContainer:
    """A compressed format: how PyAV calls it and what it is encoded with."""

    muxer: str
    codec: str
    content_type: str
    bit_rate: int | None = None
    options: dict[str, str] = field(default_factory=dict)


CONTAINERS: dict[AudioFormat, AudioContainer] = {
    "mp3": AudioContainer("mp3", "libmp3lame", "audio/mpeg", bit_rate=96_000),
    # Pages of 0.2 s instead of 1 s: how long a listener waits for the first sound.
    "opus": AudioContainer(
        "ogg", "libopus", "audio/ogg; codecs=opus", bit_rate=48_000, options={"page_duration": "200000"}
    ),
    "aac": AudioContainer("adts", "aac", "audio/aac", bit_rate=96_000),
    "flac": AudioContainer("flac", "flac", "audio/flac"),
}
OPUS_RATE = 48_000


class AudioEncoder(Protocol):
    """An audio file in the making."""

    def add(self, samples: np.ndarray[Any, Any], *, last: bool) -> bytes:
        """Encode more samples.

        Args:
            samples: int16 of shape [samples]; may be empty.
            last: whether the file ends with them.

        Returns:
            The bytes of the file that are ready now; with `last`, all that are left.
        """
        ...


def content_type(form: AudioFormat) -> str:
    """The media type of what `make_encoder` makes."""
    if form in CONTAINERS:
        return CONTAINERS[form].content_type
    return f"audio/pcm; rate={PCM_RATE}; channels=1" if form == "pcm" else "audio/wav"


def make_encoder(form: AudioFormat, rate: int) -> AudioEncoder:
    """An encoder of mono samples at `rate`."""
    if form in CONTAINERS:
        return ContainerEncoder(CONTAINERS[form], rate)
    return PCMEncoder(rate) if form == "pcm" else WAVEncoder(rate)


def to_int16(samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Float samples within -1 and 1 as int16, rounded; what is outside is clipped."""
    return np.clip(np.rint(samples * 32767.0), -32768, 32767).astype("<i2")


class WAVEncoder:
    """RIFF/WAVE with 16-bit samples at the model's own rate."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._begun = False

    def add(self, samples: np.ndarray[Any, Any], *, last: bool) -> bytes:
        """See `AudioEncoder`."""
        data = samples.tobytes()
        if self._begun:
            return data
        self._begun = True
        return self._header(len(data) if last else UNKNOWN_LENGTH) + data

    def _header(self, size: int) -> bytes:
        layout = struct.pack("<IHHIIHH", 16, 1, 1, self.rate, 2 * self.rate, 2, 16)
        whole = min(size + 36, UNKNOWN_LENGTH)
        return b"RIFF" + struct.pack("<I", whole) + b"WAVEfmt " + layout + b"data" + struct.pack("<I", size)


class PCMEncoder:
    """Bare 16-bit little-endian samples at `PCM_RATE`."""

    def __init__(self, rate: int) -> None:
        self._frames = _Frames(rate)
        self._resampler = av.AudioResampler(format="s16", layout="mono", rate=PCM_RATE)

    def add(self, samples: np.ndarray[Any, Any], *, last: bool) -> bytes:
        """See `AudioEncoder`."""
        made = self._resampler.resample(self._frames.next(samples)) if samples.size else []
        if last:
            made += self._resampler.resample(None)
        return b"".join(frame.to_ndarray().astype("<i2").tobytes() for frame in made)


class ContainerEncoder:
    """A compressed file through PyAV, at the model's rate where the codec has it, else at the next higher one."""

    def __init__(self, container: AudioContainer, rate: int) -> None:
        self._kind = container
        self._rate = rate
        self._frames = _Frames(rate)
        self._sink: _Pipe | io.BytesIO = _Pipe()
        self._output: Any = None
        self._stream: Any = None

    def add(self, samples: np.ndarray[Any, Any], *, last: bool) -> bytes:
        """See `AudioEncoder`."""
        if self._output is None:
            self._open(seekable=last)
        if samples.size:
            self._output.mux(self._stream.encode(self._frames.next(samples)))
        if last:
            self._output.mux(self._stream.encode(None))
            self._output.close()
        if isinstance(self._sink, _Pipe):
            return self._sink.take()
        return self._sink.getvalue()

    def _open(self, *, seekable: bool) -> None:
        """With a seekable sink the muxer goes back and writes the true length into the header."""
        if seekable:
            self._sink = io.BytesIO()
        self._output = av.open(self._sink, "w", format=self._kind.muxer, options=self._kind.options)
        self._stream = self._output.add_stream(
            self._kind.codec, rate=_supported(self._kind.codec, self._rate), layout="mono"
        )
        if self._kind.bit_rate is not None:
            self._stream.bit_rate = self._kind.bit_rate


class _Frames:
    """Samples as PyAV's frames, one after another in time."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._position = 0

    def next(self, samples: np.ndarray[Any, Any]) -> AudioFrame:
        frame = AudioFrame.from_ndarray(np.ascontiguousarray(samples)[None, :], format="s16", layout="mono")
        frame.sample_rate = self._rate
        frame.time_base = Fraction(1, self._rate)
        frame.pts = self._position
        self._position += samples.size
        return frame


class _Pipe:
    """A file that can only be written to."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def write(self, data: bytes) -> int:
        self._bytes += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._bytes)
        self._bytes.clear()
        return taken


def _supported(codec: str, rate: int) -> int:
    """Opus is always 48 kHz inside; other codecs get `rate` itself, or the next higher one that they have."""
    if codec == "libopus":
        return OPUS_RATE
    rates = av.Codec(codec, "w").audio_rates
    if not rates or rate in rates:
        return rate
    return min((known for known in rates if known > rate), default=max(rates))
