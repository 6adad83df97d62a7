"""Several JSON schemas that hold at once become one, as far as that is simple. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from antwort.api.wire import Plain
from antwort.pointers import resolved
from antwort.providers.schemas.leaves import in_both

CONSTRAINTS = frozenset(
    {
        *("type", "enum", "const", "anyOf", "oneOf", "allOf"),
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("items", "prefixItems", "minItems", "maxItems"),
        *("pattern", "format", "minLength", "maxLength"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    }
)
"""What says something of a value that constrained decoding can hold to."""

_MOST_PARTS = 64


def merged(schema: Plain, root: Plain) -> Plain:
    """The schema without `allOf`, and without a reference beside other words."""
    result: Plain = {}
    for part in _parts(schema, root):
        for word, value in part.items():
            result[word] = _both(word, result[word], value) if word in result else value
    return result


def _parts(schema: Plain, root: Plain) -> Iterator[Plain]:
    """All that holds at once, references resolved. Each is looked into once, so a circle ends."""
    waiting: list[object] = [schema]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_PARTS:
        part = waiting.pop(0)
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield {word: value for word, value in part.items() if word not in ("allOf", "$ref", "$defs", "definitions")}
        if isinstance(reference := part.get("$ref"), str):
            waiting.append(resolved(reference, root)[1])
        if isinstance(parts := part.get("allOf"), list):
            waiting += parts


def _both(word: str, one: Any, other: Any) -> Any:
    """What two schemas say by the same word. Where that cannot be said at once, the first holds."""
    match word:
        case "properties" if isinstance(one, dict) and isinstance(other, dict):
            return {**one, **{key: _at_once(one[key], value) if key in one else value for key, value in other.items()}}
        case "items" if isinstance(one, dict) and isinstance(other, dict):
            return _at_once(one, other)
        case "required" if isinstance(one, list) and isinstance(other, list):
            return list(dict.fromkeys(name for name in (*one, *other) if isinstance(name, str)))
        case "enum" if isinstance(one, list) and isinstance(other, list):
            return in_both(one, other)
        case "type":
            return _types(one, other)
        case "additionalProperties":
            return False if one is False or other is False else other if one is True else one
        case "minimum" | "exclusiveMinimum" | "minLength" | "minItems" if _are_numbers(one, other):
            return max(one, other)
        case "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" if _are_numbers(one, other):
            return min(one, other)
        case _:
            return one


def _at_once(one: object, other: object) -> object:
    return one if one == other else {"allOf": [one, other]}


def _types(one: object, other: object) -> object:
    """Those in both; an integer is a number, too."""
    first, second = (each if isinstance(each, list) else [each] for each in (one, other))
    kept = [kind for kind in first if kind in second or (kind == "integer" and "number" in second)]
    kept += ["integer"] if "number" in first and "integer" in second and "integer" not in kept else []
    return kept or one


def _are_numbers(*values: object) -> bool:
    return all(isinstance(value, int | float) for value in values)
