"""Normalize the schemas of tool servers to the subset of JSON Schema that every backend takes.

References are inlined; unions with null, lists of types, constants and boolean schemas are rewritten; keywords that
only validators understand are left out. So a normalized schema may accept arguments that the tool's own schema rejects:
the arguments of a call are validated against the tool's own. What the tool accepts, the normalized schema accepts, with
three exceptions. An optional property need not accept null. A schema without a type that has keywords for properties,
lengths, bounds or items accepts only the types of these. A property that only some alternatives describe, beside other
keywords, accepts only what those accept.

Schemas are untrusted: however one is written, normalizing it takes milliseconds. Beyond the bounds, the result is an
object with any properties.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from antwort.api.wire import Plain
from antwort.caching import Cache
from antwort.schema.keywords import (
    declared_types,
    distinct,
    implied_types,
    item_schemas,
    length_range,
    list_of,
    measure,
    numeric_range,
    plain_pattern,
    range_keywords,
)
from antwort.schema.references import conjuncts, merge, resolve

ANY_VALUE: Plain = {
    "anyOf": [
        {"type": "string"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "object"},
        {"type": "array", "items": {}},
        {"type": "null"},
    ]
}
"""Accepts any value. Written out: some backends take an empty schema for an object, and some take none."""
ANY_ARGUMENTS: Plain = {"type": "object", "properties": {}}

_BOUNDS = ((16, 1000), (6, 300), (3, 100))
"""Depth and nodes of a normalized schema. Where the result is still too long, the next bounds are tried."""
_MAX_CHARACTERS = 48 * 1024
_MAX_PROPERTIES = 1000
_MAX_PATTERNS = 8
"""To parse one takes as long as a hundred other keywords."""
_MAX_REFERENCES = 300
_ENTRIES_PER_NODE = 8
"""Values or names in a list that are as much work as one node."""
_MAX_DESCRIPTION, _MAX_DEFAULT = 1000, 200
_MAX_ENUM_VALUES, _MAX_ENUM_BYTES = 256, 8192
_MAX_LENGTH, _MAX_ITEMS, _MAX_NUMBER = 1000, 256, 2**53
_FORMATS = frozenset({"date", "time", "date-time", "duration", "uuid", "email", "uri", "hostname", "ipv4", "ipv6"})
_SHAPE = frozenset({"type", "properties", "required", "items", "prefixItems", "enum", "const", "additionalProperties"})
_ANNOTATIONS = ("description", "default")
_TYPE_NAMES: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


# ---- the cache ----


class NormalizedSchemaCache:
    """Cache normalized schemas by the identity of the given ones, and by content.

    The identity saves encoding a schema for every request. Each schema found by it is referenced, so that its identity
    is not reused; `max_values` bounds how much memory that takes.
    """

    def __init__(self, max_values: int = 500_000, max_contents: int = 2048) -> None:
        self._by_identity = Cache[int, tuple[Plain, Plain]](max_values, max_size=max_values)
        self._by_content = Cache[bytes, Plain](max_contents)

    def __contains__(self, schema: Plain) -> bool:
        return id(schema) in self._by_identity

    def normalize(self, schema: Plain) -> Plain:
        """Return the normalized schema of a tool's arguments. It is cached, and must not be changed."""
        cached = self._by_identity.get(id(schema))
        if cached is not None:
            return cached[1]
        size = measure(schema)
        if size is None:
            return ANY_ARGUMENTS  # and not cached: it may be as large as a server's message
        try:
            key = hashlib.sha256(msgspec.json.encode(schema)).digest()
        except (TypeError, ValueError, RecursionError):
            return ANY_ARGUMENTS  # not JSON, or nested too deeply
        normalized = self._by_content.get(key)
        if normalized is None:
            normalized = _normalize(schema)
            self._by_content.put(key, normalized)
        self._by_identity.put(id(schema), (schema, normalized), size)
        return normalized


_cache = NormalizedSchemaCache()
normalize = _cache.normalize


async def normalize_all(schemas: Iterable[Plain]) -> None:
    """Normalize schemas ahead of their use, and let other tasks run after each that was not cached."""
    for schema in schemas:
        if schema not in _cache:
            _cache.normalize(schema)
            await asyncio.sleep(0)


# ---- one schema ----


