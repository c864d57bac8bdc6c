"""Prepares a conversation for a template: messages as dictionaries, tools, and the template's own variables.

All text from users passes through a `Hide`, so that a control token that they spell is not taken for a real one. The
service makes the content of each message, because that depends on the modality (images).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from tessera.errors import InvalidRequestError
from tessera.language.parsers.dialects import Dialect
from tessera.tokenizer.chat_template import ChatTemplate
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.conversation import ASSISTANT_FIELDS, ImagePart, Message, Part, RefusalText, TextPart

Hide = Callable[[str, str], str]
"""Replaces control tokens: a text and the field that it came from → a text that spells no control token."""
MOST_DEPTH = 32
"""Most levels of nesting in a JSON value from a user."""
_OURS = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"})


def template_message(message: Message, index: int, content: Any, hide: Hide, *, text_arguments: bool) -> dict[str, Any]:
    """One message as a template expects it.

    Args:
        message: of the request, whose role `spoken` has checked.
        index: of the message, for errors.
        content: the message's content as the service has made it.
        hide: replaces control tokens in the other texts.
        text_arguments: whether the arguments of tool calls stay JSON texts (`ChatTemplate.text_arguments`).

    Raises:
        InvalidRequestError: a result names no call, or the arguments of a call are no JSON object.
    """
    at = f"messages[{index}]"
    fields: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": content}
    if message.name is not None:
        fields["name"] = hide(message.name, f"{at}.name")
    if message.role == "tool":
        if message.tool_call_id is None:
            param = f"{at}.tool_call_id"
            raise InvalidRequestError(f"`{param}` is required", param=param, code="missing_required_parameter")
        fields["tool_call_id"] = hide(message.tool_call_id, f"{at}.tool_call_id")
    if message.thought is not None:
        fields["reasoning_content"] = hide(message.thought, f"{at}.reasoning_content")
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": hide(call.id, f"{at}.tool_calls[{place}].id"),
                "type": "function",
                "function": {
                    "name": hide(call.function.name, f"{at}.tool_calls[{place}].function.name"),
                    "arguments": _arguments(
                        call.function.arguments, f"{at}.tool_calls[{place}].function", hide, as_text=text_arguments
                    ),
                },
            }
            for place, call in enumerate(message.tool_calls)
        ]
    return fields


def check_role(message: Message, at: str) -> None:
    """Refuse what only the assistant says in a message of another role, and calls in the form before tools.

    Raises:
        InvalidRequestError: names the field.
    """
    if message.function_call:
        param = f"{at}.function_call"
        raise InvalidRequestError(f"`{param}` is the form before 2023: send `tool_calls` instead", param=param)
    if message.role == "assistant":
        return
    for name in ASSISTANT_FIELDS:
        if getattr(message, name):
            raise InvalidRequestError(f"`{at}.{name}` is only for the assistant", param=f"{at}.{name}")
    for place, part in enumerate(message.content if isinstance(message.content, list) else []):
        if isinstance(part, RefusalText):
            param = f"{at}.content[{place}]"
            raise InvalidRequestError(f"`{param}`: a refusal is only for the assistant", param=param)


def spoken(message: Message, at: str) -> str | list[Part]:
    """What a message says: its content, or the refusal that stands in its place.

    Raises:
        InvalidRequestError: the message says nothing, calls nothing and thinks nothing, or has fields that its role
            does not allow.
    """
    check_role(message, at)
    if message.content is not None:
        return message.content
    if message.refusal is not None and message.role == "assistant":
        return message.refusal
    if not message.tool_calls and message.thought is None:
        raise InvalidRequestError(f"`{at}.content` is empty", param=f"{at}.content")
    return ""


def text_of(part: Part, param: str) -> str:
    """The text of a part, once recordings and files have been read (`language/attachments`).

    Raises:
        InvalidRequestError: the part is no text.
    """
    if isinstance(part, TextPart):
        return part.text
    if isinstance(part, RefusalText):
        return part.refusal
    if isinstance(part, ImagePart):
        raise InvalidRequestError(
            f"`{param}` is an image, but this model reads only text; /v1/models lists models with `vision`",
            param=param,
        )
    raise InvalidRequestError(f"`{param}`: recordings and files are not read here", param=param)


def render_prompt(
    template: ChatTemplate,
    dialect: Dialect,
    request: ChatCompletionRequest,
    messages: list[dict[str, Any]],
    hide: Hide,
    *,
    as_content: Callable[[str], Any],
) -> str:
    """The text of a request's prompt.

    Args:
        template: of the model.
        dialect: whether the template takes tools, and how a call is written.
        request: its tools and template variables are read.
        messages: made by `template_message`.
        hide: replaces control tokens in the texts of tools and variables.
        as_content: converts a text to the form of content that the service's messages have.

    Raises:
        InvalidRequestError: the template does not have a variable, or refuses the conversation.
    """
    tools = [hide_control_tokens(msgspec.to_builtins(_plain(tool)), hide, "tools") for tool in request.offered]
    if "tool_calls" not in template.source:
        messages = calls_as_text(messages, as_content)
    described = dialect.described if request.chat_template is None else "tools" not in template.variables
    if described and tools:
        messages = describe_tools(messages, tools, dialect, as_content)
        tools = []
    continues = request.continue_final_message
    if continues and request.add_generation_prompt:
        raise InvalidRequestError(
            "`add_generation_prompt` opens a new turn, where `continue_final_message` goes on with the last: give one",
            param="add_generation_prompt",
        )
    opens = not continues if request.add_generation_prompt is None else request.add_generation_prompt
    variables = _variables(template, request, hide)
    return template.render(messages, tools=tools or None, variables=variables, opens_turn=opens, continues=continues)


def hide_control_tokens(value: Any, hide: Hide, param: str, depth: int = 0) -> Any:
    """A JSON value in which control tokens are replaced in every text, including keys.

    Raises:
        InvalidRequestError: the value is nested too deeply.
    """
    if depth > MOST_DEPTH:
        raise InvalidRequestError(f"`{param}` is nested more than {MOST_DEPTH} levels deep", param=param)
    if isinstance(value, str):
        return hide(value, param)
    if isinstance(value, list):
        return [hide_control_tokens(one, hide, param, depth + 1) for one in value]
    if isinstance(value, dict):
        return {hide(key, param): hide_control_tokens(one, hide, param, depth + 1) for key, one in value.items()}
    return value


def calls_as_text(messages: list[dict[str, Any]], as_content: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Messages for a template that knows no tool calls: calls and their results become texts."""
    rewritten: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{_text(message['content'])}\n</tool_response>"
            rewritten.append({"role": "user", "content": as_content(text)})
        elif "tool_calls" in message:
            calls = [json.dumps(call["function"], ensure_ascii=False) for call in message["tool_calls"]]
            texts = [_text(message["content"]), *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)]
            rewritten.append({"role": "assistant", "content": as_content("\n".join(filter(None, texts)))})
        else:
            rewritten.append(message)
    return rewritten


