"""Arguments of a tool as they are written on a command line. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from antwort.cli.subjects import Misused
from antwort.schema.references import resolve

_DEEPEST, _MOST_CHOICES = 6, 16
_KINDS: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
}


def read_arguments(words: Sequence[str], schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """A JSON object, or `name=value` for each: text as it is where the tool takes text, JSON otherwise. Raises
    `Misused`.
    """
    for word in words:
        if any("\ud800" <= character <= "\udfff" for character in word):
            raise Misused(f"{word!r} is not an argument: it is not valid UTF-8.")
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
        found = _loads(text)
    except ValueError as exc:
        raise Misused(f"The arguments are not valid JSON: {exc}.") from exc
    except RecursionError as exc:
        raise Misused("The arguments are nested too deep.") from exc
    assert isinstance(found, dict), "what begins like an object is one"
    return found


def _loads(text: str) -> Any:
    """Raises `ValueError`, also for the numbers that Python writes and JSON has not, and `RecursionError`."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no number in JSON")

    return json.loads(text, parse_constant=refuse)


def _kinds(schema: Mapping[str, Any] | None, name: str) -> frozenset[str]:
    """The types that the tool takes for the argument; empty where it does not say."""
    properties = schema.get("properties") if schema else None
    said = properties.get(name) if isinstance(properties, Mapping) else None
    return frozenset(_kinds_in(said, schema or {}, _DEEPEST))


def _kinds_in(said: object, root: Mapping[str, Any], left: int) -> Iterator[str]:
    if not isinstance(said, Mapping) or not left:
        return
    yield from (kind for kind in _list(said.get("type")) if isinstance(kind, str))
    values = [said["const"]] if "const" in said else _list(said.get("enum"))
    yield from (_KINDS.get(type(value), "object") for value in values)
    if isinstance(reference := said.get("$ref"), str):
        yield from _kinds_in(resolve(reference, root)[1], root, left - 1)
    for key in ("anyOf", "oneOf", "allOf"):
        for each in _list(said.get(key))[:_MOST_CHOICES]:
            yield from _kinds_in(each, root, left - 1)


def _list(value: object) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def _value(text: str, kinds: frozenset[str]) -> Any:
    """Where the tool takes text, only what is clearly no text is read as something else that it takes."""
    takes_parts = bool(kinds & {"object", "array"}) and text.lstrip()[:1] in ("{", "[")
    if "string" in kinds and not takes_parts:
        return text
    try:
        return _loads(text)
    except (ValueError, RecursionError):
        return text  # the tool says itself what is wrong with it
