"""Tools of a request as functions of a chat request, and which item a call of each becomes.

A function stays one. A custom tool, which takes any text, becomes a function with one string. A tool of a namespace is
named `<namespace>__<tool>`. A tool that the server would have to run is refused by its name, except a search of the
web: every Codex offers one, and a model that never searches answers the request all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tessera.errors import InvalidRequestError
from tessera.protocols.responses.client_tools import CLIENT_TOOLS
from tessera.wire.decoding import convert_json
from tessera.wire.responses.tools import (
    AllowedTools,
    ChosenTool,
    OfferedClientTool,
    OfferedCustomTool,
    OfferedFunction,
    OfferedNamespace,
    TextGrammar,
)
from tessera.wire.tools import Function, FunctionChoice, Tool, ToolChoice

NEVER_TAKEN = frozenset({"web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"})
"""Types of tools that may be offered and are left out."""
MOST_NAME = 64
"""Most characters of a function's name."""
INPUT = "input"
"""Name of the string that a custom tool's function takes."""
ToolKind = Literal["function", "custom", "local_shell", "shell", "apply_patch"]


@dataclass(frozen=True)
class CallableTool:
    """A tool as the model is offered it.

    Attributes:
        kind: decides the item of its calls.
        name: of the client.
        namespace: of the client; None for none.
        tool: the function of the chat request.
        shown: what the answer says was offered.
    """

    kind: ToolKind
    name: str
    namespace: str | None
    tool: Tool
    shown: dict[str, Any]


class OfferedTools:
    """The tools of one request.

    Args:
        given: the request's `tools`.
        choice: the request's `tool_choice`.

    Raises:
        InvalidRequestError: a tool is not known here, or has a wrong field; names its place.
    """

    def __init__(
        self, given: list[dict[str, Any]] | None, choice: Literal["none", "auto", "required"] | dict[str, Any] | None
    ) -> None:
        found = [tool for place, each in enumerate(given or []) for tool in _read(_cleaned(each), f"tools[{place}]")]
        self.by_name: dict[str, CallableTool] = {}
        for tool in found:
            name = tool.tool.function.name
            if name in self.by_name:
                raise InvalidRequestError(f"two of the `tools` are called {name!r}", param="tools")
            self.by_name[name] = tool
        self.choice: Literal["none", "auto", "required"] | ToolChoice | None = None
        self._choose(choice)

    @property
    def chat_tools(self) -> list[Tool] | None:
        """The tools of the chat request."""
        return [tool.tool for tool in self.by_name.values()] or None

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The tools as the answer shows them."""
        return [dict(shown) for shown in _once([tool.shown for tool in self.by_name.values()])]

    def called(self, name: str) -> CallableTool:
        """The tool that a call names; a function of that name if none was offered (an upstream may err)."""
        return self.by_name.get(name) or CallableTool("function", name, None, Tool(function=Function(name="x")), {})

    def _choose(self, choice: Literal["none", "auto", "required"] | dict[str, Any] | None) -> None:
        if not isinstance(choice, dict):
            self.choice = choice if self.by_name or choice == "required" else None
            return
        if choice.get("type") == "allowed_tools":
            allowed = convert_json(choice, AllowedTools, at="tool_choice")
            named = [self._find(each, f"tool_choice.tools[{place}]") for place, each in enumerate(allowed.tools)]
            self.by_name = {tool.tool.function.name: tool for tool in named}
            self.choice = allowed.mode if named else None
            return
        tool = self._find(choice, "tool_choice")
        self.choice = ToolChoice(function=FunctionChoice(tool.tool.function.name))

    def _find(self, given: dict[str, Any], at: str) -> CallableTool:
        chosen = convert_json(_cleaned(given), ChosenTool, at=at)
        for tool in self.by_name.values():
            same = tool.name == chosen.name and chosen.namespace in {None, tool.namespace}
            if tool.kind == chosen.type and (same or chosen.type in CLIENT_TOOLS):
                return tool
        named = chosen.name or chosen.type
        raise InvalidRequestError(f"`{at}` names {named!r}, which is none of the `tools`", param=at)


def _cleaned(given: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


def _once(shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each object once: the tools of a namespace are shown by it."""
    return list({id(each): each for each in shown}.values())


def _read(given: dict[str, Any], at: str) -> Iterator[CallableTool]:
    kind = given.get("type")
    if kind == "namespace":
        space = convert_json(given, OfferedNamespace, at=at)
        for place, each in enumerate(space.tools):
            inner = f"{at}.tools[{place}]"
            if each.get("type") not in {"function", "custom"}:
                raise _refused(each.get("type"), inner, "a namespace holds functions and custom tools")
            yield _one(_cleaned(each), inner, space.name, given)
    elif kind in {"function", "custom"} or kind in CLIENT_TOOLS:
        yield _one(given, at, None, given)
    elif kind not in NEVER_TAKEN:
        raise _refused(kind, at, "no tool runs on this server; offer a function, and run it yourself")


def _one(given: dict[str, Any], at: str, namespace: str | None, shown: dict[str, Any]) -> CallableTool:
    kind = given["type"]
    if kind == "function":
        function = convert_json(given, OfferedFunction, at=at)
        name = _named(function.name, namespace, at)
        # The SDK's types want both of these fields.
        shown = {"parameters": None, "strict": None, **given} if namespace is None else shown
        tool = Tool(function=Function(name=name, description=function.description, parameters=function.parameters))
        return CallableTool("function", function.name, namespace, tool, shown)
    if kind == "custom":
        custom = convert_json(given, OfferedCustomTool, at=at)
        name = _named(custom.name, namespace, at)
        return CallableTool("custom", custom.name, namespace, _function_of(custom, name), shown)
    tool_of_client = convert_json(given, OfferedClientTool, at=at)
    fixed = CLIENT_TOOLS[tool_of_client.type]
    if tool_of_client.environment is not None and tool_of_client.environment.get("type") != "local":
        raise _refused(f"{kind} in a container", f"{at}.environment", "this server has no containers")
    tool = Tool(function=Function(name=tool_of_client.type, description=fixed.description, parameters=fixed.parameters))
    return CallableTool(tool_of_client.type, tool_of_client.type, None, tool, shown)


def _named(name: str, namespace: str | None, at: str) -> str:
    full = f"{namespace}__{name}" if namespace else name
    if len(full) > MOST_NAME:
        raise InvalidRequestError(
            f"`{at}.name`: {full!r} has {len(full)} characters; with its namespace a name has at most {MOST_NAME}",
            param=f"{at}.name",
        )
    return full


def _function_of(custom: OfferedCustomTool, name: str) -> Tool:
    described = [custom.description] if custom.description else []
    if isinstance(custom.format, TextGrammar):
        described.append(f"The input follows this grammar ({custom.format.syntax}):\n{custom.format.definition}")
    parameters = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
    return Tool(function=Function(name=name, description="\n\n".join(described) or None, parameters=parameters))


def _refused(kind: object, at: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"`{at}`: {kind!r} is not a tool here: {reason}", param=at, code="unsupported_parameter")


def custom_input(arguments: str) -> str:
    """The text of a custom tool's call; arguments that are not the object they should be are the text themselves."""
    try:
        decoded = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = decoded.get(INPUT) if isinstance(decoded, dict) else None
    return text if isinstance(text, str) else arguments


def custom_arguments(text: str) -> str:
    """The arguments of a call of a custom tool with this text."""
    return json.dumps({INPUT: text}, ensure_ascii=False)
