"""Read the keywords of a JSON Schema, as untrusted authors write them: types, ranges, items, values, patterns, size."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from antwort.api.wire import Plain

PYTHON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": (int, float),
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
"""The types of JSON Schema, and the decoded values that may have them."""
_KEYWORDS_OF_TYPE = (
    ("object", frozenset({"properties", "required", "additionalProperties", "patternProperties", "propertyNames"})),
    ("array", frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"})),
    ("string", frozenset({"pattern", "minLength", "maxLength", "format"})),
    ("number", frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})),
)
_MAX_VALUES, _MAX_CHARACTERS = 4_000, 128 * 1024
"""Of a schema that is read at all. Schemas that people write have a tenth of that."""
_CHARACTERS_PER_VALUE = 64
"""Characters that take as much memory as one value."""


# ---- size ----


def measure(schema: object, max_values: int = _MAX_VALUES, max_characters: int = _MAX_CHARACTERS) -> int | None:
    """Return the memory a schema takes, counted in values, or None where it exceeds the bounds.

    A schema with an integer beyond 64 bits exceeds them too: some validators fail on it. The work is bounded, however
    large the schema is.
    """
    characters = max_characters
    waiting: list[Any] = [schema]
    values = 1
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            characters -= len(value)
        elif isinstance(value, dict | list):
            values += len(value)
            if values > max_values:
                return None
            if isinstance(value, dict):
                characters -= sum(len(name) for name in value if isinstance(name, str))
                value = value.values()
            waiting += value
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            return None
        if characters < 0:
            return None
    return values + (max_characters - characters) // _CHARACTERS_PER_VALUE


# ---- types and parts ----


def declared_types(schema: Mapping[str, object]) -> tuple[str, ...]:
    """Return the known types under `type`, each once."""
    given = schema.get("type")
    names = given if isinstance(given, list) else (given,)
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name in PYTHON_TYPES))


def implied_types(schema: Mapping[str, object]) -> tuple[str, ...]:
    """Return the types that the schema's other keywords apply to."""
    return tuple(name for name, keywords in _KEYWORDS_OF_TYPE if not keywords.isdisjoint(schema))


def list_of(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def item_schemas(schema: Plain) -> tuple[list[Any], object]:
    """Return the schemas of an array's first items and that of the others. Older drafts have a list under `items`."""
    items = schema.get("items", True)
    if isinstance(items, list):
        return items, schema.get("additionalItems", True)
    return list_of(schema.get("prefixItems")), items


# ---- values ----


def distinct(schemas: Iterable[Plain]) -> list[Plain]:
    """Return the schemas without repetitions."""
    return list({msgspec.json.encode(each): each for each in schemas}.values())


def common_values(one: Sequence[object], other: Sequence[object]) -> list[object]:
    """Return the values of the first sequence that are in the other one, too."""
    known = {_json(value) for value in other}
    return [value for value in one if _json(value) in known]


def _json(value: object) -> bytes:
    """Encode a value so that equal numbers are equal: 2.0 is 2."""
    return msgspec.json.encode(int(value) if isinstance(value, float) and value.is_integer() else value)


# ---- ranges ----


def length_range(schema: Plain, low: str, high: str, limit: int) -> tuple[int | None, int | None]:
    """Return a minimum and a maximum length. Those beyond the limit are None: grammars are written out to that length.

    Both are None where no length fits: decoders hang on an empty range.
    """
    minimum, maximum = _length(schema.get(low)), _length(schema.get(high))
    if minimum is not None and maximum is not None and minimum > maximum:
        return None, None
    return (
        None if minimum is None or minimum > limit else minimum,
        None if maximum is None or maximum > limit else maximum,
    )


def _length(value: object) -> int | None:
    """Return a length, which may be written as `3.0`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < 0:
        return None
    return int(value)


def numeric_range(schema: Plain, limit: int, *, is_integer: bool) -> Plain:
    """Return `minimum` and `maximum`, as far as their absolute values are within the limit; nothing for an empty range.

    An exclusive bound becomes the next integer, or for other numbers an inclusive one, which accepts one value more.
    """
    low, above = _number(schema, "minimum", limit), _number(schema, "exclusiveMinimum", limit)
    high, below = _number(schema, "maximum", limit), _number(schema, "exclusiveMaximum", limit)
    if is_integer:
        low, above = None if low is None else math.ceil(low), None if above is None else math.floor(above) + 1
        high, below = None if high is None else math.floor(high), None if below is None else math.ceil(below) - 1
    minimum = low if above is None else above if low is None else max(low, above)
    maximum = high if below is None else below if high is None else min(high, below)
    if minimum is not None and maximum is not None and minimum > maximum:
        return {}
    return range_keywords("minimum", minimum, "maximum", maximum)


def _number(schema: Plain, keyword: str, limit: int) -> float | None:
    value = schema.get(keyword)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= limit else None


def range_keywords(low: str, minimum: float | None, high: str, maximum: float | None) -> Plain:
    return ({} if minimum is None else {low: minimum}) | ({} if maximum is None else {high: maximum})


# ---- patterns ----

_LITERAL = r"[A-Za-z0-9_ ,:;=@#%&!<>~'/-]"
_TOKEN = re.compile(
    rf"(?P<literal>{_LITERAL})|\\(?P<escaped>[.+*?()\[\]/-])|\\(?P<shorthand>[dw])"
    r"|\[(?P<members>(?:[A-Za-z0-9_ ,:;=@#%/.+-]|\\[dw.])+)\]"
    r"|(?P<repeat>[*+?]|\{\d{1,2}(?:,\d{0,2})?\})|(?P<opening>\((?:\?:)?)|(?P<closing>\))|(?P<or>\|)"
)
_SHORTHANDS = {"d": "0-9", "w": "A-Za-z0-9_"}
_MAX_PATTERN_LENGTH = 200


@lru_cache(maxsize=1024)
def plain_pattern(pattern: str) -> str | None:
    """Return the pattern without shorthands; None where decoders may disagree about it, or it is not anchored.

    A decoder writes what a pattern allows straight into a JSON string, so the pattern must not allow quotes and the
    like.
    """
    if not (pattern.startswith("^") and pattern.endswith("$")) or len(pattern) > _MAX_PATTERN_LENGTH:
        return None
    at, end, depth, made, previous = 1, len(pattern) - 1, 0, "", "opening"
    while at < end:
        token = _TOKEN.match(pattern, at, end)
        if token is None:
            return None
        kind = token.lastgroup or ""
        depth += (kind == "opening") - (kind == "closing")
        if depth < 0 or (kind == "or" and not depth) or (kind == "repeat" and previous in ("repeat", "opening", "or")):
            return None
        match kind:
            case "shorthand":
                made += f"[{_SHORTHANDS[token[kind]]}]"
            case "members":
                members = re.sub(r"\\([dw])", lambda found: _SHORTHANDS[found[1]], token[kind])
                made += f"[{members.replace(chr(92), '')}]"
            case _:
                made += token.group()
        previous, at = kind, token.end()
    if depth or not made:
        return None
    try:
        re.compile(made)
    except re.error:
        return None
    return f"^{made}$"
