"""What plain schemas are made of, and what is said of values without parts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from antwort.api.wire import Plain
from antwort.patterns import plain_pattern
from antwort.tools.schemas.size import is_reasonable

ANY: Plain = {
    "anyOf": [
        {"type": "string"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "object"},
        {"type": "array", "items": {}},
        {"type": "null"},
    ]
}
"""Any value. Written out: there are backends to which an empty schema is an object, and some that take none."""
OPEN: Plain = {"type": "object", "properties": {}}
"""Arguments of which nothing is known."""
KINDS = ("object", "array", "string", "number", "integer", "boolean", "null")
_TELLTALES = (
    ("object", frozenset({"properties", "required", "additionalProperties", "patternProperties", "propertyNames"})),
    ("array", frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"})),
    ("string", frozenset({"pattern", "minLength", "maxLength", "format"})),
    ("number", frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})),
)
_FORMATS = frozenset({"date", "time", "date-time", "duration", "uuid", "email", "uri", "hostname", "ipv4", "ipv6"})
_LONGEST_DESCRIPTION, _LONGEST_DEFAULT = 1000, 200
_MOST_VALUES, _LONGEST_VALUES = 256, 8192
_LONGEST_TEXT, MOST_ITEMS, _GREATEST = 1000, 256, 2**53


def kinds_of(words: Mapping[str, object]) -> tuple[str, ...]:
    """The types that a schema says, or gives away; none: it may be any."""
    said = words.get("type")
    given = said if isinstance(said, list) else [said]
    if "type" in words:
        known = tuple(dict.fromkeys(kind for kind in given if isinstance(kind, str) and kind in KINDS))
        return () if len(known) < len(given) else known
    return tuple(kind for kind, telltale in _TELLTALES if not telltale.isdisjoint(words))


def stub(schema: object) -> Plain:
    """Of a schema that leads too far: its type, if it has one."""
    kinds = kinds_of(schema) if isinstance(schema, dict) else ()
    if len(kinds) != 1:
        return ANY
    return {"type": "array", "items": {}} if kinds[0] == "array" else {"type": kinds[0]}


def any_of(choices: Iterable[Plain]) -> Plain:
    """One of these. What is the same is there once, and any value is all of them."""
    flat = [each for choice in choices for each in (choice["anyOf"] if choice.keys() == {"anyOf"} else [choice])]
    if len(flat) == 1:
        return flat[0]
    different = {msgspec.json.encode(each): each for each in flat}
    if ANY in choices or not different:
        return ANY
    return {"anyOf": [*different.values()]} if len(different) > 1 else next(iter(different.values()))


def annotated(schema: Plain, words: Mapping[str, object]) -> Plain:
    """The schema with what people are told of it."""
    told: Plain = {}
    if isinstance(about := words.get("description"), str) and about.strip():
        told["description"] = about if len(about) <= _LONGEST_DESCRIPTION else f"{about[:_LONGEST_DESCRIPTION]}…"
    default = words.get("default")
    if default is not None and _is_short(default):
        told["default"] = default
    return {**schema, **told} if told else schema


def _is_short(default: object) -> bool:
    is_small = is_reasonable(default, _LONGEST_DEFAULT, _LONGEST_DEFAULT)
    return is_small and len(msgspec.json.encode(default)) <= _LONGEST_DEFAULT


# ---- values without parts ----


def listed(values: Sequence[object], *, may_omit: bool) -> Plain | None:
    """One of these values. Null goes where it may be left out instead."""
    given = [value for value in values if value is not None]
    if len(given) == len(values) or (may_omit and given):
        return _enum(given) if given else None
    return any_of([_enum(given), {"type": "null"}]) if given else {"type": "null"}


def _enum(values: list[object]) -> Plain:
    kinds = {_kind_of(value) for value in values}
    kind = {"type": kinds.pop()} if len(kinds) == 1 else {}
    if len(values) > _MOST_VALUES or len(msgspec.json.encode(values)) > _LONGEST_VALUES:
        return stub(kind)
    return {**kind, "enum": values}


def _kind_of(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def string(words: Mapping[str, object], *, with_pattern: bool = True) -> Plain:
    made: Plain = {"type": "string", **span(words, "minLength", "maxLength", _LONGEST_TEXT)}
    pattern = words.get("pattern") if with_pattern else None
    if isinstance(pattern, str) and (plain := plain_pattern(pattern)) is not None:
        made["pattern"] = plain
    if isinstance(form := words.get("format"), str) and form in _FORMATS:
        made["format"] = form
    return made


def number(kind: str, words: Mapping[str, object]) -> Plain:
    """A bound that is not among the numbers itself is the next integer, or told as if it were."""
    low, above = _number(words, "minimum"), _number(words, "exclusiveMinimum")
    high, below = _number(words, "maximum"), _number(words, "exclusiveMaximum")
    if kind == "integer":
        low, above = low and math.ceil(low), above if above is None else math.floor(above) + 1
        high, below = high and math.floor(high), below if below is None else math.ceil(below) - 1
    least = max((bound for bound in (low, above) if bound is not None), default=None)
    most = min((bound for bound in (high, below) if bound is not None), default=None)
    return {"type": kind, **_bounds("minimum", least, "maximum", most)}


def span(words: Mapping[str, object], low: str, high: str, greatest: int) -> Plain:
    """A range of lengths. One beyond the greatest is left out: to hold a text to it takes a grammar of that length."""
    least, most = (_count(words, word, greatest) for word in (low, high))
    return _bounds(low, least, high, most)


def _bounds(low: str, least: float | None, high: str, most: float | None) -> Plain:
    """Both, one or none; a range that is empty is none, because some hang on it."""
    if least is not None and most is not None and least > most:
        return {}
    return ({} if least is None else {low: least}) | ({} if most is None else {high: most})


def _count(words: Mapping[str, object], name: str, greatest: int) -> int | None:
    """A length; one may be written as `3.0`."""
    value = _number(words, name)
    return None if value is None or value % 1 or not 0 <= value <= greatest else int(value)


def _number(words: Mapping[str, object], name: str) -> float | None:
    value = words.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= _GREATEST else None
