"""Clients from npm: Vercel's AI SDK in its defaults, Codex CLI and Claude Code, each against the gateway."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(command: list[str], directory: Path, environment: dict[str, str], seconds: float = 120) -> str:
    """Run a client in a home of its own; a failure shows what it said."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    done = subprocess.run(
        command,
        cwd=directory,
        env={**kept, "HOME": str(directory), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.mark.parametrize("provider", ["openai", "openai-chat", "anthropic", "compatible"])
def test_the_ai_sdk_streams_and_calls_a_tool(gateway, node, tmp_path, provider):
    (script := node / "ai_sdk.mjs").write_text((HERE / "node" / "ai_sdk.mjs").read_text())
    environment = {"GATEWAY": gateway.url, "KEY": gateway.key, "TEXT": gateway.text, "SCRIPTED": gateway.scripted}
    said = json.loads(run(["node", str(script), provider], tmp_path, environment).splitlines()[-1])
    assert said["streamed"]
    assert said["called"] == ["Rome"]
    assert "Sunny" in said["answer"]


def test_codex_runs_a_command_and_reports(gateway, node, tmp_path):
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text(
        f'model = "{gateway.scripted}"\nmodel_provider = "tessera"\n[model_providers.tessera]\nname = "Tessera"\n'
        f'base_url = "{gateway.v1}"\nenv_key = "TESSERA_KEY"\nwire_api = "responses"\n'
    )
    arguments = json.dumps({"command": ["bash", "-lc", "echo was-here"], "cmd": "echo was-here"})
    said = run(
        [
            *(str(node / "node_modules" / ".bin" / "codex"), "exec", "--skip-git-repo-check", "--json"),
            *("--dangerously-bypass-approvals-and-sandbox", f"CALL exec_command|shell_command|shell {arguments}"),
        ],
        tmp_path,
        {"TESSERA_KEY": gateway.key},
    )
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    assert any("was-here" in item.get("aggregated_output", "") for item in items), said
    assert any("was-here" in item.get("text", "") for item in items if item["type"] == "agent_message"), said


def test_claude_code_uses_a_tool_and_reports(gateway, node, tmp_path):
    (tmp_path / "note.txt").write_text("the note was read\n")
    arguments = json.dumps({"file_path": str(tmp_path / "note.txt")})
    said = run(
        [
            *(str(node / "node_modules" / ".bin" / "claude"), "-p", f"CALL Read {arguments} END"),
            *("--output-format", "json", "--model", gateway.scripted, "--allowedTools", "Read"),
        ],
        tmp_path,
        {
            "ANTHROPIC_BASE_URL": gateway.url,
            "ANTHROPIC_API_KEY": gateway.key,
            "ANTHROPIC_SMALL_FAST_MODEL": gateway.scripted,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": gateway.scripted,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
    )
    result = json.loads(said.splitlines()[-1])
    assert not result["is_error"], said
    assert "the note was read" in result["result"], said
