"""The doctor finds what would go wrong, names it, and says the cure; it never says so of a healthy machine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tessera.settings.load import load
from tessera.settings.tree import Settings
from tessera.suite import doctor, host, lock
from tessera.suite.doctor import Finding
from tessera.suite.parts import Selection, local_url, parts, select


@pytest.fixture
def port() -> Iterator[tuple[socket.socket, int]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener, listener.getsockname()[1]


def settings_for(data: Path, **overrides: dict[str, Any]) -> Settings:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        ports = {"gateway": first.getsockname()[1], "text": second.getsockname()[1]}
    values: dict[str, Any] = {"suite": {"data": str(data)}}
    for section, number in ports.items():
        values[section] = {"port": number}
    for section, keys in overrides.items():
        values.setdefault(section, {}).update(keys)
    return load(None, environment={}, overrides=values)


def failures(settings: Settings, only: str | None = "text,gateway") -> list[Finding]:
    findings = doctor.examine(settings, select(only, settings))
    return [finding for finding in findings if finding.level == "fail"]


def test_a_healthy_machine_has_no_failures(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    findings = doctor.examine(settings, select("text,gateway", settings))
    assert [finding for finding in findings if finding.level != "ok"] == []
    looked_at = {finding.subject for finding in findings}
    assert {"python", "libraries", "data", "models", "model", "port", "disk", "memory", "device"} <= looked_at


def test_a_taken_port_is_named_with_the_process_that_has_it(tmp_path: Path, port: tuple[socket.socket, int]) -> None:
    (found,) = failures(settings_for(tmp_path, gateway={"port": port[1]}))
    assert f"process {os.getpid()}" in found.message
    assert "--port" in found.cure


def test_two_parts_on_one_port_are_found(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    (found,) = failures(settings_for(tmp_path, gateway={"port": settings.text.port}, text={"port": settings.text.port}))
    assert "text and gateway" in found.message


def test_an_address_of_another_machine_is_found(tmp_path: Path) -> None:
    (found,) = failures(settings_for(tmp_path, gateway={"host": "192.0.2.1"}))
    assert "192.0.2.1" in found.message


def test_too_little_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "free_bytes", lambda _: 10 * 1024 * 1024)
    found = failures(settings_for(tmp_path))
    assert {finding.subject for finding in found} == {"disk"}
    assert all("suite." in finding.cure for finding in found)


def test_too_little_memory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "memory_available", lambda: 300 * 1024 * 1024)
    (found,) = failures(settings_for(tmp_path))
    assert "300 MiB available" in found.message
    assert "--only" in found.cure


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert {finding.subject for finding in failures(settings_for(tmp_path / "data"))} >= {"data"}


def test_a_data_directory_that_is_a_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert "data" in {finding.subject for finding in failures(settings_for(tmp_path / "data"))}


def test_a_library_that_is_missing_or_too_old_is_named_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "diffusers":
            raise importlib.metadata.PackageNotFoundError(name)
        return "4.57.0" if name == "transformers" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    settings = settings_for(tmp_path)
    assert failures(settings, "gateway") == []
    (found,) = [f for f in failures(settings, "gateway,video") if f.subject == "libraries"]
    assert "diffusers>=" in found.message
    assert "installed is 4.57.0" in found.message
    assert "tessera[video]" in found.cure


def test_a_model_that_is_nowhere_is_found_before_the_start(tmp_path: Path) -> None:
    (found,) = failures(settings_for(tmp_path, text={"model": "no-such-model"}))
    assert "no-such-model" in found.message
    assert "text.model" in found.cure


def test_the_sources_of_encoders_are_looked_at(tmp_path: Path) -> None:
    good, damaged = tmp_path / "good", tmp_path / "damaged"
    for path, config in ((good, {"architectures": ["BertModel"], "model_type": "bert"}), (damaged, [])):
        path.mkdir()
        (path / "config.json").write_text(json.dumps(config))
        (path / "tokenizer_config.json").write_text("{}")
    sources = [str(good), "nowhere", str(damaged), "english-voices"]
    settings = settings_for(
        tmp_path, text={"encoders": [{"source": source, "role": "embedding"} for source in sources]}
    )
    found = doctor.examine(settings, select("text,gateway", settings))
    encoders = [finding for finding in found if finding.subject == "encoder"]
    assert [finding.level for finding in encoders] == ["ok", "fail", "fail", "fail"]
    for number, finding in enumerate(encoders[1:], 2):
        assert sources[number - 1] in finding.message
        assert f"[[text.encoders]] number {number}" in finding.cure


def test_a_socket_path_that_is_too_long_is_found(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    (found,) = [finding for finding in failures(settings_for(deep), "video") if finding.subject == "redis"]
    assert "107" in found.message
    assert "--data" in found.cure


def test_a_redis_that_does_not_answer_is_found_and_its_password_is_not_shown(tmp_path: Path) -> None:
    url = "redis://:hidden@127.0.0.1:1/0"
    (found,) = [f for f in failures(settings_for(tmp_path, redis={"url": url}), "video") if f.subject == "redis"]
    assert "127.0.0.1:1" in found.message
    assert "hidden" not in found.message


def test_a_redis_of_yours_that_may_lose_jobs_is_warned_of(tmp_path: Path, redis_server: Any) -> None:
    from redis import Redis

    Redis.from_url(redis_server.url).config_set("maxmemory-policy", "allkeys-lru")
    settings = settings_for(tmp_path, redis={"url": redis_server.url})
    found = [f for f in doctor.examine(settings, select("video", settings)) if f.subject == "redis"]
    assert [finding.level for finding in found] == ["ok", "warn"]


def test_cuda_that_is_not_there_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "gpus", list)
    (found,) = failures(settings_for(tmp_path, text={"engine": {"device": "cuda"}}))
    assert "text shall run on CUDA" in found.message


def test_an_open_gateway_without_keys_is_warned_of(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, gateway={"host": "0.0.0.0"})
    findings = doctor.examine(settings, select("gateway", settings))
    assert [finding.subject for finding in findings if finding.level == "warn"] == ["keys"]


def test_memory_is_what_the_tightest_control_group_leaves(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    (proc / "self" / "cgroup").write_text("0::/pods/mine\n")
    (cgroup / "pods" / "mine").mkdir(parents=True)
    (cgroup / "pods" / "mine" / "memory.max").write_text("max\n")
    assert host.memory_available(proc, cgroup) == 8000 * 1024
    (cgroup / "pods" / "memory.max").write_text("5000000\n")
    (cgroup / "pods" / "memory.current").write_text("2000000\n")
    assert host.memory_available(proc, cgroup) == 3_000_000
    (cgroup / "pods" / "memory.stat").write_text("anon 1\ninactive_file 500000\n")
    assert host.memory_available(proc, cgroup) == 3_500_000


def test_a_selection_has_the_parts_it_needs_and_no_more(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, video={"workers": 2})
    named = {
        only: [part.name for part in parts(settings, select(only, settings))]
        for only in ("text,gateway", "video", "speech")
    }
    assert named == {
        "text,gateway": ["redis", "text", "response-worker", "gateway"],
        "video": ["redis", "video", "video-worker-1", "video-worker-2"],
        "speech": ["redis", "speech", "speech-worker"],
    }
    own = settings_for(tmp_path, redis={"url": "redis://elsewhere"})
    assert "redis" not in [part.name for part in parts(own, select(None, own))]
    assert select(None, load(None, environment={"TESSERA_GATEWAY__SERVICES": "text"})) == Selection(
        gateway=True, services=["text"]
    )


@pytest.mark.parametrize(
    ("address", "url"),
    [("0.0.0.0", "http://127.0.0.1:1"), ("::", "http://[::1]:1"), ("10.0.0.1", "http://10.0.0.1:1")],
)
def test_the_address_to_paste_is_one_that_can_be_reached(address: str, url: str) -> None:
    assert local_url(address, 1) == url


def test_the_lock_names_its_holder_only_while_it_is_held(tmp_path: Path) -> None:
    assert lock.holder(tmp_path) is None
    with lock.held(tmp_path):
        assert (tmp_path / lock.LOCK_FILE).read_text() == str(os.getpid())
    assert lock.holder(tmp_path) is None