class _NormalizerPosition(msgspec.Struct, frozen=True):
    depth: int = 0
    path: tuple[str, ...] = ("#",)
    """The references that led here. One that is met again is cut."""
    is_optional: bool = False
    """Whether the value may be left out: then it need not be null."""

    def inner(self, *, is_optional: bool = False) -> _NormalizerPosition:
        return _NormalizerPosition(self.depth + 1, self.path, is_optional)


class _TooLong(Exception):
    """The normalized schema would exceed `_MAX_CHARACTERS`."""


def _normalize(schema: Plain) -> Plain:
    for max_depth, max_nodes in _BOUNDS:
        with suppress(_TooLong):
            normalizer = _Normalizer(schema, max_depth, max_nodes)
            made = _one_object(normalizer.node({"type": "object", **schema}, _NormalizerPosition()))
            if len(msgspec.json.encode(made)) <= _MAX_CHARACTERS:
                return made
    return ANY_ARGUMENTS


class _Normalizer:
    """Normalize one schema within the given bounds. Raises `_TooLong`."""

    def __init__(self, root: Mapping[str, object], max_depth: int, max_nodes: int) -> None:
        self._root, self._max_depth = root, max_depth
        self._nodes_left = max_nodes
        self._characters_left = _MAX_CHARACTERS
        self._patterns: set[str] = set()
        self._resolved: dict[str, tuple[str, object]] = {}
        self._enums: dict[tuple[int, bool], tuple[object, Plain | None]] = {}  # holds what has the identity

    def node(self, schema: object, position: _NormalizerPosition) -> Plain | None:
        """Return None where no value fits the schema."""
        self._nodes_left -= 1
        if schema is False:
            return None
        if not isinstance(schema, dict) or not schema:
            return ANY_VALUE
        is_embedded = position.depth > 0 and isinstance(schema.get("$id"), str)  # its references are about itself
        if position.depth > self._max_depth or self._nodes_left < 0 or is_embedded:
            return self._annotated(_stub(schema), schema)
        keywords, position = self._merged(schema, position)
        if self._nodes_left < 0:
            return self._annotated(_stub(schema), schema)
        normalized = self._unannotated(keywords, position)
        return None if normalized is None else self._annotated(normalized, keywords)

    def _merged(self, schema: Plain, position: _NormalizerPosition) -> tuple[Plain, _NormalizerPosition]:
        """Merge all that must hold, references followed. Beside a reference only annotations count: to older
        validators other keywords are not there.
        """
        if "$ref" not in schema and "allOf" not in schema:
            self._nodes_left -= _weight(schema)
            return schema, position
        path = position.path

        def follow(reference: str) -> object:
            nonlocal path
            pointer, target = self._resolve(reference)
            if pointer in path:
                return None if (cut := _stub(target)) is ANY_VALUE else cut
            if target is not None:
                path = (*path, pointer)
            return target

        parts: list[Plain] = []
        for part in conjuncts(schema, follow, beside_reference=_ANNOTATIONS):
            self._nodes_left -= bool(parts) + _weight(part)
            if self._nodes_left < 0:
                break
            parts.append(part)
        return merge(parts), _NormalizerPosition(position.depth, path, position.is_optional)

    def _resolve(self, reference: str) -> tuple[str, object]:
        resolved = self._resolved.get(reference)
        if resolved is None:
            is_within = len(self._resolved) < _MAX_REFERENCES
            resolved = self._resolved[reference] = resolve(reference, self._root) if is_within else (reference, None)
        return resolved

    def _annotated(self, normalized: Plain, keywords: Plain) -> Plain:
        """Add description and default. They count: the same node may be there a thousand times with its description."""
        annotations: Plain = {}
        if isinstance(about := keywords.get("description"), str) and about.strip():
            annotations["description"] = about if len(about) <= _MAX_DESCRIPTION else f"{about[:_MAX_DESCRIPTION]}…"
        default = keywords.get("default")
        if (
            default is not None
            and measure(default, _MAX_DEFAULT, _MAX_DEFAULT) is not None
            and len(msgspec.json.encode(default)) <= _MAX_DEFAULT
        ):
            annotations["default"] = default
        made = {**normalized, **annotations} if annotations else normalized
        self._spend_characters(len(made.get("description", "")))
        return made

    def _spend_characters(self, count: int) -> None:
        self._characters_left -= count
        if self._characters_left < 0:
            raise _TooLong

    def _unannotated(self, keywords: Plain, position: _NormalizerPosition) -> Plain | None:
        if choices := _alternatives(keywords):
            return self._any_of(choices, position)
        if "const" in keywords:
            return self._enum(keywords["const"], [keywords["const"]], position)
        if isinstance(values := keywords.get("enum"), list):
            return self._enum(values, values, position)
        types = _types(keywords)
        if position.is_optional and len(types) > 1:
            types = tuple(name for name in types if name != "null")
        if not types:
            return ANY_VALUE
        made = [each for name in types if (each := self._of_type(name, keywords, position)) is not None]
        return _union(made) if made else None

    def _any_of(self, choices: list[object], position: _NormalizerPosition) -> Plain | None:
        inner = position.inner(is_optional=position.is_optional)
        normalized = [each for choice in choices if (each := self.node(choice, inner)) is not None]
        if position.is_optional:
            normalized = [each for each in normalized if each.get("type") != "null"] or normalized
        return _union(normalized) if normalized else None

    def _enum(self, source: object, values: list[object], position: _NormalizerPosition) -> Plain | None:
        """Normalize the values of one source once: the same one may be referred to a thousand times."""
        key = (id(source), position.is_optional)
        if key not in self._enums:
            self._enums[key] = source, _enumeration(values, is_optional=position.is_optional)
        self._nodes_left -= len(values) // _ENTRIES_PER_NODE
        return self._enums[key][1]

    def _of_type(self, name: str, keywords: Plain, position: _NormalizerPosition) -> Plain | None:
        match name:
            case "object":
                return self._object(keywords, position)
            case "array":
                return self._array(keywords, position)
            case "string":
                return self._string(keywords)
            case "integer" | "number":
                return {"type": name, **numeric_range(keywords, _MAX_NUMBER, is_integer=name == "integer")}
            case _:
                return {"type": name}

    def _string(self, keywords: Plain) -> Plain:
        made = {"type": "string", **_lengths(keywords, "minLength", "maxLength", _MAX_LENGTH)}
        if isinstance(pattern := keywords.get("pattern"), str):
            if len(self._patterns) < _MAX_PATTERNS:
                self._patterns.add(pattern)
            if pattern in self._patterns and (plain := plain_pattern(pattern)) is not None:
                made["pattern"] = plain
        if isinstance(name := keywords.get("format"), str) and name in _FORMATS:
            made["format"] = name
        return made

    def _array(self, keywords: Plain, position: _NormalizerPosition) -> Plain:
        first, rest = item_schemas(keywords)
        made: Plain = {"type": "array", "items": {}, **_lengths(keywords, "minItems", "maxItems", _MAX_ITEMS)}
        inner = position.inner()
        items = [each for item in (*first, rest) if (each := self.node(item, inner)) is not None]
        if rest is False:
            made["maxItems"] = min(len(first), made.get("maxItems", len(first)))
        return {**made, "items": _union(items)} if items else made

    def _object(self, keywords: Plain, position: _NormalizerPosition) -> Plain | None:
        additional = True if keywords.get("patternProperties") else keywords.get("additionalProperties", True)
        required = [name for name in list_of(keywords.get("required")) if isinstance(name, str)]
        properties = self._properties(keywords, required, additional, position)
        if len(properties) > _MAX_PROPERTIES:
            return {"type": "object"}
        self._spend_characters(sum(map(len, properties)))
        needed, optional = position.inner(), position.inner(is_optional=True)
        names = frozenset(required)
        kept: Plain = {}
        is_possible = True
        for name, schema in properties.items():
            normalized = self.node(schema, needed if name in names else optional)
            if normalized is not None:
                kept[name] = normalized
            elif name in names:
                is_possible = False
        if not is_possible:
            return None
        made: Plain = {"type": "object", **({"properties": kept} if kept else {})}
        if listed := [name for name in kept if name in names]:
            made["required"] = listed
        others = self.node(additional, needed)
        if others is None:
            made["additionalProperties"] = False
        elif others != ANY_VALUE:
            made["additionalProperties"] = others
        return made

    def _properties(
        self, keywords: Plain, required: list[str], additional: object, position: _NormalizerPosition
    ) -> dict[str, object]:
        """Return the properties that are described, also in an alternative, and those that are only required."""
        given = keywords.get("properties")
        properties: dict[str, object] = dict(given) if isinstance(given, dict) else {}
        if additional is False:  # no other property fits, even if it is required
            return properties
        found: dict[str, list[object]] = {}
        for choice in (*list_of(keywords.get("anyOf")), *list_of(keywords.get("oneOf"))):
            inner = self._merged(choice, position)[0].get("properties") if isinstance(choice, dict) else None
            for name, schema in inner.items() if isinstance(inner, dict) else ():
                found.setdefault(name, []).append(schema)
        for name, choices in found.items():
            properties.setdefault(name, choices[0] if len(choices) == 1 else {"anyOf": choices})
        return properties | {name: additional for name in required if name not in properties}


