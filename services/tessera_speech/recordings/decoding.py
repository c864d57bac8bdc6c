"""Decodes an uploaded recording: mono float32 samples at the model's rate, within limits. Blocks: call it in a thread.

The bytes may be hostile. Only demuxers of the list below are tried, so a playlist that names other files or addresses
is never opened; rates and channels are checked before a sample is decoded; decoding stops at the limit of seconds.
Knows nothing about models or HTTP.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO

import av
import numpy as np
from av.error import FFmpegError

from tessera.errors import InvalidRequestError, UnsupportedMediaError

FORMATS = ("wav", "w64", "mp3", "flac", "ogg", "mov", "mp4", "matroska", "webm", "aac", "aiff", "caf", "amr", "au")
"""Names of FFmpeg's demuxers; each covers its relatives (mov: mp4, m4a, 3gp; ogg: opus, oga)."""
READABLE = "wav, mp3, flac, ogg, opus, m4a, mp4, aac, webm, mka, aiff, caf, amr"
"""Formats as error messages name them."""
MIN_SECONDS = 0.1
"""Shortest recording that is taken."""
RATES = (4_000, 384_000)
"""Lowest and highest samples per second of a file."""
MAX_CHANNELS = 32


def decode(data: bytes, *, rate: int, max_seconds: float) -> np.ndarray[Any, Any]:
    """Decode the first audio stream.

    Args:
        data: the file's bytes.
        rate: samples per second of the result.
        max_seconds: longest recording that is taken.

    Returns:
        float32 [samples]; channels are mixed down.

    Raises:
        UnsupportedMediaError: the format is unknown, or the codec cannot be decoded.
        InvalidRequestError: the file is damaged, has no audio, or is too short or too long.
    """
    parts: list[np.ndarray[Any, Any]] = []
    _read(io.BytesIO(data), _Samples(rate, max_seconds, "max_audio_seconds", parts.append))
    return np.concatenate(parts)


def decode_to(file: BinaryIO, into: BinaryIO, *, rate: int, max_seconds: float, check_stop: Callable[[], None]) -> int:
    """Decode a recording that is too long for memory; see `decode`.

    Args:
        file: the recording; seekable.
        into: receives the samples, little-endian float32.
        rate: samples per second of the result.
        max_seconds: longest recording that is taken.
        check_stop: called now and then; an exception of it ends the work.

    Returns:
        The number of samples.
    """

    def keep(part: np.ndarray[Any, Any]) -> None:
        check_stop()
        into.write(part.tobytes())

    samples = _Samples(rate, max_seconds, "max_job_seconds", keep)
    _read(file, samples)
    into.flush()
    return samples.count


def _read(file: BinaryIO, samples: _Samples) -> None:
    try:
        # `format_whitelist` binds the probing itself; no protocol may be opened from inside a file.
        options = {
            "format_whitelist": ",".join(FORMATS),
            "protocol_whitelist": "",
            # FFmpeg probes with every further packet whether the samples of a WAV are packets of another codec, which
            # takes most of the time of a short file.
            "max_probe_packets": "4",
        }
        container = av.open(file, "r", options=options, metadata_errors="replace")
    except (FFmpegError, OSError, ValueError) as error:
        raise UnsupportedMediaError(
            f"`file` is not a recording that can be read ({_reason(error)}); known formats are {READABLE}", param="file"
        ) from error
    with container:
        if not container.streams.audio:
            raise InvalidRequestError("`file` has no audio track", param="file", code="invalid_audio")
        try:
            _decode(container, samples)
        except (FFmpegError, ValueError) as error:
            raise InvalidRequestError(
                f"`file` is damaged: {_reason(error)}", param="file", code="invalid_audio"
            ) from error
    samples.check()


def _decode(container: Any, samples: _Samples) -> None:
    """Decode packet by packet. A broken packet (a tag at the end, a cut tail) is skipped; a file of mostly such is
    refused."""
    stream = container.streams.audio[0]
    context = stream.codec_context
    if context is None:
        raise UnsupportedMediaError("the codec of `file` cannot be decoded", param="file")
    broken = decoded = 0
    last: Exception | None = None
    for packet in container.demux(stream):
        _check(context)
        try:
            frames = packet.decode()
        except FFmpegError as error:
            broken, last = broken + 1, error
            continue
        for frame in frames:
            samples.add(frame)
            decoded += 1
        if samples.full:
            return
    if last is not None and broken > decoded:
        raise last
    samples.finish()


def _check(context: Any) -> None:
    rate, channels = context.sample_rate, context.channels
    if rate and not RATES[0] <= rate <= RATES[1]:
        raise InvalidRequestError(
            f"`file` has {rate} samples a second; {RATES[0]} to {RATES[1]} are taken",
            param="file",
            code="invalid_audio",
        )
    if channels > MAX_CHANNELS:
        raise InvalidRequestError(
            f"`file` has {channels} channels; at most {MAX_CHANNELS} are taken", param="file", code="invalid_audio"
        )


class _Samples:
    """Resamples decoded frames and passes them to `keep` in parts, float32 [samples]."""

    def __init__(self, rate: int, max_seconds: float, limit: str, keep: Callable[[np.ndarray[Any, Any]], None]) -> None:
        self._rate = rate
        self._max_seconds = max_seconds
        self._limit = limit
        self._sink = keep
        self._resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
        self._held: list[np.ndarray[Any, Any]] = []
        self._held_samples = 0
        self.count = 0

    @property
    def full(self) -> bool:
        """Whether the limit of seconds is exceeded."""
        return self.count > self._max_seconds * self._rate

    def add(self, frame: Any) -> None:
        frame.pts = None  # gaps and jumps of the file's own clock must not become silence
        self._keep(self._resampler.resample(frame))

    def finish(self) -> None:
        if self.count:
            self._keep(self._resampler.resample(None))
            self._pass_on()

    def _keep(self, frames: list[Any]) -> None:
        for frame in frames:
            part = frame.to_ndarray()[0]
            self.count += part.size
            self._held_samples += part.size
            self._held.append(part)
        # A second at a time: frames are short, and the overhead of a call is larger than its arithmetic.
        if self._held_samples >= self._rate:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._held:
            # A float file may carry NaN or infinity; features must not.
            self._sink(np.clip(np.nan_to_num(np.concatenate(self._held)), -1.0, 1.0).astype("<f4", copy=False))
        self._held, self._held_samples = [], 0

    def check(self) -> None:
        if self.full:
            raise InvalidRequestError(
                f"`file` is longer than `{self._limit}`, {self._max_seconds:g}; send it in parts",
                param="file",
                code="audio_too_long",
            )
        if self.count < MIN_SECONDS * self._rate:
            raise InvalidRequestError(
                f"`file` has {self.count / self._rate:.2f} s of audio; at least {MIN_SECONDS} s are needed",
                param="file",
                code="audio_too_short",
            )


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
