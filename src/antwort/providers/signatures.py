"""Tools in words that a small model reads at a glance: `get_weather(city: string, unit?: "C" | "F")`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from antwort.providers.base import ChatTool

_DEPTH = 4
"""Deeper than this a type is `any`, as is what has no short name: the schema that constrains the answer holds all."""


def listing(tools: Sequence[ChatTool]) -> str:
    """All tools, a line each, and a line for each parameter that is described."""
    return "\n".join(line for tool in tools for line in _lines(tool))


def _lines(tool: ChatTool) -> Iterator[str]:
    function = tool.function
    schema = function.parameters if isinstance(function.parameters, dict) else {}
    about = f" - {_flat(function.description)}" if isinstance(function.description, str) else ""
    yield f"{function.name}({_parameters(schema)}){about}"
    for name, field in _properties(schema).items():
        if isinstance(field, Mapping) and isinstance(said := field.get("description"), str) and said.strip():
            yield f"  {name}: {_flat(said)}"


def _parameters(schema: Mapping[str, Any]) -> str:
    try:
        return _Types(schema).fields(schema, 0)
    except RecursionError:  # alternatives of alternatives, without end
        return "..."


def _flat(text: str) -> str:
    return " ".join(text.split())


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


class _Types:
    """The types in one schema. What a reference stands for is worked out once at each depth: they may multiply."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[tuple[str, int], str] = {}

    def fields(self, schema: Mapping[str, Any], depth: int) -> str:
        required = schema.get("required")
        needed = required if isinstance(required, list) else []
        return ", ".join(
            f"{name}{'' if name in needed else '?'}: {self._type(field, depth + 1)}"
            for name, field in _properties(schema).items()
        )

    def _type(self, schema: object, depth: int) -> str:
        if not isinstance(schema, Mapping) or depth > _DEPTH:
            return "any"
        if isinstance(reference := schema.get("$ref"), str):
            return self._referred(reference, depth + 1)
        if "const" in schema:
            return json.dumps(schema["const"], ensure_ascii=False)
        if isinstance(values := schema.get("enum"), list):
            return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
        for word in ("anyOf", "oneOf"):
            if isinstance(choices := schema.get(word), list):
                return " | ".join(dict.fromkeys(self._type(choice, depth) for choice in choices))
        kind = schema.get("type")
        if isinstance(kind, list):
            return " | ".join(self._type({**schema, "type": one}, depth) for one in kind)
        return self._of_kind(kind, schema, depth)

    def _referred(self, reference: str, depth: int) -> str:
        known = self._known.get((reference, depth))
        if known is None:
            known = self._known[reference, depth] = self._type(_found(reference, self._root), depth)
        return known

    def _of_kind(self, kind: object, schema: Mapping[str, Any], depth: int) -> str:
        if kind == "array":
            inner = self._type(schema.get("items"), depth + 1)
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        if kind == "object" or _properties(schema):
            return f"{{{self.fields(schema, depth)}}}" if _properties(schema) else "object"
        return kind if isinstance(kind, str) else "any"


def _found(reference: str, root: Mapping[str, Any]) -> object:
    """What a reference within the same schema points to; None for any other."""
    if not reference.startswith("#/"):
        return None
    place: object = root
    for step in reference[2:].split("/"):
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
    return place
