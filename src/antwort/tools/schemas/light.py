"""Of a schema that a stranger wrote, what can be checked in no time. Pure.

A validator can be kept busy for minutes: by patterns, by references that double at each step, by lists without end. So
references are written out, as far as they go; what a thing costs is bounded by its size; and what is left out takes
more than it did, never less. What is left is checked by whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping

from antwort.api.wire import Plain
from antwort.pointers import resolved
from antwort.tools.schemas.size import is_reasonable

_MOST_NODES, _DEEPEST = 1_000, 24
_MOST_VALUES = 256
_VALUES = frozenset(
    (
        *("type", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    )
)
_LISTS = ("enum", "required")
_INNER = ("items", "additionalItems", "additionalProperties", "propertyNames")
_SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems")


class TooLarge(Exception):
    """It is left to whoever wrote it."""


def lightened(schema: Plain) -> tuple[Plain, int]:
    """The schema as far as it is checked here, and how many parts it has. Raises `TooLarge`."""
    if not is_reasonable(schema):
        raise TooLarge
    work = _Lightening(schema)
    made = work.node(schema, ("#",), 0)
    if not isinstance(made, dict):
        raise TooLarge
    if isinstance(version := schema.get("$schema"), str):
        made["$schema"] = version
    return made, work.nodes


class _Lightening:
    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root
        self.nodes = 0

    def node(self, schema: object, path: tuple[str, ...], depth: int) -> Plain | bool:
        self._count(1)
        if schema is False:
            return False
        if not isinstance(schema, dict) or depth > _DEEPEST or (depth and "$id" in schema):
            return {}
        if "$ref" in schema:
            return self._referred(schema["$ref"], path, depth)
        made: Plain = {word: value for word, value in schema.items() if word in _VALUES}
        for word in _LISTS:
            if isinstance(values := schema.get(word), list) and len(values) <= _MOST_VALUES:
                self._count(len(values))
                made[word] = values
        return made | self._inner(schema, path, depth + 1)

    def _count(self, more: int) -> None:
        self.nodes += more
        if self.nodes > _MOST_NODES:
            raise TooLarge

    def _referred(self, reference: object, path: tuple[str, ...], depth: int) -> Plain | bool:
        """What it refers to. What refers to itself is checked once; what stands beside a reference, not at all."""
        pointer, target = resolved(reference, self._root) if isinstance(reference, str) else ("", None)
        return {} if pointer in path or target is None else self.node(target, (*path, pointer), depth + 1)

    def _inner(self, schema: Plain, path: tuple[str, ...], depth: int) -> Plain:
        made: Plain = {}
        if isinstance(named := schema.get("properties"), dict):
            made["properties"] = {name: self.node(each, path, depth) for name, each in named.items()}
        for word in _INNER:
            if word in schema and not isinstance(schema[word], list):
                made[word] = self.node(schema[word], path, depth)
        for word in _SEVERAL:
            if isinstance(choices := schema.get(word), list) and choices:
                made[word] = [self.node(each, path, depth) for each in choices]
        if "patternProperties" in schema:  # which are additional is a matter of patterns
            made.pop("additionalProperties", None)
        if "oneOf" in made:  # of what takes more than it did, several may fit
            made["allOf"] = [*made.get("allOf", ()), {"anyOf": made.pop("oneOf")}]
        return made