def _weight(schema: Plain) -> int:
    """Return the work beyond that of the nodes: lists are read to their ends, however often they are met."""
    return sum(len(each) for each in schema.values() if isinstance(each, list | dict)) // _ENTRIES_PER_NODE


def _types(keywords: Mapping[str, object]) -> tuple[str, ...]:
    """Return the types that a schema names or implies; none where it may accept any."""
    if "type" not in keywords:
        return implied_types(keywords)
    types, given = declared_types(keywords), keywords["type"]
    return () if len(types) < (len(given) if isinstance(given, list) else 1) else types


def _stub(schema: object) -> Plain:
    """Return the type alone of a schema that leads too far."""
    types = _types(schema) if isinstance(schema, dict) else ()
    if len(types) != 1:
        return ANY_VALUE
    return {"type": "array", "items": {}} if types[0] == "array" else {"type": types[0]}


def _alternatives(keywords: Plain) -> list[object]:
    """Return the alternatives of a schema that is nothing else. Keywords beside them would be kept instead of them."""
    for keyword in ("anyOf", "oneOf"):
        if choices := list_of(keywords.get(keyword)):
            shape = _SHAPE.intersection(keywords)
            if not shape:
                return choices
            if shape == {"type"}:
                return [{"allOf": [choice, {"type": keywords["type"]}]} for choice in choices]
    return []


