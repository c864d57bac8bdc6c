"""Converts a request's structured output to the engine's `Grammar`, within limits. Compiles nothing itself."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tessera.errors import InvalidRequestError
from tessera.wire.chat import SamplingRequest
from tessera.wire.engine import Grammar
from tessera.wire.tools import MOST_SOURCE, JsonSchemaFormat, StructuredOutputs, TextFormat

MOST_DEPTH = 48
"""Most levels of nesting in a schema."""
MOST_NODES = 10_000
"""Most values in a schema, counting objects, lists and what they hold."""
MOST_COUNT = 100_000
"""Largest `maxLength`, `minItems` and the like in a schema. Grammar compilers need memory in proportion."""


def grammar_of(request: SamplingRequest) -> Grammar | None:
    """The grammar that a request asks for in `response_format` or `structured_outputs`.

    Raises:
        InvalidRequestError: there are both, or several kinds, or one is over a limit; names the field.
    """
    form, structured = request.response_format, request.structured_outputs
    if form is not None and not isinstance(form, TextFormat):
        if structured is not None:
            raise InvalidRequestError(
                "give `response_format` or `structured_outputs`, not both", param="structured_outputs"
            )
        schema = {"type": "object"}
        if isinstance(form, JsonSchemaFormat):
            if form.json_schema.schema is None:
                param = "response_format.json_schema.schema"
                raise InvalidRequestError(f"`{param}` is required", param=param, code="missing_required_parameter")
            schema = form.json_schema.schema
        return json_grammar(schema, "response_format")
    return _structured(structured) if structured is not None else None


def json_grammar(schema: Any, param: str) -> Grammar:
    """The grammar of JSON that satisfies `schema`.

    Raises:
        InvalidRequestError: the schema is none, allows nothing, or is over a limit.
    """
    if schema is False:
        raise InvalidRequestError(f"`{param}`: no value satisfies the schema `false`", param=param)
    if not isinstance(schema, dict | bool):
        raise InvalidRequestError(f"`{param}` must be a JSON schema, which is an object", param=param)
    schema = {} if schema is True else schema
    check_schema(schema, param)
    return Grammar(kind="json_schema", source=json.dumps(schema, ensure_ascii=False), param=param)


def check_schema(schema: Any, param: str) -> None:
    """Refuse a schema that is too large, too deep or too wide to be compiled.

    Raises:
        InvalidRequestError: names the limit.
    """
    size = len(msgspec.json.encode(schema))
    if size > MOST_SOURCE:
        raise InvalidRequestError(f"`{param}`: the schema has {size} bytes; at most {MOST_SOURCE} allowed", param=param)
    nodes, level, depth = 0, [schema], 0
    while level:
        depth += 1
        nodes += len(level)
        if depth > MOST_DEPTH:
            raise InvalidRequestError(
                f"`{param}`: the schema is nested more than {MOST_DEPTH} levels deep", param=param
            )
        if nodes > MOST_NODES:
            raise InvalidRequestError(f"`{param}`: the schema has more than {MOST_NODES} parts", param=param)
        for one in level:
            _check_counts(one, param)
        level = [inner for one in level for inner in _children(one)]


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _check_counts(value: Any, param: str) -> None:
    if isinstance(value, dict):
        for key in ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"):
            count = value.get(key)
            if isinstance(count, int) and count > MOST_COUNT:
                raise InvalidRequestError(f"`{param}`: `{key}` is {count}; at most {MOST_COUNT}", param=param)


def _structured(outputs: StructuredOutputs) -> Grammar:
    values = {name: getattr(outputs, name) for name in outputs.__struct_fields__}
    given = [name for name, value in values.items() if value is not None and value is not False]
    if len(given) != 1:
        named = ", ".join(given) or "none"
        raise InvalidRequestError(
            f"`structured_outputs` takes one of {', '.join(outputs.__struct_fields__)}; given: {named}",
            param="structured_outputs",
        )
    param = f"structured_outputs.{given[0]}"
    if outputs.regex is not None:
        return Grammar(kind="regex", source=outputs.regex, param=param)
    if outputs.choice is not None:
        if sum(map(len, outputs.choice)) > MOST_SOURCE:
            raise InvalidRequestError(f"`{param}` has more than {MOST_SOURCE} characters", param=param)
        return Grammar(kind="choice", source=json.dumps(outputs.choice), param=param)
    if outputs.grammar is not None:
        return Grammar(kind="ebnf", source=outputs.grammar, param=param)
    schema: Any = {"type": "object"} if outputs.json is None else outputs.json
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequestError(f"`{param}` is not valid JSON: {error}", param=param) from error
    return json_grammar(schema, param)
