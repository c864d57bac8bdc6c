"""Encodes samples into the bytes of an audio file, part by part as they are synthesized.

PyAV encodes the compressed formats; its muxers need no seeking, so the first bytes are sent while the rest is still
synthesized. A file that is complete at once gets a header with its true length. Knows nothing about where samples come
from.
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
"""Samples per second of `pcm`, which has no header and is always 24 kHz in OpenAI's API."""
UNKNOWN_LENGTH = 0xFFFFFFFF
"""Length in a WAV header that is written before its data; readers then read to the end."""


@dataclass(frozen=True)
class AudioContainer:
    """A compressed format.

    Attributes:
        muxer: PyAV's name of the container format.
        codec: PyAV's name of the encoder.
        content_type: media type of the file.
        bit_rate: bits per second; None for the default of the codec.
        options: options of the muxer.
    """

    muxer: str
    codec: str
    content_type: str
    bit_rate: int | None = None
    options: dict[str, str] = field(default_factory=dict)


CONTAINERS: dict[AudioFormat, AudioContainer] = {
    "mp3": AudioContainer("mp3", "libmp3lame", "audio/mpeg", bit_rate=96_000),
    # Pages of 0.2 s instead of 1 s: playback begins after the first page.
    "opus": AudioContainer(
        "ogg", "libopus", "audio/ogg; codecs=opus", bit_rate=48_000, options={"page_duration": "200000"}
    ),
    "aac": AudioContainer("adts", "aac", "audio/aac", bit_rate=96_000),
    "flac": AudioContainer("flac", "flac", "audio/flac"),
}
OPUS_RATE = 48_000
"""Samples per second of every Opus stream."""


class AudioEncoder(Protocol):
    """Encodes one audio file."""

    def add(self, samples: np.ndarray[Any, Any], *, last: bool) -> bytes:
        """Encode more samples.

        Args:
            samples: int16 [samples]; may be empty.
            last: whether the file ends with them.

        Returns:
            The bytes of the file that are ready; with `last`, all that are left.
        """
        ...


def content_type(form: AudioFormat) -> str:
    """The media type of the files of `make_encoder`."""
    if form in CONTAINERS:
        return CONTAINERS[form].content_type
    return f"audio/pcm; rate={PCM_RATE}; channels=1" if form == "pcm" else "audio/wav"


def make_encoder(form: AudioFormat, rate: int) -> AudioEncoder:
    """An encoder of mono samples at `rate` samples per second."""
    if form in CONTAINERS:
        return ContainerEncoder(CONTAINERS[form], rate)
    return PCMEncoder(rate) if form == "pcm" else WAVEncoder(rate)


def to_int16(samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Float samples within -1 and 1 as int16, rounded; samples outside are clipped."""
    return np.clip(np.rint(samples * 32767.0), -32768, 32767).astype("<i2")


class WAVEncoder:
    """RIFF/WAVE with 16-bit samples at the model's own rate."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._has_header = False

    def add(self, samples: np.ndarray[Any, Any], *, last: bool) -> bytes:
        """Implements `AudioEncoder.add`."""
        data = samples.tobytes()
        if self._has_header:
            return data
        self._has_header = True
        return self._header(len(data) if last else UNKNOWN_LENGTH) + data

    def _header(self, size: int) -> bytes:
        layout = struct.pack("<IHHIIHH", 16, 1, 1, self.rate, 2 * self.rate, 2, 16)
        riff_size = min(size + 36, UNKNOWN_LENGTH)
        return b"RIFF" + struct.pack("<I", riff_size) + b"WAVEfmt " + layout + b"data" + struct.pack("<I", size)


class PCMEncoder:
    """Bare 16-bit little-endian samples at `PCM_RATE`."""

    def __init__(self, rate: int) -> None:
        self._framer = _Framer(rate)
        self._resampler = av.AudioResampler(format="s16", layout="mono", rate=PCM_RATE)

    def add(self, samples: np.ndarray[Any, Any], *, last: bool) -> bytes:
        """Implements `AudioEncoder.add`."""
        frames = self._resampler.resample(self._framer.next(samples)) if samples.size else []
        if last:
            frames += self._resampler.resample(None)
        return b"".join(frame.to_ndarray().astype("<i2").tobytes() for frame in frames)


class ContainerEncoder:
    """A compressed file by PyAV, at the model's sample rate if the codec has it, otherwise at the next higher rate."""

    def __init__(self, container: AudioContainer, rate: int) -> None:
        self._container = container
        self._rate = rate
        self._framer = _Framer(rate)
        self._sink: _WriteOnlyFile | io.BytesIO = _WriteOnlyFile()
        self._output: Any = None
        self._stream: Any = None

    def add(self, samples: np.ndarray[Any, Any], *, last: bool) -> bytes:
        """Implements `AudioEncoder.add`."""
        if self._output is None:
            self._open(seekable=last)
        if samples.size:
            self._output.mux(self._stream.encode(self._framer.next(samples)))
        if last:
            self._output.mux(self._stream.encode(None))
            self._output.close()
        if isinstance(self._sink, _WriteOnlyFile):
            return self._sink.take()
        return self._sink.getvalue()

    def _open(self, *, seekable: bool) -> None:
        """Open the output. With a seekable sink the muxer writes the true length into the header at the end."""
        if seekable:
            self._sink = io.BytesIO()
        self._output = av.open(self._sink, "w", format=self._container.muxer, options=self._container.options)
        self._stream = self._output.add_stream(
            self._container.codec, rate=_supported(self._container.codec, self._rate), layout="mono"
        )
        if self._container.bit_rate is not None:
            self._stream.bit_rate = self._container.bit_rate


class _Framer:
    """Wraps samples in PyAV frames with consecutive timestamps."""

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


class _WriteOnlyFile:
    """A file that can only be written to; `take` removes what was written."""

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
    """The sample rate for a codec: 48 kHz for Opus, otherwise `rate` or the next higher rate that the codec has."""
    if codec == "libopus":
        return OPUS_RATE
    rates = av.Codec(codec, "w").audio_rates
    if not rates or rate in rates:
        return rate
    return min((known for known in rates if known > rate), default=max(rates))
