"""What is said of a value that has no parts: cleaned. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from antwort.api.wire import Plain
from antwort.patterns import plain_pattern

_LONGEST = 1000
MOST_ITEMS = 256
_GREATEST = 10**15
"""What is beyond these is left out: grammars are written out, and numbers are counted in 64 bits there."""
_FORMATS = frozenset({"date", "time", "date-time", "uuid"})
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": (int, float),
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
_TELLTALES = (
    ("object", ("properties", "required", "additionalProperties", "patternProperties", "propertyNames")),
    ("array", ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains")),
    ("string", ("pattern", "minLength", "maxLength", "format")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
)


def listed(schema: Plain) -> Plain | None:
    values = [schema["const"]] if "const" in schema else schema["enum"]
    kinds = kinds_of(schema) if "type" in schema else ()
    kept = [value for value in values if not kinds or any(_is_of(value, kind) for kind in kinds)]
    if "const" in schema and isinstance(others := schema.get("enum"), list):
        kept = in_both(kept, others)
    if not kept:
        return None
    return {"const": kept[0]} if len(kept) == 1 else {"enum": kept}


def _is_of(value: object, kind: str) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS[kind])


def kinds_of(schema: Plain) -> tuple[str, ...]:
    """The types that a schema says, or gives away."""
    said = schema.get("type")
    kinds = tuple(kind for kind in (said if isinstance(said, list) else [said]) if isinstance(kind, str))
    if known := tuple(dict.fromkeys(kind for kind in kinds if kind in _KINDS)):
        return known
    return next(((kind,) for kind, words in _TELLTALES if any(word in schema for word in words)), ())


def string(schema: Plain) -> Plain:
    """One thing is said of a string: decoders take only the first of several, and not the same one."""
    if isinstance(pattern := schema.get("pattern"), str) and (plain := plain_pattern(pattern)) is not None:
        return {"type": "string", "pattern": plain}
    if isinstance(form := schema.get("format"), str) and form in _FORMATS:
        return {"type": "string", "format": form}
    least, most = span(schema, "minLength", "maxLength", _LONGEST)
    return {"type": "string", **limits("minLength", least, "maxLength", most)}


def span(schema: Plain, low: str, high: str, greatest: int) -> tuple[int, int | None]:
    """A range of lengths, as far as it can be written out; decoders hang on one that is empty."""
    least, most = _count(schema.get(low)) or 0, _count(schema.get(high))
    if most is not None and least > most:
        return 0, None
    return least if least <= greatest else 0, most if most is not None and most <= greatest else None


def limits(low: str, least: int, high: str, most: int | None) -> Plain:
    return ({low: least} if least else {}) | ({} if most is None else {high: most})


def bounds(schema: Plain) -> Plain:
    """The range of an integer."""
    lows = [math.ceil(low) for low in _numbers(schema, "minimum")]
    lows += [math.floor(low) + 1 for low in _numbers(schema, "exclusiveMinimum")]
    highs = [math.floor(high) for high in _numbers(schema, "maximum")]
    highs += [math.ceil(high) - 1 for high in _numbers(schema, "exclusiveMaximum")]
    low, high = max(lows, default=None), min(highs, default=None)
    if low is not None and high is not None and low > high:
        return {}
    found = {"minimum": low, "maximum": high}
    return {word: bound for word, bound in found.items() if bound is not None}


def _numbers(schema: Plain, word: str) -> Iterator[float]:
    value = schema.get(word)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _GREATEST:
        yield value


def _count(value: object) -> int | None:
    """A length; one may be written as `3.0`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < 0:
        return None
    return int(value)


def in_both(one: Sequence[object], other: Sequence[object]) -> list[object]:
    known = {msgspec.json.encode(value) for value in other}
    return [value for value in one if msgspec.json.encode(value) in known]


def list_of(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
