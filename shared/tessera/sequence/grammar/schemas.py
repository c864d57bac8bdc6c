"""JSON schemas rewritten so that xgrammar holds all of them in good time, or refused.

A rewritten schema may allow less than the original, never more: whatever satisfies it satisfies the original. What
cannot be rewritten so, and what xgrammar was seen to take minutes for (large counts, repeated repetitions), is
`UnsupportedSchemaError`, for which another library may be asked.
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
_TYPES_OF = {keyword: kind for kind, keywords in _TYPED.items() for keyword in keywords.split()}
_FORMATS = frozenset(
    {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
    | {"uri", "uri-reference", "uri-template"}
)
_WHOLE = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
"""Keywords that xgrammar reads alone: what stands beside them is passed over."""
_REPEAT = re.compile(r"\{\d*,?(\d*)\}|\{(\d+)\}")
MOST_PATTERN = 256
MOST_REPEATS = 1000
"""Product of a pattern's bounds: repetitions may be within each other."""
MOST_COUNTED = 5000
"""Sum of the lengths that a schema bounds: xgrammar takes 80 µs for each."""
MOST_PROPERTY_STATES = 400
"""Properties times how many of them there must or may be."""
_DATA = frozenset({"const", "enum", "default", "examples"})
_DEFINITIONS = frozenset({"$defs", "definitions"})
_NAMES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}


class UnsupportedSchemaError(InvalidRequestError):
    """The schema or pattern says something that xgrammar does not hold, or not in good time."""


def narrowed(schema: Any, param: str) -> Any:
    """A schema that xgrammar holds entirely.

    Raises:
        UnsupportedSchemaError: there is none; names the keyword and its place.
    """
    return _Narrowing(param).schema(schema, "#")


def check_pattern(pattern: str, param: str) -> None:
    """Refuse a regular expression that xgrammar might compile for minutes.

    Raises:
        UnsupportedSchemaError: with the limit.
    """
    bounds = [int(number) for pair in _REPEAT.findall(pattern) for number in pair if number]
    if len(pattern) > MOST_PATTERN or math.prod(bounds) > MOST_REPEATS:
        raise UnsupportedSchemaError(
            f"`{param}`: a pattern of more than {MOST_PATTERN} characters, or {MOST_REPEATS} repetitions", param=param
        )


