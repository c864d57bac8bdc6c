"""Files out and files in: every format is whole for a reader that we did not write; hostile files are refused."""

from __future__ import annotations

import io
import struct
import wave
from typing import Any

import av
import numpy as np
import pytest
import soundfile

from tessera.errors import InvalidRequestError, TesseraError, UnsupportedMediaError
from tessera_speech.recordings import decoding as recordings
from tessera_speech.synthesis.audio_files import PCM_RATE, content_type, make_encoder, to_int16

FORMATS = ["wav", "flac", "mp3", "opus", "aac"]
# Frames of the lossy codecs: what a file may be longer than its samples, in seconds at 16 kHz.
PADDING_S = {"wav": 0.0, "flac": 0.0, "mp3": 0.12, "opus": 0.0, "aac": 0.15}


def made(form: Any, samples: np.ndarray[Any, Any], rate: int, pieces: int) -> list[bytes]:
    making = make_encoder(form, rate)
    parts = np.array_split(to_int16(samples), pieces)
    return [making.add(part, last=number == pieces - 1) for number, part in enumerate(parts)]


@pytest.mark.parametrize("pieces", [1, 5])
@pytest.mark.parametrize("rate", [16_000, 22_050, 44_100])
@pytest.mark.parametrize("form", FORMATS)
def test_a_file_holds_all_samples_at_a_right_rate(form: str, rate: int, pieces: int, melody: Any, played: Any) -> None:
    samples = melody(2.345, rate)
    data = b"".join(made(form, samples, rate, pieces))
    decoded, decoded_rate = played(data)
    assert decoded_rate == (48_000 if form == "opus" else rate)
    seconds = decoded.size / decoded_rate
    assert 2.345 - 0.002 <= seconds <= 2.345 + PADDING_S[form] + 0.002
    assert np.abs(decoded).max() == pytest.approx(np.abs(samples).max(), abs=0.1)


@pytest.mark.parametrize("pieces", [1, 5])
@pytest.mark.parametrize("form", ["wav", "mp3", "opus"])
def test_libsndfile_reads_it_too(form: str, pieces: int, melody: Any) -> None:
    decoded, rate = soundfile.read(io.BytesIO(b"".join(made(form, melody(2.0), 16_000, pieces))))
    assert len(decoded) / rate == pytest.approx(2.0, abs=PADDING_S[form] + 0.002)


@pytest.mark.parametrize("form", ["wav", "flac"])
@pytest.mark.parametrize("pieces", [1, 5])
def test_lossless_formats_lose_nothing(form: str, pieces: int, melody: Any) -> None:
    samples = melody(1.5)
    with av.open(io.BytesIO(b"".join(made(form, samples, 16_000, pieces)))) as container:
        decoded = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    assert np.array_equal(decoded, to_int16(samples))


@pytest.mark.parametrize("form", FORMATS)
def test_bytes_leave_before_the_end_is_known(form: str, melody: Any) -> None:
    parts = made(form, melody(4.0), 16_000, 4)
    assert all(parts[:3]), "each piece of a second brings bytes"


@pytest.mark.parametrize("form", ["wav", "flac", "mp3"])
def test_a_file_that_is_whole_at_once_says_its_true_length(form: str, melody: Any) -> None:
    data = b"".join(made(form, melody(2.0), 16_000, 1))
    info = soundfile.info(io.BytesIO(data))
    assert info.frames == 32_000
    if form == "wav":
        assert struct.unpack("<I", data[4:8])[0] == len(data) - 8
        with wave.open(io.BytesIO(data)) as reader:
            assert (reader.getnframes(), reader.getnchannels(), reader.getsampwidth()) == (32_000, 1, 2)


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 44_100])
@pytest.mark.parametrize("pieces", [1, 7])
def test_pcm_is_always_openais_rate(rate: int, pieces: int, melody: Any) -> None:
    samples = np.frombuffer(b"".join(made("pcm", melody(2.0, rate), rate, pieces)), dtype="<i2")
    assert samples.size == pytest.approx(2.0 * PCM_RATE, abs=32)
    assert content_type("pcm") == "audio/pcm; rate=24000; channels=1"


def test_loud_samples_are_clipped_not_wrapped() -> None:
    assert to_int16(np.array([2.0, -2.0, 1.0, -1.0, 0.0], dtype=np.float32)).tolist() == [
        32767,
        -32768,
        32767,
        -32767,
        0,
    ]


# ---- in


KINDS = ["wav", "wav-float", "mp3", "flac", "opus", "m4a", "webm", "aac", "aiff", "mka"]


def decode(data: bytes, max_seconds: float = 60.0) -> np.ndarray[Any, Any]:
    return recordings.decode(data, rate=16_000, max_seconds=max_seconds)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [16_000, 44_100])
@pytest.mark.parametrize("kind", KINDS)
def test_common_files_are_decoded_to_mono_at_the_models_rate(
    kind: str, rate: int, channels: int, melody: Any, recording: Any
) -> None:
    samples = decode(recording(kind, melody(1.5, rate), rate, channels))
    assert samples.dtype == np.float32
    assert samples.size / 16_000 == pytest.approx(1.5, abs=0.2)
    original = melody(1.5)
    shortest = min(samples.size, original.size)
    # Lossy codecs shift by their delay: the best alignment within it must be the same sound.
    best = max(float(np.corrcoef(samples[shift : shift + 12_000], original[:12_000])[0, 1]) for shift in range(2_500))
    assert best > 0.95, shortest


