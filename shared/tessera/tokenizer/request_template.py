"""A chat template that came with a request: strangers' code, so it is compiled and rendered in a process of its own.

The process has no secrets in its environment, bounds its memory and its processor time, and is killed when it takes too
long. All methods wait for it: call them in a thread. Knows nothing about settings, which allow such templates or not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cached_property
from typing import Any

import msgspec

from tessera.errors import InvalidRequestError
from tessera.tokenizer.chat_template import ChatTemplate
from tessera.tokenizer.template_process import TemplateJob, TemplateResult

TIMEOUT_S = 8.0
"""Seconds of waiting for a template's process, its start included, on a busy machine."""


class RequestTemplate(ChatTemplate):
    """A template of a client; the same as `ChatTemplate`, except that its code runs elsewhere.

    Args:
        source: the template.
        special_tokens: spellings of the model's special tokens by their names in templates.

    Raises:
        InvalidRequestError: the template is broken, or takes too long or too much memory.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        self.source = source
        self._special_tokens = special_tokens
        self._described = self._run(TemplateJob(source=source, special_tokens=special_tokens))
        self.variables = frozenset(self._described.variables)

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        variables: dict[str, Any] | None = None,
        opens_turn: bool = True,
        continues: bool = False,
    ) -> str:
        """Write a conversation as `ChatTemplate.render` says."""
        job = TemplateJob(
            source=self.source,
            special_tokens=self._special_tokens,
            messages=messages,
            tools=tools,
            variables=variables or {},
            opens_turn=opens_turn,
            continues=continues,
        )
        return self._run(job).text

    @cached_property
    def text_arguments(self) -> bool:
        """Whether the template takes the arguments of calls as JSON texts, as `ChatTemplate.text_arguments` says."""
        return self._described.text_arguments

    @cached_property
    def null_content(self) -> bool:
        """Whether a message with calls alone may have no content, as `ChatTemplate.null_content` says."""
        return self._described.null_content

    def _run(self, job: TemplateJob) -> TemplateResult:
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tessera.tokenizer.template_process"],
                input=msgspec.json.encode(job),
                capture_output=True,
                timeout=TIMEOUT_S,
                env=environment,
                check=False,
            )
            result = msgspec.json.decode(done.stdout, type=TemplateResult)
        except (subprocess.TimeoutExpired, msgspec.DecodeError) as error:
            raise InvalidRequestError(
                "`chat_template` takes too long or too much memory to compile or to render", param="chat_template"
            ) from error
        if result.problem:
            raise InvalidRequestError(f"`chat_template`: {result.problem}", param=result.param or "chat_template")
        return result
