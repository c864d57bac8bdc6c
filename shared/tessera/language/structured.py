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


_ALIASES = {
    "regex": "regex",
    "ebnf": "grammar",
    "json_schema": "json",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
"""Names that SGLang and older versions of vLLM have for the fields of `structured_outputs`."""


def grammar_of(request: SamplingRequest) -> Grammar | None:
    """The grammar that a request asks for in `response_format`, in `structured_outputs`, or by another name of these.

    Raises:
        InvalidRequestError: there are several, or one is over a limit; names the field.
    """
    form = request.response_format if not isinstance(request.response_format, TextFormat) else None
    given = [name for name in ("structured_outputs", *_ALIASES) if getattr(request, name) is not None]
    if len(given) > 1 or (form is not None and given):
        names = ["response_format", *given] if form is not None else given
        named = " or ".join(f"`{name}`" for name in names)
        raise InvalidRequestError(f"give {named}, not both", param=given[-1])
    if form is not None:
        schema = {"type": "object"}
        if isinstance(form, JsonSchemaFormat):
            if form.json_schema.schema is None:
                param = "response_format.json_schema.schema"
                raise InvalidRequestError(f"`{param}` is required", param=param, code="missing_required_parameter")
            schema = form.json_schema.schema
        return json_grammar(schema, "response_format")
    if not given:
        return None
    (name,) = given
    if name != "structured_outputs":
        return _structured(StructuredOutputs(**{_ALIASES[name]: getattr(request, name)}), name)
    assert request.structured_outputs is not None
    return _structured(request.structured_outputs)


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


def _structured(outputs: StructuredOutputs, alias: str | None = None) -> Grammar:
    values = {name: getattr(outputs, name) for name in outputs.__struct_fields__}
    given = [name for name, value in values.items() if value is not None and value is not False]
    if len(given) != 1:
        named = ", ".join(given) or "none"
        raise InvalidRequestError(
            f"`structured_outputs` takes one of {', '.join(outputs.__struct_fields__)}; given: {named}",
            param="structured_outputs",
        )
    param = alias or f"structured_outputs.{given[0]}"
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
