"""Chooses the grammar of a chat answer, behind the model's reasoning: structured output, an enforced call, or either.

Tools that the model may call or not are constrained only beside structured output: the answer is then calls whose
arguments satisfy the tools' schemas, or JSON that satisfies the format's. A call that is demanded leaves no room for
the format, which waits for a later turn.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tessera.errors import InvalidRequestError
from tessera.language.parsers.dialects import Dialect
from tessera.language.parsers.harmony import FINAL
from tessera.language.structured import check_schema, grammar_of
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.engine import Grammar, Thinking
from tessera.wire.tools import Tool, ToolChoice


def answer_grammar(
    request: ChatCompletionRequest, dialect: Dialect, tokenizer: Tokenizer, prompt: str
) -> Grammar | None:
    """The grammar that the answer to a request must follow; None when the request asks for none.

    Args:
        request: its response format, tools and tool choice are read.
        dialect: how the model writes reasoning and tool calls.
        tokenizer: knows the tokens that open and close reasoning.
        prompt: the text of the prompt, which may open the reasoning.

    Raises:
        InvalidRequestError: the chosen tool does not exist, the format is not JSON where tools may be called, or a
            schema is over a limit.
    """
    grammar = grammar_of(request)
    forced = _forced(request)
    tools = forced or (request.offered if grammar is not None else [])
    if tools:
        answer = None if forced else grammar
        if answer is not None and answer.kind != "json_schema":
            raise InvalidRequestError(
                f"`{answer.param}` leaves no room for tool calls: give a JSON schema, leave `tools` out, or set "
                f"`tool_choice` to none",
                param=answer.param.partition(".")[0],
            )
        for place, tool in enumerate(tools):
            check_schema(tool.function.parameters or {}, f"tools[{place}].function.parameters")
        one = _chosen(request) is not None or not request.parallel_tool_calls
        source = dialect.enforced(tools, one=one, answer=answer)
        markers = [marker for marker in dialect.markers(tools=True) if marker in tokenizer.control]
        kind: Literal["calls", "calls_or_json"] = "calls" if answer is None else "calls_or_json"
        grammar = Grammar(kind=kind, source=source, param="tools", markers=markers)
    if grammar is None:
        return None
    return msgspec.structs.replace(grammar, thinking=_thinking(dialect, tokenizer, prompt, calls=bool(tools)))


def _forced(request: ChatCompletionRequest) -> list[Tool]:
    """The tools of which one must be called; empty when the model may choose."""
    choice, tools = request.tool_choice, request.tools or []
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise InvalidRequestError("two of the `tools` have the same name", param="tools")
    if not tools and choice not in (None, "none", "auto"):
        raise InvalidRequestError("`tool_choice` needs `tools`", param="tool_choice")
    if isinstance(choice, ToolChoice):
        allowed, chosen = choice.allowed_tools, _chosen(request)
        wanted = {chosen} if allowed is None else allowed.names
        if unknown := sorted(str(name) for name in wanted - set(names)):
            raise InvalidRequestError(
                f"`tool_choice` names {unknown[0]!r}, which is none of the `tools`", param="tool_choice"
            )
        if allowed is not None:
            return request.offered if allowed.mode == "required" else []
        return [tool for tool in tools if tool.function.name in wanted]
    return tools if choice == "required" else []


def _chosen(request: ChatCompletionRequest) -> str | None:
    """The name of the one tool that `tool_choice` demands; None where it demands none or any.

    Raises:
        InvalidRequestError: `type` says one thing and the fields another.
    """
    choice = request.tool_choice
    if not isinstance(choice, ToolChoice):
        return None
    given = choice.function if choice.type == "function" else choice.allowed_tools
    other = choice.allowed_tools if choice.type == "function" else choice.function
    if given is None or other is not None:
        raise InvalidRequestError(
            f"`tool_choice` has the type {choice.type!r} and so takes `{choice.type}` alone", param="tool_choice"
        )
    return None if choice.function is None else choice.function.name


def _thinking(dialect: Dialect, tokenizer: Tokenizer, prompt: str, *, calls: bool) -> Thinking | None:
    """Where in the answer the grammar begins; None when it begins at once."""
    if dialect.calls == "harmony":
        if calls:
            return None
        final = tokenizer.encode(FINAL, add_special_tokens=False)
        return Thinking(begin=None, end=final, open=True)
    if dialect.thinking is None or prompt.rstrip().endswith(dialect.thinking[1]):
        return None
    begin, end = (tokenizer.fast.token_to_id(tag) for tag in dialect.thinking)
    opened = opens_thought(dialect, prompt)
    if end is None or (begin is None and not opened):
        return None
    return Thinking(begin=begin, end=[end], open=opened)


def opens_thought(dialect: Dialect, prompt: str) -> bool:
    """Whether the prompt ends inside the model's reasoning."""
    return dialect.thinking is not None and prompt.rstrip().endswith(dialect.thinking[0])
