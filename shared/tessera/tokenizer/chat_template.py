"""Chat templates: a model directory's Jinja template, rendered in a sandbox as Transformers renders it.

Does not know tokens. Templates come from strangers: the sandbox forbids attribute access, mutation and imports.
"""

from __future__ import annotations

import json
import secrets
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.tokenizer.model_files import read_object, read_object_if_there

_REFUSALS = (
    *(jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError),
)
"""What templates raise for conversations that they do not take."""


class ChatTemplate:
    """A model's template, which writes a conversation as one text.

    Args:
        source: the template.
        special_tokens: spellings of the special tokens by their names in the template, such as `bos_token`.
        with_tools: the template for conversations with tools, where the model has another one.

    Attributes:
        source: the text of all templates.
        variables: names that a template reads and does not set.
    """

    def __init__(self, source: str, special_tokens: dict[str, str], with_tools: str | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(source)
            self._with_tools = self._template if with_tools is None else environment.from_string(with_tools)
            trees = [environment.parse(text) for text in (source, with_tools) if text is not None]
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelLoadError(f"the model's chat template is broken: {error}") from error
        self._special_tokens = special_tokens
        self.source = "\n".join(filter(None, (source, with_tools)))
        self.variables = frozenset().union(*(meta.find_undeclared_variables(tree) for tree in trees))

    @classmethod
    def of(cls, directory: Path) -> ChatTemplate | None:
        """The template of a model directory; None when it has none."""
        path = directory / "tokenizer_config.json"
        config = read_object_if_there(path)
        source = config.get("chat_template")
        if (directory / "chat_template.jinja").is_file():
            source = _jinja_text(directory / "chat_template.jinja")
        elif (directory / "chat_template.json").is_file():
            path = directory / "chat_template.json"
            source = read_object(path).get("chat_template")
        with_tools = None
        if isinstance(source, list):
            named = {entry.get("name"): entry.get("template") for entry in source if _is_named(entry)}
            with_tools, source = named.get("tool_use"), named.get("default")
        if source is None:
            return None
        if not isinstance(source, str) or not isinstance(with_tools, str | None):
            raise ModelLoadError(f"`chat_template` of {path} must be a text, or a list of named ones")
        return cls(source, special_tokens_of(directory), with_tools)

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        variables: dict[str, Any] | None = None,
        opens_turn: bool = True,
        continues: bool = False,
    ) -> str:
        """Write a conversation and the beginning of the assistant's turn.

        Args:
            messages: dictionaries with `role`, `content` and whatever else the template reads.
            tools: JSON descriptions of the tools that the model may call.
            variables: values of the template's own variables.
            opens_turn: whether the text ends with the beginning of the assistant's turn.
            continues: whether the text ends within the last message, so that the assistant goes on with it. Needs
                `opens_turn` to be false.

        Raises:
            InvalidRequestError: the template refuses the conversation, for example because roles do not alternate.
        """
        if continues:
            mark = f"[{secrets.token_hex(8)}] "
            text = self.render(marked(messages, mark), tools=tools, variables=variables, opens_turn=False)
            return up_to_mark(text, mark)
        try:
            template = self._with_tools if tools else self._template
            given = {**self._special_tokens, **(variables or {}), "messages": messages, "tools": tools}
            return template.render(given, add_generation_prompt=opens_turn)
        except _REFUSALS as error:
            raise InvalidRequestError(
                f"the model's chat template does not take this conversation: {error}", param="messages"
            ) from error

    @cached_property
    def text_arguments(self) -> bool:
        """Whether the template takes the arguments of calls as JSON texts, as DeepSeek's do; most take objects."""
        written = self._with_call("", {"probe": 1})
        if written is not None and "{'probe'" not in written:
            return False
        return self._with_call("", '{"probe": 1}') is not None

    @cached_property
    def null_content(self) -> bool:
        """Whether a message with calls alone may have no content; some templates write an extra turn for empty
        content."""
        written = self._with_call(None, '{"probe": 1}' if self.text_arguments else {"probe": 1})
        return written is not None and "None" not in written

    def _with_call(self, content: str | None, arguments: Any) -> str | None:
        """The text of a conversation with a tool call; None when the template refuses it."""
        call = {"id": "callprobe", "type": "function", "function": {"name": "probe", "arguments": arguments}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "content": "y", "name": "probe", "tool_call_id": "callprobe"},
        ]
        try:
            return self.render(messages)
        except InvalidRequestError:
            return None


def special_tokens_of(directory: Path) -> dict[str, str]:
    """Spellings of a model's special tokens, by their names in templates, such as `bos_token`."""
    config = read_object_if_there(directory / "tokenizer_config.json")
    return {name: _token(config[name]) for name in config if name.endswith("_token") and config[name]}


def marked(messages: list[dict[str, Any]], mark: str) -> list[dict[str, Any]]:
    """Messages whose last one has a mark behind its text.

    Raises:
        InvalidRequestError: the last message has no text that an answer could go on with.
    """
    last = dict(messages[-1])
    content = last.get("content")
    if isinstance(content, str):
        last["content"] = content + mark
        return [*messages[:-1], last]
    parts = [dict(part) for part in content or []]
    for part in reversed(parts):
        if "text" in part:
            part["text"] += mark
            return [*messages[:-1], last | {"content": parts}]
    raise InvalidRequestError(
        "`continue_final_message`: the last message has no text to go on with", param="continue_final_message"
    )


def up_to_mark(text: str, mark: str) -> str:
    """A rendered text up to the mark. Where the template has trimmed the message, what is before the mark is, too.

    Raises:
        InvalidRequestError: the template does not write the end of the message.
    """
    place = text.rfind(mark.strip())
    if place < 0:
        raise InvalidRequestError(
            "`continue_final_message`: the model's chat template does not write the end of the last message",
            param="continue_final_message",
        )
    return text[:place] if text[place:].startswith(mark) else text[:place].rstrip()


class _GenerationTag(Extension):
    """Jinja's `{% generation %}`, which marks the assistant's text for training. Rendering ignores the marks."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _jinja_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error


def _is_named(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("name"), str)


def _token(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
