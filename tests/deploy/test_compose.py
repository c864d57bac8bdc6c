"""The compose files are valid, publish only the gateway, and build what each part needs and no more."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tessera.settings import load as settings
from tessera.settings.example import example

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name(name)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)


def composed(*files: str) -> dict[str, Any]:
    arguments = [word for file in files for word in ("-f", str(COMPOSE / file))]
    done = run("docker-compose", *arguments, "config", "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return composed("compose.yaml")["services"]


def test_compose_is_valid_with_and_without_gpus(services: dict[str, Any]) -> None:
    workers = {"response-worker", "video-worker", "speech-worker"}
    assert set(services) == {"redis", "gateway", "text", "vision", "video", "speech"} | workers
    with_gpus = composed("compose.yaml", "compose.gpu.yaml")["services"]
    for name, service in with_gpus.items():
        reserved = service["deploy"]["resources"].get("reservations", {}).get("devices", [])
        wanted = 1 if name in {"text", "vision", "video-worker", "speech"} else 0
        assert len(reserved) == wanted, name
        assert "memory" in service["deploy"]["resources"]["limits"], name


def test_only_the_gateway_is_published_and_only_to_this_machine(services: dict[str, Any]) -> None:
    published = {name: service["ports"] for name, service in services.items() if service.get("ports")}
    assert list(published) == ["gateway"]
    (port,) = published["gateway"]
    assert (port["host_ip"], port["target"]) == ("127.0.0.1", 8000)


def test_images_set_for_libraries_what_the_suite_sets_for_its_own_processes() -> None:
    environment = (COMPOSE / "Dockerfile").read_text().partition("\nENV PATH")[2].partition("\nWORKDIR")[0].split()
    for name, value in settings.CHILD_ENVIRONMENT.items():
        assert f"{name}={value}" in environment


def test_parts_run_unprivileged_under_an_init_with_a_read_only_root(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["init"] is True, name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert all(part.isdigit() and part != "0" for part in service["user"].split(":")), name


def test_everybody_but_workers_has_a_health_check_in_a_language_that_the_image_has(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if name.endswith("-worker"):
            assert "healthcheck" not in service
        else:
            assert service["healthcheck"]["test"][1] in {"python", "redis-cli"}, name
    for name in ("gateway", "response-worker", "video", "video-worker", "speech", "speech-worker"):
        assert services[name]["depends_on"]["redis"]["condition"] == "service_healthy"


def test_health_checks_ask_the_port_that_the_settings_name(services: dict[str, Any]) -> None:
    for name in ("gateway", "text", "vision", "video", "speech"):
        known = settings.load(COMPOSE / "tessera.toml", environment=without_config(services[name]["environment"]))
        port = getattr(known, name).port
        (check,) = [word for word in services[name]["healthcheck"]["test"] if "urlopen" in word]
        assert f"http://127.0.0.1:{port}/" in check
        if name != "gateway":
            assert known.service_url(name) == f"http://{name}:{port}"
        compile(check, "healthcheck", "exec")


def without_config(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != "TESSERA_CONFIG"}


def test_keys_reach_the_gateway_and_nobody_else(services: dict[str, Any]) -> None:
    holders = [
        name for name, service in services.items() if "TESSERA_GATEWAY__API_KEYS" in service.get("environment", {})
    ]
    assert holders == ["gateway"]


def test_the_documented_settings_are_those_of_this_version() -> None:
    assert (COMPOSE / "tessera.toml").read_text() == example(), "run `tessera config > compose/tessera.toml`"
    assert settings.load(COMPOSE / "tessera.toml", environment={}) == settings.Settings()


def test_the_dockerfile_is_clean_and_builds_with_the_classic_builder() -> None:
    done = run("hadolint", "compose/Dockerfile")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    text = (COMPOSE / "Dockerfile").read_text()
    for word in ("# syntax", "--mount", "<<"):
        assert word not in text


def test_the_build_context_has_everything_that_is_copied_and_no_more() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied: set[str] = set()
    for line in (COMPOSE / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            copied |= set(line.split()[1:-1])
    assert copied == allowed
    assert all((ROOT / path).exists() for path in copied)


@pytest.mark.parametrize("extra", ["", "text", "vision", "video", "speech", "text,gpu"])
def test_images_install_what_their_extra_needs_and_the_gateway_no_torch(extra: str) -> None:
    done = subprocess.run(
        [sys.executable, str(COMPOSE / "requirements.py"), "pyproject.toml", extra],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=30,
    )
    lines = done.stdout.split("\n")
    assert any(line.startswith("torch>") for line in lines) == bool(extra)
    assert any(line.startswith("xgrammar") for line in lines) == extra.endswith("gpu")
    assert not any(line.startswith("tessera") for line in lines)
    for name in filter(None, extra.split(",")):
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][name]
        assert {line for line in declared if not line.startswith("tessera[")} <= set(lines)


def test_commands_name_modules_that_exist(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if name != "redis":
            assert importlib.util.find_spec(service["command"][-1]) is not None, name


def test_a_container_has_more_time_to_end_than_its_server_takes_to_drain(services: dict[str, Any]) -> None:
    http = settings.load(COMPOSE / "tessera.toml", environment={}).http
    for name in ("gateway", "text", "vision", "video", "speech"):
        grace = sum(
            int(number) * {"m": 60, "s": 1}[unit]
            for number, unit in re.findall(r"(\d+)([ms])", services[name]["stop_grace_period"])
        )
        assert grace >= http.unready_s + http.drain_s + 10, name
