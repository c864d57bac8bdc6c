"""The tools of a client whose parameters OpenAI has fixed: `local_shell`, `shell` and `apply_patch`.

The model is offered a function for each; its arguments become the item that the client expects, and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tessera.wire.responses.items import ApplyPatchCallItem, LocalShellCallItem, ShellCallItem

ClientCallItem = LocalShellCallItem | ShellCallItem | ApplyPatchCallItem


@dataclass(frozen=True)
class FixedTool:
    """One of these tools.

    Attributes:
        description: tells the model what it does.
        parameters: JSON schema of the function's arguments.
        prefix: beginning of its items' ids.
        item: makes the item of a call: id, id of the call, arguments, whether the call is complete.
        arguments: the arguments of an item that came back.
    """

    description: str
    parameters: dict[str, Any]
    prefix: str
    item: Callable[[str, str, dict[str, Any], bool], ClientCallItem]
    arguments: Callable[[Any], dict[str, Any]]


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [str(each) for each in value] if isinstance(value, list) else []


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _local_shell(identity: str, call: str, given: dict[str, Any], complete: bool) -> ClientCallItem:
    environment = given.get("env")
    action = {
        "type": "exec",
        "command": _strings(given.get("command")),
        "env": {str(key): str(value) for key, value in environment.items()} if isinstance(environment, dict) else {},
        "timeout_ms": _number(given.get("timeout_ms")),
        "working_directory": _text(given.get("working_directory")),
    }
    return LocalShellCallItem(
        id=identity, call_id=call, action=action, status="completed" if complete else "in_progress"
    )


def _shell(identity: str, call: str, given: dict[str, Any], complete: bool) -> ClientCallItem:
    action = {
        "commands": _strings(given.get("commands")),
        "timeout_ms": _number(given.get("timeout_ms")),
        "max_output_length": _number(given.get("max_output_length")),
    }
    return ShellCallItem(id=identity, call_id=call, action=action, status="completed" if complete else "in_progress")


def _apply_patch(identity: str, call: str, given: dict[str, Any], complete: bool) -> ClientCallItem:
    kind, path, diff = given.get("type"), _text(given.get("path")) or "", _text(given.get("diff")) or ""
    operation: dict[str, Any] = {"type": "delete_file", "path": path}
    if kind != "delete_file":
        operation = {"type": "create_file" if kind == "create_file" else "update_file", "path": path, "diff": diff}
    return ApplyPatchCallItem(
        id=identity, call_id=call, operation=operation, status="completed" if complete else "in_progress"
    )


def _known(action: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in action.items() if value is not None and key != "type"}


_SECONDS = {"type": "integer", "description": "Milliseconds that it may take."}
CLIENT_TOOLS: dict[str, FixedTool] = {
    "local_shell": FixedTool(
        description="Run a command on the user's machine.",
        parameters={
            "type": "object",
            "properties": {
                "command": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "The program and its arguments.",
                },
                "working_directory": {"type": "string"},
                "timeout_ms": _SECONDS,
            },
            "required": ["command"],
        },
        prefix="lsh",
        item=_local_shell,
        arguments=lambda item: _known(item.action),
    ),
    "shell": FixedTool(
        description="Run commands in a shell on the user's machine, one after the other.",
        parameters={
            "type": "object",
            "properties": {
                "commands": {"type": "array", "items": {"type": "string"}},
                "timeout_ms": _SECONDS,
                "max_output_length": {"type": "integer"},
            },
            "required": ["commands"],
        },
        prefix="sh",
        item=_shell,
        arguments=lambda item: _known(item.action),
    ),
    "apply_patch": FixedTool(
        description="Create, change or delete a file of the user. `diff` is a V4A diff; leave it out to delete.",
        parameters={
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                "path": {"type": "string"},
                "diff": {"type": "string"},
            },
            "required": ["type", "path"],
        },
        prefix="apc",
        item=_apply_patch,
        arguments=lambda item: dict(item.operation),
    ),
}
"""By the type of the tool, which is also the name of its function."""
