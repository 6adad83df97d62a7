"""References within a JSON Schema: resolve them, and rewrite them when the schema moves into another document.

Only the document itself is read: nothing is ever fetched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from antwort.api.wire import Plain

_MAX_CHAIN = 32
"""References in a row. Longer chains are attacks, and a cycle has no end."""
_MAX_REFERENCE_LENGTH = 1000

_DEFINITION = re.compile(r"#/(?:\$defs|definitions)/([^/]+)(/.*)?")
_DEFINITIONS = ("$defs", "definitions")
_SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", *_DEFINITIONS})
_DATA = frozenset({"const", "enum", "default", "examples"})
_LOCATION = frozenset({"$id", "$anchor", "$dynamicAnchor", "$dynamicRef"})


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
