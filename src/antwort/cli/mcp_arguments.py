"""Arguments of a tool as they are written on a command line. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from antwort.cli.subjects import Misused


def read_arguments(words: Sequence[str], schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """A JSON object, or `name=value` for each: text as it is where the tool wants text, JSON otherwise. Raises
    `Misused`.
    """
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        return _object(words[0])
    given: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise Misused(f"{word!r} is not an argument: give a JSON object, or NAME=VALUE for each.")
        if name in given:
            raise Misused(f"The argument {name!r} is given twice.")
        given[name] = _value(value, _kinds(schema, name))
    return given


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise Misused(f"The arguments are not valid JSON: {exc}.") from exc
    assert isinstance(found, dict), "what begins like an object is one"
    return found


def _kinds(schema: Mapping[str, Any] | None, name: str) -> frozenset[str]:
    """The types that the tool takes for the argument; empty where it does not say."""
    properties = schema.get("properties") if schema else None
    said = properties.get(name) if isinstance(properties, Mapping) else None
    if not isinstance(said, Mapping):
        return frozenset()
    choices = [said, *(each for key in ("anyOf", "oneOf") for each in _list(said.get(key)))]
    kinds = [kind for each in choices if isinstance(each, Mapping) for kind in _list(each.get("type"))]
    return frozenset(kind for kind in kinds if isinstance(kind, str))


def _list(value: object) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def _value(text: str, kinds: frozenset[str]) -> Any:
    if kinds and kinds <= {"string", "null"}:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text  # the tool says itself what is wrong with it
