"""Tools in words that a small model reads at a glance: `get_weather(city: string, unit?: "C" | "F")`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from antwort.providers.base import ChatTool
from antwort.schema.merge import merge_all_of as merged
from antwort.schema.refs import lookup as found

_DEPTH = 4
"""Deeper than this a type is `any`, as is what has no short name: the schema that constrains the answer holds all."""
_MOST_NODES = 2_000
"""In one tool. Beyond, a type is `any`: alternatives and references can make a small schema large."""
_MOST_CHOICES = 8
"""Of one call's arguments."""
_MOST_INNER, _SHORT = 16, 80
"""Descriptions of parts of parameters that are told, and how long one may be."""


def listing(tools: Sequence[ChatTool]) -> str:
    """All tools, a line each, and a line for each parameter that is described."""
    return "\n".join(line for tool in tools for line in _lines(tool))


def _lines(tool: ChatTool) -> Iterator[str]:
    function = tool.function
    schema = function.parameters if isinstance(function.parameters, dict) else {}
    about = f" - {_flat(function.description)}" if isinstance(function.description, str) else ""
    roots, types = _roots(schema), _Types(schema)
    yield " or ".join(dict.fromkeys(f"{function.name}({_parameters(root, types)})" for root in roots)) + about
    yield from dict.fromkeys(line for root in roots for line in _descriptions(root, types))


def _roots(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """What arguments may be, one or another: what is said by reference and in parts is put together."""
    root = merged(schema, schema) if "$ref" in schema or "allOf" in schema else schema
    for word in ("anyOf", "oneOf"):
        if isinstance(choices := root.get(word), list):
            rest = {key: value for key, value in root.items() if key != word}
            made = [merged({"allOf": [rest, choice]}, schema) for choice in choices[:_MOST_CHOICES]]
            return [each for each in made if each.get("type") == "object" or _properties(each)] or [root]
    return [root]


def _parameters(root: Mapping[str, Any], types: _Types) -> str:
    try:
        return types.fields(root, 0)
    except RecursionError:  # alternatives of alternatives, without end
        return "..."


def _descriptions(root: Mapping[str, Any], types: _Types) -> Iterator[str]:
    """Of each parameter, and the short ones of its parts."""
    left = _MOST_INNER
    for name, field in _properties(root).items():
        if said := _said(field):
            yield f"  {name}: {said}"
        for path, said in islice(types.inner(field, name, 1), left):
            left -= 1
            yield f"  {path}: {said}"


def _said(field: object) -> str:
    said = field.get("description") if isinstance(field, Mapping) else None
    return _flat(said) if isinstance(said, str) else ""


def _flat(text: str) -> str:
    return " ".join(text.split())


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    given = schema.get("properties")
    return given if isinstance(given, Mapping) else {}


class _Types:
    """The types in one schema. What a reference stands for is worked out once at each depth: they may multiply."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[tuple[str, int], str] = {}
        self._nodes = 0

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
        if self._is_over():
            return "any"
        if "allOf" in schema:
            return self._type(self._merged(schema), depth + 1)
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
            known = self._known[reference, depth] = self._type(found(reference, self._root), depth)
        return known

    def inner(self, field: object, path: str, depth: int) -> Iterator[tuple[str, str]]:
        """Where parts of a parameter stand, and what is said of them, as far as it is short."""
        if not isinstance(field, Mapping) or depth > _DEPTH or self._is_over():
            return
        schema = self._merged(field) if "$ref" in field or "allOf" in field else field
        for word in ("anyOf", "oneOf"):
            for choice in schema[word] if isinstance(schema.get(word), list) else ():
                yield from self.inner(choice, path, depth + 1)
        yield from self.inner(schema.get("items"), f"{path}[]", depth + 1)
        for name, part in _properties(schema).items():
            if (said := _said(part)) and len(said) <= _SHORT:
                yield f"{path}.{name}", said
            yield from self.inner(part, f"{path}.{name}", depth + 1)

    def _merged(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        one = merged(dict(schema), self._root)
        self._nodes += len(_properties(one))  # what was copied was work, too
        return one

    def _is_over(self) -> bool:
        self._nodes += 1
        return self._nodes > _MOST_NODES

    def _of_kind(self, kind: object, schema: Mapping[str, Any], depth: int) -> str:
        if kind == "array":
            inner = self._type(schema.get("items"), depth + 1)
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        if kind == "object" or _properties(schema):
            return f"{{{self.fields(schema, depth)}}}" if _properties(schema) else "object"
        return kind if isinstance(kind, str) else "any"
