"""Chat templates: a directory's Jinja template, rendered in a sandbox as Transformers renders it.

Does not know tokens. Templates are data from strangers: the sandbox forbids attribute access, mutation and imports.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tessera.errors import InvalidRequestError, ModelLoadError


class ChatTemplate:
    """A model's way of writing a conversation as one text."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelLoadError(f"the model's chat template is broken: {error}") from error
        self._special_tokens = special_tokens

    @classmethod
    def of(cls, directory: Path) -> ChatTemplate | None:
        """The template of a model directory, or None when it has none."""
        config: dict[str, Any] = {}
        path = directory / "tokenizer_config.json"
        if path.is_file():
            config = json.loads(path.read_text(encoding="utf-8"))
        source = config.get("chat_template")
        if (directory / "chat_template.jinja").is_file():
            source = (directory / "chat_template.jinja").read_text(encoding="utf-8")
        elif (directory / "chat_template.json").is_file():
            source = json.loads((directory / "chat_template.json").read_text(encoding="utf-8"))["chat_template"]
        if isinstance(source, list):
            source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
        if source is None:
            return None
        tokens = {name: _token(config[name]) for name in config if name.endswith("_token") and config[name]}
        return cls(source, tokens)

    def render(self, messages: list[dict[str, Any]]) -> str:
        """The conversation with the beginning of the assistant's turn.

        Raises:
            InvalidRequestError: the template refuses the conversation (roles that do not alternate, …).
        """
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._special_tokens)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise InvalidRequestError(
                f"the model's chat template does not take this conversation: {error}", param="messages"
            ) from error


def _token(value: Any) -> str:
    return str(value["content"]) if isinstance(value, dict) else str(value)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
