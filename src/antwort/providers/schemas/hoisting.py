"""A schema that becomes a part of another document, unchanged but for its references. Pure."""

from __future__ import annotations

import re

from antwort.api.wire import Plain

_DEFINED = re.compile(r"#/(?:\$defs|definitions)/([^/]+)(/.*)?")
_DEFINITIONS = ("$defs", "definitions")
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", *_DEFINITIONS})
"""What holds schemas by names of the client's."""
_DATA = frozenset({"const", "enum", "default", "examples"})
_PLACED = frozenset({"$id", "$anchor", "$dynamicAnchor", "$dynamicRef"})


class Fixed(Exception):
    """The schema refers to itself in a way that holds only where it stands."""


def hoisted(schema: Plain, prefix: str) -> tuple[Plain, Plain]:
    """The schema without its definitions, and these, each name with the prefix, to stand under `$defs` of the document.

    Raises `Fixed`.
    """
    try:
        rest = {word: value for word, value in schema.items() if word not in (*_DEFINITIONS, "$schema")}
        return _moved(rest, prefix), _definitions(schema, prefix)
    except RecursionError as exc:
        raise Fixed from exc


def _definitions(schema: Plain, prefix: str) -> Plain:
    made: Plain = {}
    for word in _DEFINITIONS:
        given = schema.get(word, {})
        if not isinstance(given, dict) or not made.keys().isdisjoint(f"{prefix}{name}" for name in given):
            raise Fixed
        made |= {f"{prefix}{name}": _any_moved(each, prefix) for name, each in given.items()}
    return made


def _moved(schema: Plain, prefix: str) -> Plain:
    if not _PLACED.isdisjoint(schema):
        raise Fixed
    return {word: _word(word, value, prefix) for word, value in schema.items()}


def _word(word: str, value: object, prefix: str) -> object:
    if word == "$ref" and isinstance(value, str):
        return _reference(value, prefix)
    if word in _NAMED and isinstance(value, dict):
        return {name: _any_moved(each, prefix) for name, each in value.items()}
    return value if word in _DATA else _any_moved(value, prefix)


def _any_moved(value: object, prefix: str) -> object:
    match value:
        case dict():
            return _moved(value, prefix)
        case list():
            return [_any_moved(each, prefix) for each in value]
        case _:
            return value


def _reference(reference: str, prefix: str) -> str:
    found = _DEFINED.fullmatch(reference)
    if found is None:
        raise Fixed
    return f"#/$defs/{prefix}{found[1]}{found[2] or ''}"