def without_unknown_formats(schema: Any, known: frozenset[str]) -> Any:
    """A schema whose `format`s are all in `known`: others are annotations, says the standard."""
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
        self._counted = 0

    def schema(self, schema: Any, at: str) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise InvalidRequestError(f"`{self._param}`: {at} is no schema", param=self._param)
        kept = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
        definitions = {
            key: {name: self.schema(value, f"{at}/{key}/{name}") for name, value in kept.pop(key).items()}
            for key in _DEFINITIONS & kept.keys()
        }
        return self._narrow(kept, at) | definitions

    def _narrow(self, kept: dict[str, Any], at: str) -> dict[str, Any]:
        whole = _WHOLE & kept.keys()
        if whole and len(kept) > 1:
            raise self._unsupported(f"{min(whole)} with other keywords beside it", at)
        if "$ref" in kept:
            if not str(kept["$ref"]).startswith("#"):
                raise self._unsupported("$ref to another document", at)
            return kept
        if "allOf" in kept:
            if len(kept["allOf"]) != 1:
                raise self._unsupported("allOf of several schemas", at)
            found: dict[str, Any] = self.schema(kept["allOf"][0], f"{at}/allOf/0")
            return found
        for key in ("anyOf", "oneOf"):
            if key in kept:
                # One that satisfies two of a `oneOf` would violate it; of kinds that differ none can.
                if key == "oneOf" and not _distinct(kept[key]):
                    raise self._unsupported("oneOf of schemas that may overlap", at)
                return {"anyOf": [self.schema(one, f"{at}/{key}/{n}") for n, one in enumerate(kept[key])]}
        if "const" in kept or "enum" in kept:
            return self._values(kept, at)
        if not kept:
            return kept
        return self._typed(kept, at)

    def _values(self, kept: dict[str, Any], at: str) -> dict[str, Any]:
        if kept.keys() - {"const", "enum", "type"}:
            raise self._unsupported("const or enum with other keywords beside it", at)
        values = kept.get("enum", [kept.get("const")])
        if "enum" in kept and "const" in kept:
            values = [value for value in values if value == kept["const"]]
        if "type" in kept:
            names = kept["type"] if isinstance(kept["type"], list) else [kept["type"]]
            values = [value for value in values if any(_is(value, name) for name in names)]
        return {"enum": values}

    def _typed(self, kept: dict[str, Any], at: str) -> dict[str, Any]:
        unknown = kept.keys() - _TYPES_OF.keys() - {"type"}
        if unknown:
            raise self._unsupported(min(unknown), at)
        if "type" not in kept:
            # Other types would pass any of these keywords; one of the type they are about satisfies all.
            kinds = {_TYPES_OF[key] for key in kept}
            if len(kinds) > 1:
                raise self._unsupported("keywords of several types without a type", at)
            kept = {"type": kinds.pop()} | kept
        if isinstance(kept["type"], list):
            return {"anyOf": [self._typed(_about(kept, name), at) for name in kept["type"]]}
        kept = _about(kept, kept["type"])
        if kept["type"] == "object":
            return self._object(kept, at)
        if kept["type"] == "array":
            return self._array(kept, at)
        return self._string(kept, at) if kept["type"] == "string" else kept

    def _object(self, kept: dict[str, Any], at: str) -> dict[str, Any]:
        properties = kept.get("properties", {})
        more = kept.get("additionalProperties", not (properties or "patternProperties" in kept))
        written = kept | {"additionalProperties": self.schema(more, f"{at}/additionalProperties")}
        names = [*properties, *(name for name in kept.get("required", []) if name not in properties)]
        if names:
            if "patternProperties" in kept or "propertyNames" in kept:
                raise self._unsupported("patternProperties or propertyNames beside properties", at)
            undescribed = kept.get("additionalProperties", True)
            if undescribed is False and len(names) > len(properties):
                raise self._unsupported("a required property that is not allowed", at)
            written["properties"] = {
                name: self.schema(properties.get(name, undescribed), f"{at}/properties/{name}") for name in names
            }
        count = max(kept.get("minProperties", 0), kept.get("maxProperties", 0))
        if count * max(len(names), 1) > MOST_PROPERTY_STATES:
            raise self._unsupported("minProperties or maxProperties of so many", at)
        for pattern in [*kept.get("patternProperties", {}), *_patterns(kept.get("propertyNames"))]:
            check_pattern(pattern, self._param)
        if "patternProperties" in kept:
            written["patternProperties"] = {
                pattern: self.schema(value, f"{at}/patternProperties/{pattern}")
                for pattern, value in kept["patternProperties"].items()
            }
        # Where names are free, one may come twice, and counts once.
        if kept.get("minProperties", 0) > 0 and (more is not False or "patternProperties" in kept):
            raise self._unsupported("minProperties where other properties are allowed", at)
        return written

    def _array(self, kept: dict[str, Any], at: str) -> dict[str, Any]:
        written = dict(kept)
        if "prefixItems" in kept:
            written["prefixItems"] = [
                self.schema(one, f"{at}/prefixItems/{n}") for n, one in enumerate(kept["prefixItems"])
            ]
        if "items" in kept:
            if isinstance(kept["items"], list):
                raise self._unsupported("a list as items (now prefixItems)", at)
            written["items"] = self.schema(kept["items"], f"{at}/items")
        return written

    def _string(self, kept: dict[str, Any], at: str) -> dict[str, Any]:
        written = dict(kept)
        self._counted += max(kept.get("minLength", 0), kept.get("maxLength", 0))
        if self._counted > MOST_COUNTED:
            raise self._unsupported("minLength or maxLength of so many characters", at)
        if "pattern" in kept:
            check_pattern(kept["pattern"], self._param)
        if written.get("format") not in _FORMATS:
            written.pop("format", None)  # an annotation, says the standard
        if "pattern" not in written and "format" not in written and {"minLength", "maxLength"} & written.keys():
            # xgrammar would allow control characters here, which JSON does not.
            least, most = written.pop("minLength", 0), written.pop("maxLength", "")
            written["pattern"] = rf'^[^"\\\x00-\x1f]{{{least},{most}}}$'
        return written

    def _unsupported(self, what: str, at: str) -> UnsupportedSchemaError:
        return UnsupportedSchemaError(f"`{self._param}`: {what} is not supported (at {at})", param=self._param)


def _patterns(schema: Any) -> list[str]:
    return [schema["pattern"]] if isinstance(schema, dict) and "pattern" in schema else []


def _about(kept: dict[str, Any], kind: str) -> dict[str, Any]:
    """A schema without the keywords that are about other types."""
    own = "number" if kind == "integer" else kind
    return {key: value for key, value in kept.items() if _TYPES_OF.get(key, own) == own} | {"type": kind}


def _distinct(schemas: list[Any]) -> bool:
    """Whether no value can satisfy two of them, as far as types and constants say."""
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
    kinds = _NAMES.get(name)
    return kinds is not None and isinstance(value, kinds)
