"""Rewriting of JSON schemas so that xgrammar enforces all of them in good time; the rest is refused.

A rewritten schema may allow less than the original, never more: whatever satisfies it satisfies the original. A schema
that cannot be rewritten, or that xgrammar was seen to take minutes for (large counts, nested repetitions), raises
`UnsupportedSchemaError`; another library may support it.
"""

from __future__ import annotations

import math
import re
from typing import Any

from tessera.errors import InvalidRequestError

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "nullable"}
    | {"$comment", "$schema", "$id", "x-guidance", "discriminator", "contentMediaType", "contentEncoding"}
)
_TYPED = {
    "object": "properties required additionalProperties patternProperties propertyNames minProperties maxProperties",
    "array": "items prefixItems minItems maxItems",
    "string": "minLength maxLength pattern format",
    "number": "minimum maximum exclusiveMinimum exclusiveMaximum",
}
_TYPE_OF_KEYWORD = {keyword: kind for kind, keywords in _TYPED.items() for keyword in keywords.split()}
_FORMATS = frozenset(
    {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
    | {"uri", "uri-reference", "uri-template"}
)
_EXCLUSIVE = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
"""Keywords beside which xgrammar ignores all others."""
_REPEAT = re.compile(r"\{\d*,?(\d*)\}|\{(\d+)\}")
_CLASS = re.compile(r"(?<!\\)(?:\\\\)*\[(?:\\.|[^\]\\])*\]|\\.", re.DOTALL)
"""Character classes and escapes, in which `^` and `$` are no anchors."""
_INNER_ANCHOR = re.compile(r"(?<=.)\^|\$(?=.)", re.DOTALL)
_ODD_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\[AZzGBbKQEXRhHNpPkg1-9]")
MAX_PATTERN_LENGTH = 256
"""Most characters of a pattern."""
MAX_PATTERN_REPEATS = 1000
"""Largest product of a pattern's bounds: repetitions may be nested."""
MAX_STRING_LENGTHS = 5000
"""Largest sum of `minLength` and `maxLength` in a schema: xgrammar takes 80 µs for each character."""
MAX_PROPERTY_STATES = 400
"""Largest product of the number of properties and of `minProperties` or `maxProperties`."""
_DATA = frozenset({"const", "enum", "default", "examples"})
_DEFINITIONS = frozenset({"$defs", "definitions"})
_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}


class UnsupportedSchemaError(InvalidRequestError):
    """The schema or pattern has something that xgrammar does not enforce, or not in good time."""


def narrow_schema(schema: Any, param: str) -> Any:
    """Rewrite a schema so that xgrammar enforces all of it.

    Raises:
        UnsupportedSchemaError: It cannot be rewritten; names the keyword and its place.
    """
    return _Narrowing(param).schema(schema, "#")


def check_pattern(pattern: str, param: str) -> None:
    """Refuse a regular expression that xgrammar might compile for minutes, or would read in its own way.

    xgrammar passes over `^` and `$` within a pattern, and takes letters behind a backslash that it does not know for
    themselves: `a^`, which no text satisfies, would allow `a`.

    Raises:
        UnsupportedSchemaError: It is too long or repeats too often, or has such a part; says the limits.
    """
    without_classes = _CLASS.sub("[]", pattern)
    if (odd := _ODD_ESCAPE.search(pattern)) or (odd := _INNER_ANCHOR.search(without_classes)):
        raise UnsupportedSchemaError(f"`{param}`: {odd.group()!r} is not supported within a pattern", param=param)
    bounds = [int(number) for pair in _REPEAT.findall(pattern) for number in pair if number]
    if len(pattern) > MAX_PATTERN_LENGTH or math.prod(bounds) > MAX_PATTERN_REPEATS:
        raise UnsupportedSchemaError(
            f"`{param}`: a pattern of more than {MAX_PATTERN_LENGTH} characters, or {MAX_PATTERN_REPEATS} repetitions",
            param=param,
        )