def describe_tools(
    messages: list[dict[str, Any]], tools: list[Any], dialect: Dialect, as_content: Callable[[str], Any]
) -> list[dict[str, Any]]:
    """Messages for a template that takes no tools: a system message lists them and says how to call one."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    system = f"{_INSTRUCTION}\n{dialect.example()}\n<tools>\n{listed}\n</tools>"
    if messages and messages[0]["role"] == "system":
        system = f"{_text(messages[0]['content'])}\n\n{system}"
        messages = messages[1:]
    return [{"role": "system", "content": as_content(system)}, *messages]


_INSTRUCTION = (
    "You may call functions. Their signatures are within <tools></tools>. To call one, write its name and "
    "its arguments as JSON in this way:"
)


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")


def _plain(tool: Any) -> dict[str, Any]:
    """A tool as templates expect it: always with `parameters`, and without fields that the request left out."""
    function: dict[str, Any] = {"name": tool.function.name}
    if tool.function.description is not None:
        function["description"] = tool.function.description
    function["parameters"] = tool.function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _arguments(text: str, param: str, hide: Hide, *, as_text: bool) -> Any:
    param = f"{param}.arguments"
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(f"`{param}` is not valid JSON: {error}", param=param) from error
    if not isinstance(value, dict):
        raise InvalidRequestError(f"`{param}` must be a JSON object", param=param)
    arguments = hide_control_tokens(value, hide, param)
    return json.dumps(arguments, ensure_ascii=False) if as_text else arguments


def _variables(template: ChatTemplate, request: ChatCompletionRequest, hide: Hide) -> dict[str, Any]:
    variables = dict(request.chat_template_kwargs or {})
    for name, value in variables.items():
        param = f"chat_template_kwargs.{name}"
        if name in _OURS or name.endswith("_token") or name not in template.variables:
            raise InvalidRequestError(f"`{param}` is not a variable of this model's chat template", param=param)
        variables[name] = hide_control_tokens(value, hide, param)
    effort = request.reasoning_effort
    if effort is not None:
        if "reasoning_effort" in template.variables:
            variables.setdefault(
                "reasoning_effort", {"none": "low", "minimal": "low", "xhigh": "high"}.get(effort, effort)
            )
        elif switch := next((name for name in ("enable_thinking", "thinking") if name in template.variables), None):
            variables.setdefault(switch, effort != "none")
        # Without either, the model has no thoughts that could be longer or shorter.
    return variables
