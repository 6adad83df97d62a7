"""Merge JSON Schemas that must all hold (`allOf`, and `$ref` beside other keywords) into one.

The result accepts whatever all of them accept. Where two keywords cannot be expressed as one, the first one is kept,
so the result may accept more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from antwort.api.wire import Plain
from antwort.schema.keywords import common_values
from antwort.schema.refs import resolve

_MAX_CONJUNCTS = 64
_STRUCTURAL = frozenset({"allOf", "$ref", "$defs", "definitions"})
_EVERYTHING: Plain = {}
_NOTHING: Plain = {"enum": []}


def merge_all_of(schema: Plain, root: Plain) -> Plain:
    """Return the schema without `allOf`, and without a reference beside other keywords."""
    return merge(conjuncts(schema, lambda reference: resolve(reference, root)[1]))


def conjuncts(
    schema: Plain, follow: Callable[[str], object], beside_reference: tuple[str, ...] | None = None
) -> Iterator[Plain]:
    """Yield the schema, and breadth first the members of its `allOf` and the target of its `$ref`.

    `follow` returns the target of a reference, or None. `beside_reference` lists the only keywords that count beside
    one; by default all do. An object is visited once, so a cycle ends; repetitions and `true` are empty schemas.
    """
    waiting: deque[object] = deque([schema])
    visited: dict[int, object] = {}  # holds the objects, so that no other one gets their identities
    for _ in range(_MAX_CONJUNCTS):
        if not waiting:
            return
        part = waiting.popleft()
        if not isinstance(part, dict) or id(part) in visited:
            yield _NOTHING if part is False else _EVERYTHING
            continue
        visited[id(part)] = part
        if isinstance(reference := part.get("$ref"), str):
            if (target := follow(reference)) is not None:
                waiting.append(target)
            if beside_reference is not None:
                yield {keyword: part[keyword] for keyword in beside_reference if keyword in part}
                continue
        yield part
        if isinstance(members := part.get("allOf"), list):
            waiting.extend(members[:_MAX_CONJUNCTS])


def merge(parts: Iterable[Plain]) -> Plain:
    """Return the keywords of conjuncts in one schema, without those that `conjuncts` has followed."""
    merged: Plain = {}
    for part in parts:
        for keyword, value in part.items():
            if keyword in merged:
                merged[keyword] = _both(keyword, merged[keyword], value)
            elif keyword not in _STRUCTURAL:
                merged[keyword] = value
    return merged


def _both(keyword: str, one: Any, other: Any) -> Any:
    match keyword:
        case "properties" if isinstance(one, dict) and isinstance(other, dict):
            return one | {name: _all_of(one[name], each) if name in one else each for name, each in other.items()}
        case "items" if isinstance(one, dict) and isinstance(other, dict):
            return _all_of(one, other)
        case "required" if isinstance(one, list) and isinstance(other, list):
            return list(dict.fromkeys(name for name in (*one, *other) if isinstance(name, str)))
        case "enum" if isinstance(one, list) and isinstance(other, list):
            return common_values(one, other)
        case "type":
            return _common_types(one, other)
        case "additionalProperties":
            return False if one is False or other is False else other if one is True else one
        case "minimum" | "exclusiveMinimum" | "minLength" | "minItems" if _are_numbers(one, other):
            return max(one, other)
        case "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" if _are_numbers(one, other):
            return min(one, other)
        case _:
            return one


def _all_of(one: object, other: object) -> object:
    try:
        return one if one == other else {"allOf": [one, other]}
    except RecursionError:  # nested too deeply to compare
        return {"allOf": [one, other]}


def _common_types(one: object, other: object) -> object:
    """Return the types in both, where an integer is a number; those of the first where there are none."""
    first, second = (each if isinstance(each, list) else [each] for each in (one, other))
    common = [name for name in first if name in second or (name == "integer" and "number" in second)]
    common += ["integer"] if "number" in first and "integer" in second and "integer" not in common else []
    return common or one


def _are_numbers(*values: object) -> bool:
    return all(isinstance(value, int | float) for value in values)