def _lengths(keywords: Plain, low: str, high: str, limit: int) -> Plain:
    minimum, maximum = length_range(keywords, low, high, limit)
    return range_keywords(low, minimum, high, maximum)


def _enumeration(values: Sequence[object], *, is_optional: bool) -> Plain | None:
    """Null is left out where the value may be left out instead."""
    given = [value for value in values if value is not None]
    if not given:
        return {"type": "null"} if values else None
    types = {_TYPE_NAMES.get(type(value), "object") for value in given}
    made: Plain = {"type": types.pop()} if len(types) == 1 else {}
    if len(given) > _MAX_ENUM_VALUES or len(msgspec.json.encode(given)) > _MAX_ENUM_BYTES:
        made = _stub(made)
    else:
        made["enum"] = given
    return made if len(given) == len(values) or is_optional else _union([made, {"type": "null"}])


def _union(choices: Sequence[Plain]) -> Plain:
    """Return one schema for several alternatives, without repetitions. Any value absorbs all others."""
    flat = [each for choice in choices for each in (choice["anyOf"] if choice.keys() == {"anyOf"} else [choice])]
    if len(flat) == 1:
        return flat[0]
    different = distinct(flat)
    if ANY_VALUE in choices or not different:
        return ANY_VALUE
    return {"anyOf": different} if len(different) > 1 else different[0]


# ---- arguments ----


def _one_object(schema: Plain | None) -> Plain:
    """Return one object for a union of objects: it accepts what any of them accepts."""
    if schema is None:
        return ANY_ARGUMENTS
    if schema.get("type") == "object":
        return schema if "properties" in schema else {**schema, "properties": {}}
    objects = [_one_object(choice) for choice in schema.get("anyOf", ()) if choice.get("type") == "object"]
    if not objects:
        return ANY_ARGUMENTS
    names = dict.fromkeys(name for each in objects for name in each["properties"])
    made: Plain = {"type": "object", "properties": {name: _property_of_any(name, objects) for name in names}}
    if required := [name for name in names if all(name in each.get("required", ()) for each in objects)]:
        made["required"] = required
    if all(each.get("additionalProperties") is False for each in objects):
        made["additionalProperties"] = False
    return made


def _property_of_any(name: str, objects: Sequence[Plain]) -> Plain:
    """Return the union of a property over all objects. Those that are open and do not describe it accept any value."""
    choices: list[Plain] = []
    for each in objects:
        given = each["properties"].get(name, each.get("additionalProperties", ANY_VALUE))
        if isinstance(given, dict):
            choices.append(given)
    union = _union(choices)
    about = next((choice["description"] for choice in choices if "description" in choice), None)
    return union if about is None or "description" in union else {**union, "description": about}