def without_unknown_formats(schema: Any, known: frozenset[str]) -> Any:
    """Remove every `format` that is not in `known`: the standard says that others are annotations."""
    if isinstance(schema, list):
        return [without_unknown_formats(one, known) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in _DATA else without_unknown_formats(value, known)
        for key, value in schema.items()
        if key != "format" or not isinstance(value, str) or value in known
    }


class _Narrowing:
    def __init__(self, param: str) -> None:
        self._param = param
        self._string_lengths = 0

    def schema(self, schema: Any, at: str) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise InvalidRequestError(f"`{self._param}`: {at} is no schema", param=self._param)
        keywords = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
        definitions = {
            key: {name: self.schema(value, f"{at}/{key}/{name}") for name, value in keywords.pop(key).items()}
            for key in _DEFINITIONS & keywords.keys()
        }
        return self._narrow(keywords, at) | definitions

    def _narrow(self, keywords: dict[str, Any], at: str) -> dict[str, Any]:
        exclusive = _EXCLUSIVE & keywords.keys()
        if exclusive and len(keywords) > 1:
            raise self._unsupported(f"{min(exclusive)} with other keywords beside it", at)
        if "$ref" in keywords:
            if not str(keywords["$ref"]).startswith("#"):
                raise self._unsupported("$ref to another document", at)
            return keywords
        if "allOf" in keywords:
            if len(keywords["allOf"]) != 1:
                raise self._unsupported("allOf of several schemas", at)
            found: dict[str, Any] = self.schema(keywords["allOf"][0], f"{at}/allOf/0")
            return found
        for key in ("anyOf", "oneOf"):
            if key in keywords and not keywords[key]:
                raise self._impossible(f"{key} of no schema", at)
            if key in keywords:
                # A value that satisfies two schemas of a `oneOf` violates it; of different types, none can.
                if key == "oneOf" and not _distinct(keywords[key]):
                    raise self._unsupported("oneOf of schemas that may overlap", at)
                return {"anyOf": [self.schema(one, f"{at}/{key}/{n}") for n, one in enumerate(keywords[key])]}
        if "const" in keywords or "enum" in keywords:
            return self._values(keywords, at)
        if not keywords:
            return keywords
        return self._typed(keywords, at)

    def _values(self, keywords: dict[str, Any], at: str) -> dict[str, Any]:
        if keywords.keys() - {"const", "enum", "type"}:
            raise self._unsupported("const or enum with other keywords beside it", at)
        values = keywords.get("enum", [keywords.get("const")])
        if "enum" in keywords and "const" in keywords:
            values = [value for value in values if value == keywords["const"]]
        if "type" in keywords:
            names = keywords["type"] if isinstance(keywords["type"], list) else [keywords["type"]]
            values = [value for value in values if any(_is(value, name) for name in names)]
        return {"enum": values}

    def _typed(self, keywords: dict[str, Any], at: str) -> dict[str, Any]:
        unknown = keywords.keys() - _TYPE_OF_KEYWORD.keys() - {"type"}
        if unknown:
            raise self._unsupported(min(unknown), at)
        if "type" not in keywords:
            # Values of other types would satisfy any of these keywords; the rewritten schema allows one type only.
            kinds = {_TYPE_OF_KEYWORD[key] for key in keywords}
            if len(kinds) > 1:
                raise self._unsupported("keywords of several types without a type", at)
            keywords = {"type": kinds.pop()} | keywords
        if isinstance(keywords["type"], list):
            if not keywords["type"]:
                raise self._impossible("a type of none", at)
            return {"anyOf": [self._typed(_only_keywords_of(keywords, name), at) for name in keywords["type"]]}
        keywords = _only_keywords_of(keywords, keywords["type"])
        if keywords["type"] == "object":
            return self._object(keywords, at)
        if keywords["type"] == "array":
            return self._array(keywords, at)
        return self._string(keywords, at) if keywords["type"] == "string" else keywords

    def _object(self, keywords: dict[str, Any], at: str) -> dict[str, Any]:
        properties = keywords.get("properties", {})
        more = keywords.get("additionalProperties", not (properties or "patternProperties" in keywords))
        rewritten = keywords | {"additionalProperties": self.schema(more, f"{at}/additionalProperties")}
        names = [*properties, *(name for name in keywords.get("required", []) if name not in properties)]
        if names:
            if "patternProperties" in keywords or "propertyNames" in keywords:
                raise self._unsupported("patternProperties or propertyNames beside properties", at)
            undescribed = keywords.get("additionalProperties", True)
            if undescribed is False and len(names) > len(properties):
                raise self._unsupported("a required property that is not allowed", at)
            rewritten["properties"] = {
                name: self.schema(properties.get(name, undescribed), f"{at}/properties/{name}") for name in names
            }
        count = max(keywords.get("minProperties", 0), keywords.get("maxProperties", 0))
        if count * max(len(names), 1) > MAX_PROPERTY_STATES:
            raise self._unsupported("minProperties or maxProperties of so many", at)
        for pattern in [*keywords.get("patternProperties", {}), *_patterns(keywords.get("propertyNames"))]:
            check_pattern(pattern, self._param)
        if "patternProperties" in keywords:
            rewritten["patternProperties"] = {
                pattern: self.schema(value, f"{at}/patternProperties/{pattern}")
                for pattern, value in keywords["patternProperties"].items()
            }
        # A free name may come twice, and counts once.
        if keywords.get("minProperties", 0) > 0 and (more is not False or "patternProperties" in keywords):
            raise self._unsupported("minProperties where other properties are allowed", at)
        return rewritten

    def _array(self, keywords: dict[str, Any], at: str) -> dict[str, Any]:
        rewritten = dict(keywords)
        if "prefixItems" in keywords:
            rewritten["prefixItems"] = [
                self.schema(one, f"{at}/prefixItems/{n}") for n, one in enumerate(keywords["prefixItems"])
            ]
        if "items" in keywords:
            if isinstance(keywords["items"], list):
                raise self._unsupported("a list as items (now prefixItems)", at)
            rewritten["items"] = self.schema(keywords["items"], f"{at}/items")
        return rewritten

    def _string(self, keywords: dict[str, Any], at: str) -> dict[str, Any]:
        rewritten = dict(keywords)
        self._string_lengths += max(keywords.get("minLength", 0), keywords.get("maxLength", 0))
        if self._string_lengths > MAX_STRING_LENGTHS:
            raise self._unsupported("minLength or maxLength of so many characters", at)
        if "pattern" in keywords:
            check_pattern(keywords["pattern"], self._param)
        if rewritten.get("format") not in _FORMATS:
            rewritten.pop("format", None)  # the standard says that it is an annotation
        if "pattern" not in rewritten and "format" not in rewritten and {"minLength", "maxLength"} & rewritten.keys():
            # xgrammar would allow control characters here, which JSON does not.
            least, most = rewritten.pop("minLength", 0), rewritten.pop("maxLength", "")
            rewritten["pattern"] = rf'^[^"\\\x00-\x1f]{{{least},{most}}}$'
        return rewritten

    def _impossible(self, what: str, at: str) -> InvalidRequestError:
        return InvalidRequestError(f"`{self._param}`: {what} allows no value (at {at})", param=self._param)

    def _unsupported(self, what: str, at: str) -> UnsupportedSchemaError:
        return UnsupportedSchemaError(f"`{self._param}`: {what} is not supported (at {at})", param=self._param)


def _patterns(schema: Any) -> list[str]:
    return [schema["pattern"]] if isinstance(schema, dict) and "pattern" in schema else []


def _only_keywords_of(keywords: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a schema of type `kind` without the keywords that are about other types."""
    own = "number" if kind == "integer" else kind
    return {key: value for key, value in keywords.items() if _TYPE_OF_KEYWORD.get(key, own) == own} | {"type": kind}


def _distinct(schemas: list[Any]) -> bool:
    """Return whether no value can satisfy two of the schemas, as far as their types tell."""
    kinds: list[str] = []
    for schema in schemas:
        kind = schema.get("type") if isinstance(schema, dict) else None
        if not isinstance(kind, str):
            return False
        kinds.append("number" if kind == "integer" else kind)
    return len(set(kinds)) == len(kinds)


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    kinds = _PYTHON_TYPES.get(name)
    return kinds is not None and isinstance(value, kinds)
