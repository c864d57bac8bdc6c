"""What schemathesis cannot find out from the document: names of models and resources that exist. Loaded by its command.

Without this nearly every request ends at "there is no such model" or "the text is empty". Besides, answers are kept
short, so that a run takes minutes, and no request sets a deadline that it may miss: 504 is what that asks for.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import schemathesis

MODELS: dict[str, str] = json.loads(os.environ["DOCUMENT_MODELS"])
"""Model of a route, by how the route's path begins; the longest beginning counts."""
RESOURCES: dict[str, str] = json.loads(os.environ["DOCUMENT_RESOURCES"])
"""Identifier that stands for a parameter of a path."""
STATUSES = "statuses.txt"
LONGEST_ANSWER = 4
"""Most tokens of an answer."""
SHORTEST_DEADLINE_S = 60
LONGEST_TEXT = 1000
"""Most characters of a text: a whole context of them keeps two cores busy for many seconds."""
LIMITS = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
"""The parameter that bounds a route's answers."""
TEXTS = frozenset({"content", "documents", "input", "inputs", "prompt", "query", "text", "text_1", "text_2", "texts"})
"""Parameters that hold texts."""
WORD = "one"
GIVEN = {
    "/v1/responses": (("input",), WORD),
    "/tokenize": (("prompt", "messages"), WORD),
    "/v2/embed": (("texts", "inputs", "images"), [WORD]),
}
"""Parameters of which a request must have exactly one, which the document cannot say, and a value for the first."""


def number(value: Any) -> bool:
    """Whether a value is a number (JSON's true and false are not)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def filled(value: Any, name: str = "") -> Any:
    """A copy of a value in which the texts of `TEXTS` are neither empty nor long, and messages have a content.

    A tool's result that names no call becomes a user's message: the document's first role is the tool's.
    """
    if isinstance(value, dict):
        if value.get("role") == "tool" and not value.get("tool_call_id"):
            value = {**value, "role": "user"}
        if isinstance(value.get("role"), str) and not value.get("content") and not value.get("tool_calls"):
            value = {**value, "content": WORD}
        return {key: filled(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, name) for inner in value]
    if isinstance(value, str) and name in TEXTS:
        return value[:LONGEST_TEXT] or WORD
    return value


def realistic(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A copy of a body with a model that exists, texts, little to make and an ample deadline.

    What has a wrong type stays so.
    """
    body = filled(body)
    names, value = GIVEN.get(path, ((), None))
    if names and all(body.get(name) is None for name in names):
        body[names[0]] = value
    given = [name for name in names if body.get(name) is not None]
    for name in given[1:]:
        del body[name]
    begins = max((begin for begin in MODELS if path.startswith(begin)), key=len, default=None)
    if begins is not None and isinstance(body.get("model"), str):
        body["model"] = MODELS[begins]
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if number(body.get(name)):
            body[name] = min(body[name], LONGEST_ANSWER)
    if path in LIMITS and body.get(LIMITS[path]) is None:
        body[LIMITS[path]] = LONGEST_ANSWER
    if path in ("/api/chat", "/api/generate") and isinstance(body.get("options") or {}, dict):
        body["options"] = {**(body.get("options") or {}), "num_predict": LONGEST_ANSWER}
    if path in ("/v1/videos", "/v1/images/generations") and body.get("steps") is None:
        body["steps"] = 1
    if number(body.get("deadline_s")) and body["deadline_s"] > 0:
        body["deadline_s"] = max(body["deadline_s"], SHORTEST_DEADLINE_S)
    return body


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """Make a request one that reaches a model. Deletions keep their names: the others need the resources."""
    if isinstance(case.body, dict):
        case.body = realistic(case.path, case.body)
    if case.method != "DELETE":
        for name in RESOURCES.keys() & (case.path_parameters or {}).keys():
            case.path_parameters = {**case.path_parameters, name: RESOURCES[name]}


@schemathesis.hook
def after_call(context: schemathesis.HookContext, case: schemathesis.Case, response: schemathesis.Response) -> None:
    """Note the answer's status, one in a line, in the directory in which schemathesis runs."""
    with Path(STATUSES).open("a") as file:
        file.write(f"{response.status_code}\n")
