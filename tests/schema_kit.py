"""Schemas that people give their tools, and texts that a decoder held to a schema can write."""

from __future__ import annotations

import json
import string
from typing import Any, TypeAlias

from hypothesis import strategies as st

Schema: TypeAlias = dict[str, Any]

NAMES = st.sampled_from(["a", "b", "city", "x y", "naïve", "$ref", 'q"', "type"])
PATTERNS = st.sampled_from(["^[a-z]{1,4}$", r"^\d+$", "^(?:on|off)$", r"^[\w.]+-\d{2}$"])


# ---- schemas ----


def tool_schemas() -> st.SearchStrategy[Schema]:
    """Those whose every word can be held to: whatever fits them cleaned fits them as they are."""
    return st.builds(_with_definitions, objects(_values()), objects(st.just({"type": "integer"})))


def objects(values: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    properties = st.dictionaries(NAMES, values, max_size=3)
    return properties.flatmap(
        lambda given: st.builds(
            _object,
            st.just(given),
            st.lists(st.sampled_from(sorted(given)), unique=True) if given else st.just([]),
            st.sampled_from([None, True, False, {"type": "integer"}]),
        )
    )


def _object(properties: Schema, required: list[str], more: bool | Schema | None) -> Schema:
    made: Schema = {"type": "object", "properties": properties, "required": required}
    return made if more is None else {**made, "additionalProperties": more}


def _with_definitions(schema: Schema, inner: Schema) -> Schema:
    """Two that refer to each other, and end."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "leaf": {"$ref": "#/$defs/leaf"}}}
    return {**schema, "$defs": {"node": node, "leaf": inner}}


def _values() -> st.SearchStrategy[Schema]:
    return st.recursive(_leaves(), _around, max_leaves=6)


def _leaves() -> st.SearchStrategy[Schema]:
    plain: list[Schema] = [{"type": kind} for kind in ("string", "number", "integer", "boolean", "null")]
    plain += [{}, {"type": ["string", "null"]}, {"const": {"k": [1, "é"]}}, {"enum": ["C", "F", None, 3]}]
    plain += [{"type": "string", "enum": ["a", 1]}, {"$ref": "#/$defs/node"}, {"$ref": "#/$defs/leaf"}]
    plain += [{"type": "object"}, {"type": "array"}, {"allOf": [{"type": "integer"}, {"minimum": 3}]}]
    return st.one_of(
        st.sampled_from(plain),
        st.builds(lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size}, _INTS, _SIZES),
        st.builds(lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size}, _SIZES, _SIZES),
        PATTERNS.map(lambda pattern: {"type": "string", "pattern": pattern}),
    )


_INTS, _SIZES = st.integers(-1000, 1000), st.integers(0, 5)


def _around(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.one_of(
        objects(inner),
        st.builds(lambda items, low: {"type": "array", "items": items, "minItems": low, "maxItems": 3}, inner, _LOWS),
        st.lists(inner, min_size=1, max_size=3).map(lambda choices: {"anyOf": choices}),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: {"type": "array", "prefixItems": items}),
    )


_LOWS = st.integers(0, 2)


def nasty_schemas() -> st.SearchStrategy[Schema]:
    """Anything that looks like a schema, with words of the wrong kind and references to anywhere."""
    scraps = st.one_of(st.none(), st.booleans(), st.integers(-3, 2**70), st.floats(), st.text(max_size=4))
    refs = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/nowhere", "http://x/y", "#/%", ""])
    words = st.sampled_from(
        [
            *(
                "type",
                "enum",
                "const",
                "anyOf",
                "oneOf",
                "allOf",
                "not",
                "if",
                "then",
                "nullable",
                "$defs",
                "definitions",
            ),
            *("properties", "required", "additionalProperties", "patternProperties", "dependentRequired"),
            *(
                "items",
                "prefixItems",
                "minItems",
                "maxItems",
                "uniqueItems",
                "pattern",
                "format",
                "minLength",
                "maxLength",
            ),
            *("minimum", "maximum", "exclusiveMinimum", "multipleOf"),
        ]
    )
    kinds = st.sampled_from(["object", "array", "string", "integer", "any", ["string", "null"], []])

    def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        named = st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=2)
        return st.one_of(
            st.dictionaries(words, st.one_of(inner, named, st.lists(inner, max_size=3)), max_size=3),
            st.builds(lambda kind, rest: {**rest, "type": kind}, kinds, named),
            st.builds(lambda ref: {"$ref": ref}, refs),
            st.builds(lambda each: {"anyOf": each}, st.lists(inner, max_size=3)),
            st.builds(lambda each: {"type": "object", "properties": each}, named),
        )

    tree = st.recursive(scraps, grown, max_leaves=12)
    return st.dictionaries(words, tree, max_size=4).flatmap(
        lambda root: st.dictionaries(st.sampled_from(["a", "b"]), tree, max_size=2).map(lambda d: {**root, "$defs": d})
    )


# ---- texts ----


def admitted(schema: Schema) -> st.SearchStrategy[str]:
    """Texts that a decoder held to the schema, a document with its definitions, can write."""
    return st.builds(
        _spaced, _fitting(schema, schema, 0), st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])
    )


def _spaced(value: object, separators: tuple[str, str]) -> str:
    return json.dumps(value, ensure_ascii=len(separators[0]) == 1, separators=separators)


def _fitting(schema: Schema, root: Schema, depth: int) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        return st.deferred(lambda: _fitting(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, depth + 1))
    if "anyOf" in schema:
        return st.one_of([_fitting(each, root, depth) for each in schema["anyOf"]])
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    kind = schema["type"]
    if isinstance(kind, list):
        return _anything()
    return _of_kind(kind, schema, root, depth)


def _of_kind(kind: str, schema: Schema, root: Schema, depth: int) -> st.SearchStrategy[Any]:
    match kind:
        case "object":
            return _objects(schema, root, depth)
        case "array":
            return _arrays(schema, root, depth)
        case "string" if "pattern" in schema:
            return st.from_regex(schema["pattern"], fullmatch=True)
        case "string":
            return st.text(_CHARACTERS, min_size=schema.get("minLength", 0), max_size=schema.get("maxLength", 6))
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case "number":
            return st.integers(-99, 99) | st.sampled_from([0.5, -2.25, 1e20])
        case _:
            return st.none() if kind == "null" else st.booleans()


_CHARACTERS = st.sampled_from([*string.ascii_letters, *'{}[]",:\\/ \n\té😀'])


def _objects(schema: Schema, root: Schema, depth: int) -> st.SearchStrategy[Any]:
    fields: Schema = schema["properties"]
    needed = {name: _fitting(fields[name], root, depth + 1) for name in fields if name in schema["required"]}
    # What may be left out is, deep down: only so does a definition that refers to itself come to an end.
    others = [name for name in fields if name not in needed and depth < 3]
    optional = {name: _fitting(fields[name], root, depth + 1) for name in others}
    known = st.fixed_dictionaries(needed, optional=optional)
    more = schema["additionalProperties"]
    if more is False or depth >= 3:
        return known
    free = _anything() if more is True else _fitting(more, root, depth + 1)
    names = st.text("uvw", min_size=1, max_size=3)
    return st.builds(lambda own, extra: own | extra, known, st.dictionaries(names, free, max_size=2))


def _arrays(schema: Schema, root: Schema, depth: int) -> st.SearchStrategy[Any]:
    if "prefixItems" in schema:
        return st.tuples(*(_fitting(item, root, depth + 1) for item in schema["prefixItems"])).map(list)
    least = schema.get("minItems", 0)
    most = least if depth >= 3 else min(schema.get("maxItems", 3), least + 2)
    return st.lists(_fitting(schema["items"], root, depth + 1), min_size=least, max_size=most)


def _anything() -> st.SearchStrategy[Any]:
    scraps = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(_CHARACTERS, max_size=3))
    return st.recursive(
        scraps,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
        max_leaves=3,
    )
