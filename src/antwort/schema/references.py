"""References and `allOf` in a JSON Schema: resolve, merge, and rewrite them when the schema moves to another document.

Only the document itself is read: nothing is ever fetched. A merged schema accepts whatever all of its parts accept.
Where two keywords cannot be expressed as one, the first one is kept, so it may accept more.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from antwort.api.wire import Plain
from antwort.schema.keywords import common_values

_MAX_CHAIN = 32
"""References in a row. Longer chains are attacks, and a cycle has no end."""
_MAX_REFERENCE_LENGTH = 1000
_MAX_CONJUNCTS = 64
_DEFINITION = re.compile(r"#/(?:\$defs|definitions)/([^/]+)(/.*)?")
_DEFINITIONS = ("$defs", "definitions")
_SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", *_DEFINITIONS})
_DATA = frozenset({"const", "enum", "default", "examples"})
_LOCATION = frozenset({"$id", "$anchor", "$dynamicAnchor", "$dynamicRef"})
_STRUCTURAL = frozenset({"allOf", "$ref", *_DEFINITIONS})
_EVERYTHING: Plain = {}
_NOTHING: Plain = {"enum": []}


# ---- references ----


def resolve(reference: str, root: Mapping[str, Any]) -> tuple[str, object]:
    """Follow a chain of references and return the last one with its target, which is None outside the document."""
    for _ in range(_MAX_CHAIN):
        target = lookup(reference, root)
        if not isinstance(target, dict) or not isinstance(following := target.get("$ref"), str) or len(target) > 1:
            return reference, target
        reference = following
    return reference, None


def lookup(reference: str, root: Mapping[str, Any]) -> object:
    """Return the target of one reference, which may be a reference itself, or None."""
    if reference == "#":
        return root
    if not reference.startswith("#/") or len(reference) > _MAX_REFERENCE_LENGTH:
        return None
    target: object = root
    for step in unquote(reference[2:]).split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            target = target.get(key) if isinstance(target, dict) else None
    return target


# ---- schemas that must all hold ----


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


# ---- another document ----


class NotRelocatable(Exception):
    """The schema refers to itself in a way that holds only at the root of its own document."""


def relocate(schema: Plain, prefix: str) -> tuple[Plain, Plain]:
    """Split the schema for use inside another document: without its definitions, and the definitions for its `$defs`.

    Each definition's name gets the prefix, and references follow; nothing else changes. Raises `NotRelocatable`.
    """
    body = {keyword: value for keyword, value in schema.items() if keyword not in (*_DEFINITIONS, "$schema")}
    definitions: Plain = {}
    try:
        for keyword in _DEFINITIONS:
            given = schema.get(keyword, {})
            if not isinstance(given, dict) or not definitions.keys().isdisjoint(f"{prefix}{name}" for name in given):
                raise NotRelocatable
            definitions |= {f"{prefix}{name}": _relocated(each, prefix) for name, each in given.items()}
        return _relocated(body, prefix), definitions
    except RecursionError as exc:
        raise NotRelocatable from exc


def _relocated(value: Any, prefix: str) -> Any:
    if isinstance(value, list):
        return [_relocated(each, prefix) for each in value]
    if not isinstance(value, dict):
        return value
    if not _LOCATION.isdisjoint(value):
        raise NotRelocatable
    made: Plain = {}
    for keyword, inner in value.items():
        if keyword == "$ref" and isinstance(inner, str):
            definition = _DEFINITION.fullmatch(inner)
            if definition is None:
                raise NotRelocatable
            made[keyword] = f"#/$defs/{prefix}{definition[1]}{definition[2] or ''}"
        elif keyword in _SCHEMAS_BY_NAME and isinstance(inner, dict):
            made[keyword] = {name: _relocated(each, prefix) for name, each in inner.items()}
        else:
            made[keyword] = inner if keyword in _DATA else _relocated(inner, prefix)
    return made
