"""Files that lie about themselves or hold nothing: each a clear error or a right result, and nothing else is hurt."""

from __future__ import annotations

import io
import resource
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import av
import httpx
import numpy as np
import pytest
import soundfile

from tessera.errors import InvalidRequestError, UnsupportedMediaError
from tessera_speech.recordings import decoding as recordings

RATE = 16_000
TRANSCRIPTION = "tiny-random-transcription"


def decode(data: bytes, max_seconds: float = 60.0) -> np.ndarray[Any, Any]:
    return recordings.decode(data, rate=RATE, max_seconds=max_seconds)


def wav(body: bytes, *, rate: int = RATE, channels: int = 1, declared: int | None = None) -> bytes:
    """16-bit samples whose header says that there are `declared` bytes of them."""
    layout = struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * 2 * channels, 2 * channels, 16)
    size = len(body) if declared is None else declared
    return b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + layout + b"data" + struct.pack("<I", size) + body


def flac(samples: np.ndarray[Any, Any], *, rate: int = RATE, declared: int | None = None) -> bytes:
    """A file whose header says that there are `declared` samples in it."""
    sink = io.BytesIO()
    soundfile.write(sink, samples, rate, format="FLAC", subtype="PCM_16")
    data = bytearray(sink.getvalue())
    if declared is not None:
        # STREAMINFO: the last 36 bits before the checksum are the number of samples.
        data[22:26] = struct.pack(">I", declared)
        data[21] &= 0xF0
    return bytes(data)


@pytest.mark.parametrize("container", ["wav", "flac"])
def test_a_high_rate_and_many_channels_are_mixed_down_to_the_same_sound(container: str, melody: Any) -> None:
    rate, channels = 192_000, 12 if container == "wav" else 8
    sound = melody(2.0, rate)
    sink = io.BytesIO()
    soundfile.write(sink, np.repeat(sound[:, None], channels, axis=1), rate, format=container.upper())
    samples, expected = decode(sink.getvalue()), melody(2.0)
    assert samples.size / RATE == pytest.approx(2.0, abs=0.01)
    shortest = min(samples.size, expected.size) - 400
    best = max(np.corrcoef(samples[shift : shift + shortest], expected[:shortest])[0, 1] for shift in range(100))
    assert best > 0.95


@pytest.mark.parametrize("data", [wav(b""), flac(np.zeros(0)), wav(b"\x00" * 2)], ids=["wav", "flac", "one sample"])
def test_a_recording_without_samples_is_refused(data: bytes) -> None:
    with pytest.raises((InvalidRequestError, UnsupportedMediaError)) as caught:
        decode(data)
    assert caught.value.param == "file"


def test_a_long_recording_that_calls_itself_short_meets_the_limit_all_the_same(melody: Any) -> None:
    """Ten minutes that say they are two seconds: what counts is what is decoded."""
    long = np.tile(melody(10.0), 60)
    with pytest.raises(InvalidRequestError, match="longer than `max_audio_seconds`, 30"):
        decode(flac(long, declared=2 * RATE), max_seconds=30.0)
    samples = decode(wav((long * 32_767).astype("<i2").tobytes(), declared=2 * 2 * RATE), max_seconds=30.0)
    assert samples.size == 2 * RATE, "a WAV ends where its header says"


def test_a_short_recording_that_calls_itself_long_is_what_it_is(melody: Any) -> None:
    body = (melody(2.0) * 32_767).astype("<i2").tobytes()
    assert decode(wav(body, declared=2**31)).size == 2 * RATE
    assert decode(flac(melody(2.0), declared=2**31)).size == 2 * RATE


def test_zeros_without_end_are_decoded_no_further_than_the_limit() -> None:
    """Hundreds of megabytes of zeros in a few kilobytes: neither memory nor time of more than the limit is spent."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=48_000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 2 * 48_000), np.int16), format="s16", layout="stereo")
        frame.sample_rate = 48_000
        for second in range(900):
            frame.pts = second * 48_000
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    data = sink.getvalue()
    assert len(data) < 2_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidRequestError, match="longer than `max_audio_seconds`"):
        decode(data, max_seconds=60.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_bad_files_disturb_nobody(vad_service: Any, recording: Any, melody: Any) -> None:
    def ask(data: bytes) -> httpx.Response:
        fields = {"model": TRANSCRIPTION, "language": "en", "chunking_strategy": "none"}
        files = {"file": ("a.wav", data)}
        return httpx.post(f"{vad_service.url}/v1/audio/transcriptions", data=fields, files=files, timeout=120)

    good = recording("wav", melody(3.0))
    expected = ask(good).json()["text"]
    assert expected
    not_a_number = recording("wav-float", np.full(RATE, np.nan, dtype=np.float32))
    bad = {
        "text": b"this is no recording",
        "cut": recording("m4a", melody(3.0))[:500],
        "no samples": wav(b""),
        "too many channels": wav(b"\x00" * 40_000, channels=60),
        "endless": flac(np.zeros(1_900 * RATE, dtype=np.int16), declared=2 * RATE),
    }
    with ThreadPoolExecutor(8) as pool:
        answers = {name: pool.submit(ask, data) for name, data in bad.items()}
        beside = [pool.submit(ask, good) for _ in range(2)]
        nothing = pool.submit(ask, not_a_number)
        for name, answer in answers.items():
            assert answer.result().status_code in {400, 415}, name
            assert answer.result().json()["error"]["param"] == "file", name
        assert [one.result().json()["text"] for one in beside] == [expected] * 2
        assert nothing.result().status_code == 200
