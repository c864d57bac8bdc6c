"""A wheel as a source: a stopped download resumes, progress is reported, and a wrong file is refused."""

from __future__ import annotations

import hashlib
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.errors import ModelLoadError
from tessera.hub import python_package
from tessera.hub.python_package import Wheel

CONTENT = bytes(range(256)) * 8192  # 2 MB


class Index(http.server.ThreadingHTTPServer):
    """Gives one file; can cut it, refuse it, or know no ranges."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges: list[str | None] = []
        self.cuts: list[int] = []
        """Bytes after which the next answers end."""
        self.knows_ranges = True
        self.status = 200
        self.content = CONTENT

    @property
    def wheel(self) -> Wheel:
        url = f"http://127.0.0.1:{self.server_port}/packages/demo-1.0-py3-none-any.whl"
        return Wheel("demo==1.0", url, hashlib.sha256(CONTENT).hexdigest())


class Handler(http.server.BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        first = int(re.findall(r"\d+", asked)[0]) if asked and self.server.knows_ranges else 0
        if first >= len(self.server.content):
            self.send_error(416)
            return
        body = self.server.content[first:]
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cuts.pop(0)] if self.server.cuts else body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[Index]:
    server = Index()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_cut_connection_is_gone_on_with_in_the_same_try(index: Index, tmp_path: Path) -> None:
    index.cuts = [700_000]
    told: list[str] = []
    path = python_package.fetch(index.wheel, tmp_path, told.append)
    assert path.read_bytes() == CONTENT
    assert index.ranges == [None, "bytes=700000-"]
    assert any("going on" in text for text in told)
    assert [file.name for file in tmp_path.iterdir()] == ["demo-1.0-py3-none-any.whl"]


def test_what_came_before_it_gave_up_is_kept_for_the_next_try(index: Index, tmp_path: Path) -> None:
    index.cuts = [400_000, 400_000, 400_000, 400_000]
    with pytest.raises(ModelLoadError, match=r"cannot fetch .* 2 MB came and are kept"):
        python_package.fetch(index.wheel, tmp_path, lambda _: None)
    assert python_package.fetch(index.wheel, tmp_path, lambda _: None).read_bytes() == CONTENT
    assert index.ranges[-1] == "bytes=1600000-"


KILLED = """
import os, sys
from pathlib import Path
from tessera.hub import python_package
python_package.PROGRESS_S = 0
def report(text):
    if " of " in text and int(text.split(": ")[1].split()[0]) >= 1:
        os.kill(os.getpid(), 9)
python_package.fetch(python_package.Wheel("demo==1.0", sys.argv[1], sys.argv[2]), Path(sys.argv[3]), report)
"""


def test_a_killed_process_leaves_what_the_next_goes_on_with(index: Index, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, index.wheel.url, index.wheel.sha256, str(tmp_path)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".partial")
    had = left.stat().st_size
    assert 0 < had < len(CONTENT)
    assert python_package.fetch(index.wheel, tmp_path, lambda _: None).read_bytes() == CONTENT
    assert index.ranges[-1] == f"bytes={had}-"


def test_a_server_without_ranges_gives_all_of_it_again(index: Index, tmp_path: Path) -> None:
    index.cuts = [700_000]
    index.knows_ranges = False
    assert python_package.fetch(index.wheel, tmp_path, lambda _: None).read_bytes() == CONTENT


def test_a_whole_partial_file_is_taken_as_it_is(index: Index, tmp_path: Path) -> None:
    (tmp_path / "demo-1.0-py3-none-any.whl.partial").write_bytes(CONTENT)
    assert python_package.fetch(index.wheel, tmp_path, lambda _: None).read_bytes() == CONTENT


def test_progress_says_how_much_and_how_long(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_package, "PROGRESS_S", 0.0)
    told: list[str] = []
    python_package.fetch(index.wheel, tmp_path, told.append)
    assert re.fullmatch(r"demo-1\.0-py3-none-any\.whl: \d of 2 MB, about \d+ s left", told[0])


def test_another_file_than_the_index_names_is_thrown_away(index: Index, tmp_path: Path) -> None:
    index.content = CONTENT[::-1]
    with pytest.raises(ModelLoadError, match="not the wheel that the index names"):
        python_package.fetch(index.wheel, tmp_path, lambda _: None)
    assert list(tmp_path.iterdir()) == []
    index.content = CONTENT
    assert python_package.fetch(index.wheel, tmp_path, lambda _: None).read_bytes() == CONTENT


def test_a_server_that_fails_is_named_with_its_status(index: Index, tmp_path: Path) -> None:
    index.status = 503
    with pytest.raises(ModelLoadError, match=r"demo-1\.0-py3-none-any\.whl answers 503"):
        python_package.fetch(index.wheel, tmp_path, lambda _: None)


def test_an_index_that_wants_credentials_is_left_to_pip(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.status = 401
    real = subprocess.run

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[2:4] == ["pip", "download"]
        assert command[-1] == "demo==1.0"
        (tmp_path / "demo-1.0-py3-none-any.whl").write_bytes(CONTENT)
        return real([sys.executable, "-c", ""], capture_output=True, text=True, check=False)

    monkeypatch.setattr(python_package.subprocess, "run", run)
    assert python_package.fetch(index.wheel, tmp_path, lambda _: None).read_bytes() == CONTENT


def test_nobody_there_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_package.time, "sleep", lambda _: None)
    wheel = Wheel("demo==1.0", "http://127.0.0.1:9/demo-1.0-py3-none-any.whl", "0" * 64)
    with pytest.raises(ModelLoadError, match=r"cannot fetch http://127.*refused.* 0 MB came"):
        python_package.fetch(wheel, tmp_path, lambda _: None)


def test_a_full_disk_is_no_broken_connection(index: Index) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    with pytest.raises(OSError, match="No space left"):
        python_package._go_on(index.wheel, full, lambda _: None)


@pytest.mark.slow
def test_pip_says_where_a_wheel_is_and_that_there_is_none(tmp_path: Path) -> None:
    wheel = tmp_path / "demo-1.0-py3-none-any.whl"
    script = (
        "import sys, zipfile\n"
        "with zipfile.ZipFile(sys.argv[1], 'w') as z:\n"
        "    z.writestr('demo-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: demo\\nVersion: 1.0\\n')\n"
        "    z.writestr('demo-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nTag: py3-none-any\\n')\n"
        "    z.writestr('demo-1.0.dist-info/RECORD', '')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(wheel)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(tmp_path))
        found = python_package.find("demo==1.0")
        assert found.sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()
        target = tmp_path / "target"
        assert python_package.fetch(found, target, lambda _: None).read_bytes() == wheel.read_bytes()
        with pytest.raises(ModelLoadError, match=r"pip does not find demo==2\.0.*Check the connection"):
            python_package.find("demo==2.0")
