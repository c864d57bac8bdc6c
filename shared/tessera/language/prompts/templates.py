"""Which template writes the prompt of a request: the model's own, or the request's where the operator allows that.

Knows no message.
"""

from __future__ import annotations

import threading
from pathlib import Path

from tessera.errors import InvalidRequestError, OverloadedError
from tessera.tokenizer.chat_template import ChatTemplate, special_tokens_of
from tessera.tokenizer.request_template import RequestTemplate
from tessera.wire.chat import ChatCompletionRequest

MAX_RUNNING = 2
"""Templates of requests that are compiled at the same time: each has a process of its own."""


class Templates:
    """The templates that one model's requests may have.

    Args:
        directory: of the model.
        model: its id, for errors.
        allowed: whether a request may bring its own.
        setting: name of the setting that says so, for errors.

    Attributes:
        own: the model's template; None if it has none.
    """

    def __init__(self, directory: Path, model: str, *, allowed: bool, setting: str) -> None:
        self.own = ChatTemplate.of(directory)
        self._special_tokens = special_tokens_of(directory)
        self._model = model
        self._allowed = allowed
        self._setting = setting
        self._running = threading.Semaphore(MAX_RUNNING)

    def check(self, request: ChatCompletionRequest) -> None:
        """Refuse a request that has no template, before anything else of it is read.

        Raises:
            InvalidRequestError: requests may not bring templates, or there is none at all.
        """
        if request.chat_template is None and self.own is None:
            raise InvalidRequestError(
                f"the model {self._model!r} has no chat template; use /v1/completions", param="messages"
            )
        if request.chat_template is not None and not self._allowed:
            raise InvalidRequestError(
                f"`chat_template`: requests may not bring templates here; the setting `{self._setting}` allows them",
                param="chat_template",
            )

    def of(self, request: ChatCompletionRequest) -> ChatTemplate:
        """The template of a request. Waits for a process if it is the request's own: call it in a thread.

        Raises:
            InvalidRequestError: as `check`, or the request's template is broken.
            OverloadedError: too many templates are being compiled.
        """
        self.check(request)
        if request.chat_template is None:
            assert self.own is not None
            return self.own
        if not self._running.acquire(timeout=1):
            raise OverloadedError("too many templates are being compiled; try again later", retry_after=1.0)
        try:
            return RequestTemplate(request.chat_template, self._special_tokens)
        finally:
            self._running.release()
