"""`tessera demo` against the running suite: what it says, and that every file it leaves is what it claims to be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import pytest

FILES = {
    "answer.txt",
    "description.txt",
    "frames.png",
    "picture.png",
    "spectrogram.png",
    "video.mp4",
    "speech.wav",
    "transcript.txt",
    "index.html",
}


@pytest.fixture(scope="module")
def demo(suite: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of the command: `output` is its folder, `said` what it printed."""
    output = tmp_path_factory.mktemp("demo") / "results"
    command = [sys.executable, "-m", "tessera.cli", "demo", "--url", suite.base_url, "--output", str(output)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return SimpleNamespace(output=output, said=ran.stdout, complained=ran.stderr)


def test_the_folder_has_a_file_of_each_modality(demo: Any) -> None:
    assert {path.name for path in demo.output.iterdir()} == FILES
    assert all(path.stat().st_size > 0 for path in demo.output.iterdir())
    assert "mosaic" in (demo.output / "answer.txt").read_text().lower()
    described = (demo.output / "description.txt").read_text().lower()
    assert all(thing in described for thing in ("red circle", "green triangle", "blue square"))


def test_it_says_what_it_did_with_times(demo: Any) -> None:
    for title, model in {
        "answer": "smollm2-135m-instruct",
        "description": "scenes-vision",
        "video": "shapes-video",
        "speech": "english-voices",
        "transcript": "english-transcription",
    }.items():
        (line,) = [line for line in demo.said.splitlines() if line.startswith(f"{title} · {model}")]
        assert "random weights" not in line
    assert len(re.findall(r"^  \d+\.\d\d s; ", demo.said, re.MULTILINE)) == 5
    assert demo.complained == ""


def test_the_video_is_what_browsers_play(demo: Any) -> None:
    data = (demo.output / "video.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    with av.open(str(demo.output / "video.mp4")) as container:
        (stream,) = container.streams.video
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert sum(1 for _ in container.decode(stream)) == 17  # 4 s of 4 frames, as 4k + 1


def test_the_sound_is_a_whole_wav_file(demo: Any) -> None:
    with av.open(str(demo.output / "speech.wav")) as container:
        samples = sum(frame.samples for frame in container.decode(audio=0))
        assert samples / container.streams.audio[0].rate > 0.5


def test_the_page_refers_to_its_own_files_only(demo: Any) -> None:
    page = (demo.output / "index.html").read_text()
    referred = set(re.findall(r"""(?:src|href)=["']([^"']+)["']""", page))
    assert referred == {"video.mp4", "frames.png", "speech.wav", "picture.png", "spectrogram.png"}
    assert "url(" not in page
    assert "@import" not in page
    assert "<script" not in page
    assert (demo.output / "answer.txt").read_text().split()[0] in page
    assert "random weights" not in page


def test_without_a_suite_it_says_how_to_start_one(tmp_path: Path, suite: Any) -> None:
    command = [
        sys.executable,
        "-m",
        "tessera.cli",
        "demo",
        "--url",
        "http://127.0.0.1:9",
        "--output",
        str(tmp_path / "x"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert "`tessera up` starts one" in ran.stdout
    assert not (tmp_path / "x").exists()