def test_the_sound_of_a_video_is_taken(melody: Any) -> None:
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as container:
        video = container.add_stream("libx264", rate=10)
        video.width = video.height = 64
        audio = container.add_stream("aac", rate=16_000, layout="mono")
        for _ in range(10):
            container.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")))
        container.mux(video.encode(None))
        frame = av.AudioFrame.from_ndarray(melody(1.0)[None, :], format="flt", layout="mono")
        frame.sample_rate = 16_000
        container.mux(audio.encode(frame))
        container.mux(audio.encode(None))
    assert decode(sink.getvalue()).size == pytest.approx(16_000, abs=2_500)


def picture() -> bytes:
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as container:
        video = container.add_stream("libx264", rate=10)
        video.width = video.height = 64
        frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
        container.mux(video.encode(frame))
        container.mux(video.encode(None))
    return sink.getvalue()


def test_a_video_without_sound_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no audio track"):
        decode(picture())


PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
CONCAT = b"ffconcat version 1.0\nfile '/etc/passwd'\n"
SDP = b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 5000,
        b"not audio at all",
        b"%PDF-1.7\n" + b"x" * 3000,
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"\x89PNG\r\n\x1a\n" + b"\x00" * 100,
        PLAYLIST,
        CONCAT,
        SDP,
        b"RIFF",
        b"OggS\x00\x02",
        b"fLaC\x00\x00\x00\x22",
    ],
)
def test_what_is_no_recording_is_refused(data: bytes) -> None:
    with pytest.raises(TesseraError) as caught:
        decode(data)
    assert caught.value.status in {400, 415}
    assert caught.value.param == "file"


def test_a_playlist_is_never_followed(tmp_path: Any, melody: Any, recording: Any) -> None:
    inner = tmp_path / "inner.wav"
    inner.write_bytes(recording("wav", melody(1.0)))
    for text in (f"#EXTM3U\n#EXTINF:1,\n{inner}\n#EXT-X-ENDLIST\n", f"ffconcat version 1.0\nfile '{inner}'\n"):
        with pytest.raises(UnsupportedMediaError):
            decode(text.encode())


def decoded_or_refused(data: bytes) -> np.ndarray[Any, Any] | None:
    """None for a refusal that is the client's fault; anything else that is raised fails the test."""
    try:
        return decode(data)
    except (InvalidRequestError, UnsupportedMediaError):
        return None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0.02, 0.5, 0.97])
def test_a_cut_file_gives_what_is_left_of_it_or_a_clear_error(
    kind: str, part: float, melody: Any, recording: Any
) -> None:
    data = recording(kind, melody(3.0))
    samples = decoded_or_refused(data[: int(len(data) * part)])
    assert samples is None or 0 < samples.size <= 3.3 * 16_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_flipped_bits_never_raise_anything_else(kind: str, seed: int, melody: Any, recording: Any) -> None:
    chance = np.random.default_rng(seed)
    data = bytearray(recording(kind, melody(1.0)))
    for place in chance.integers(0, len(data), size=40):
        data[place] ^= 1 << int(chance.integers(0, 8))
    samples = decoded_or_refused(bytes(data))
    assert samples is None or np.isfinite(samples).all()


def test_decoding_stops_at_the_limit_of_seconds(melody: Any, recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = recording("flac", melody(60.0))
    seen: list[int] = []
    original = recordings._Samples.add

    def counting(self: Any, frame: Any) -> None:
        seen.append(frame.samples)
        original(self, frame)

    monkeypatch.setattr(recordings._Samples, "add", counting)
    with pytest.raises(InvalidRequestError, match=r"longer than `max_audio_seconds`, 5;") as caught:
        decode(data, max_seconds=5.0)
    assert caught.value.body().code == "audio_too_long"
    assert sum(seen) < 6 * 16_000


def wav_header(rate: int, channels: int) -> bytes:
    layout = struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * 2 * channels, 2 * channels, 16)
    body = b"\x00" * 40_000
    return (
        b"RIFF" + struct.pack("<I", 36 + len(body)) + b"WAVEfmt " + layout + b"data" + struct.pack("<I", 40_000) + body
    )


@pytest.mark.parametrize(("rate", "channels"), [(1, 1), (4_000_000, 1), (16_000, 60)])
def test_absurd_rates_and_channels_are_refused_before_decoding(rate: int, channels: int) -> None:
    with pytest.raises(InvalidRequestError, match="are taken"):
        decode(wav_header(rate, channels))


def test_a_moment_of_sound_is_too_short(melody: Any, recording: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"at least 0\.1 s"):
        decode(recording("wav", melody(0.05)))


def test_what_is_no_number_becomes_silence(recording: Any) -> None:
    samples = np.full(16_000, np.nan, dtype=np.float32)
    samples[::2] = np.inf
    decoded = decode(recording("wav-float", samples))
    assert np.isfinite(decoded).all()
    assert np.abs(decoded).max() <= 1.0
