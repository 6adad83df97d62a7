"""Tool schemas in the form that constrained decoders take."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.schema.constrained_decoding import ANY_DECODED_VALUE, NO_ARGUMENTS, DecoderSchemas

A, B = {"type": "string"}, {"type": "integer"}


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def value(schema: dict[str, Any]) -> dict[str, Any]:
    schemas = DecoderSchemas()
    converted = schemas.value(schema)
    assert schemas.definitions() == {}
    return converted


def arguments(schema: dict[str, Any]) -> dict[str, Any]:
    schemas = DecoderSchemas()
    converted = schemas.arguments(schema)
    return {**converted, "$defs": found} if (found := schemas.definitions()) else converted


@pytest.mark.parametrize(
    ("given", "converted"),
    [
        # any value
        ({}, ANY_DECODED_VALUE),
        ({"type": "any"}, ANY_DECODED_VALUE),
        ({"not": {"type": "string"}}, ANY_DECODED_VALUE),
        # kinds
        ({"type": ["string", "null"], "minLength": 2}, {"anyOf": [{**A, "minLength": 2}, {"type": "null"}]}),
        ({"type": ["string"]}, A),
        ({"minLength": 1}, {**A, "minLength": 1}),
        ({"type": "string", "nullable": True}, A),
        # listed values
        ({"type": "string", "enum": ["a", 1, "b"]}, {"enum": ["a", "b"]}),
        ({"type": "integer", "enum": [1, True, 2.0, 2.5]}, {"enum": [1, 2.0]}),
        ({"enum": [None]}, {"const": None}),
        ({"const": 1, "enum": [1, 2]}, {"const": 1}),
        # numbers
        ({"type": "number", "minimum": 1, "multipleOf": 2}, {"type": "number"}),
        ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 9}, {**B, "minimum": 1, "maximum": 8}),
        ({"type": "integer", "exclusiveMinimum": 2, "maximum": 10**30}, {**B, "minimum": 3}),
        ({"type": "integer", "minimum": 5, "maximum": 1}, B),
        # strings
        ({"type": "string", "format": "date", "minLength": 3}, {**A, "format": "date"}),
        ({"type": "string", "format": "email", "maxLength": 9.0}, {**A, "maxLength": 9}),
        ({"type": "string", "pattern": "^a+$", "maxLength": 3}, {**A, "pattern": "^a+$"}),
        ({"type": "string", "pattern": "a+", "maxLength": 3}, {**A, "maxLength": 3}),
        ({"type": "string", "minLength": 3, "maxLength": 1}, A),
        ({"type": "string", "minLength": 10**6, "maxLength": 10**7}, A),
        # arrays
        ({"type": "array", "items": A, "uniqueItems": True}, {"type": "array", "items": A}),
        ({"type": "array", "minItems": 1}, {"type": "array", "items": ANY_DECODED_VALUE, "minItems": 1}),
        ({"type": "array", "items": A, "minItems": 3, "maxItems": 1}, {"type": "array", "items": A}),
        ({"type": "array", "items": False}, {"const": []}),
        ({"type": "array", "items": A, "maxItems": 0}, {"const": []}),
        (
            {"type": "array", "items": [A], "additionalItems": B, "minItems": 2},
            {"type": "array", "prefixItems": [A, B], "minItems": 2, "maxItems": 2},
        ),
        (
            {"type": "array", "prefixItems": [A, B, A], "maxItems": 2},
            {"type": "array", "prefixItems": [A, B], "minItems": 2, "maxItems": 2},
        ),
        # objects
        ({"properties": {"a": A}}, closed(a=A)),
        ({"type": "object"}, {**closed(), "additionalProperties": True}),
        ({"properties": {"a": A}, "additionalProperties": True}, {**closed(a=A), "additionalProperties": True}),
        ({"type": "object", "additionalProperties": {}}, {**closed(), "additionalProperties": True}),
        ({"type": "object", "additionalProperties": B}, {**closed(), "additionalProperties": B}),
        ({"properties": {"a": A, "b": False}, "required": ["a"]}, closed("a", a=A)),
        ({"properties": {"a": A}, "required": ["a", "z"]}, closed("a", "z", a=A, z=ANY_DECODED_VALUE)),
        ({"properties": {"a": A}, "required": ["z"], "additionalProperties": False}, closed(a=A)),
        # alternatives
        ({"oneOf": [A, B]}, {"anyOf": [A, B]}),
        ({"anyOf": [A, {"type": "string", "format": "email"}]}, A),
        ({"anyOf": [A, False]}, A),
        ({"type": "string", "anyOf": [False, {"minLength": 2}]}, {**A, "minLength": 2}),
        ({"anyOf": [{"properties": {"a": False}, "required": ["a"]}, A]}, A),
        (
            {"properties": {"a": A, "b": B}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {"anyOf": [closed("a", a=A, b=B), closed("b", a=A, b=B)]},
        ),
        # all at once
        ({"allOf": [{"properties": {"a": A}}, {"properties": {"b": B}, "required": ["b"]}]}, closed("b", a=A, b=B)),
        (
            {
                "allOf": [
                    {"properties": {"a": {"type": "number"}}},
                    {"properties": {"a": {"type": "integer", "minimum": 3}}},
                ]
            },
            closed(a={**B, "minimum": 3}),
        ),
        (
            {"allOf": [{"type": "integer", "minimum": 1}, {"minimum": 3, "maximum": 9}]},
            {**B, "minimum": 3, "maximum": 9},
        ),
        ({"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, {"const": "b"}),
        ({"allOf": [{"enum": [1, 2, 3]}, {"enum": [2.0, 3]}]}, {"enum": [2, 3]}),
        (
            {"type": "array", "allOf": [{"items": A}, {"items": {"minLength": 2}}]},
            {"type": "array", "items": {**A, "minLength": 2}},
        ),
    ],
)
def test_a_schema_becomes_what_decoders_take(given: dict[str, Any], converted: dict[str, Any]) -> None:
    assert value(given) == converted


@pytest.mark.parametrize(
    ("given", "converted"),
    [
        ({"type": "object"}, NO_ARGUMENTS),
        ({"type": "object", "additionalProperties": True}, {**NO_ARGUMENTS, "additionalProperties": True}),
        ({"type": "object", "patternProperties": {"^x": A}}, {**NO_ARGUMENTS, "additionalProperties": True}),
        ({"type": ["object", "null"], "properties": {"a": A}}, closed(a=A)),
        ({"anyOf": [{"properties": {"a": A}}, A, {"properties": {"b": B}}]}, {"anyOf": [closed(a=A), closed(b=B)]}),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": A}}}}, closed(a=A)),
        ({"oneOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"properties": {"a": A}}}}, closed(a=A)),
        ({"$ref": "#/$defs/x", "required": ["a"], "$defs": {"x": {"properties": {"a": A}}}}, closed("a", a=A)),
        ({"$ref": "#"}, {**NO_ARGUMENTS, "additionalProperties": True}),
        ({"$ref": "http://elsewhere"}, {**NO_ARGUMENTS, "additionalProperties": True}),
        ({"type": "array", "items": A}, NO_ARGUMENTS),
    ],
)
def test_arguments_are_an_object_whatever_the_schema_says(given: dict[str, Any], converted: dict[str, Any]) -> None:
    assert arguments(given) == converted


def test_what_is_referred_to_is_gathered_under_names_of_the_whole() -> None:
    made = arguments(
        {
            "properties": {"a": {"$ref": "#/definitions/string"}, "b": {"$ref": "#/properties/a"}, "c": {"$ref": "#"}},
            "definitions": {"string": {"enum": ["x", "y"]}},
        }
    )
    assert made["properties"] == {
        "a": {"$ref": "#/$defs/def1"},
        "b": {"$ref": "#/$defs/def1"},
        "c": {"$ref": "#/$defs/def2"},
    }
    assert made["$defs"]["def1"] == {"enum": ["x", "y"]}
    assert made["$defs"]["def2"]["properties"] == made["properties"]


@pytest.mark.parametrize("reference", ["#/$defs/none", "http://elsewhere/x", "#anchor", "#/$defs/round"])
def test_a_reference_to_nowhere_is_any_value(reference: str) -> None:
    round_and_round = {"round": {"$ref": "#/$defs/trip"}, "trip": {"$ref": "#/$defs/round"}}
    made = arguments({"properties": {"a": {"$ref": reference}}, "$defs": round_and_round})
    assert made == closed(a=ANY_DECODED_VALUE)


def test_a_definition_that_is_itself_by_way_of_alternatives_is_what_else_it_is() -> None:
    made = arguments(
        {
            "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#/$defs/z"}},
            "$defs": {
                "x": {"anyOf": [{"$ref": "#/$defs/y"}, A]},
                "y": {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "array", "items": {"$ref": "#/$defs/x"}}]},
                "z": {"anyOf": [{"$ref": "#/$defs/z"}, {"$ref": "#/$defs/z"}]},
            },
        }
    )
    x, z, y = (made["$defs"][f"def{number}"] for number in (1, 2, 3))
    assert x == {"anyOf": [{"$ref": "#/$defs/def3"}, A]}
    assert y == {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/def1"}}]}
    assert z == ANY_DECODED_VALUE


# ---- bounds on untrusted schemas ----


def size(schema: object) -> int:
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    return 1 + sum(size(each) for each in inner)


def test_references_that_multiply_do_not_make_a_schema_grow_without_bound() -> None:
    widely = {"properties": {f"p{i}": {"$ref": "#/$defs/w", "required": ["x"]} for i in range(1000)}}
    assert size(arguments({"properties": {"a": {"$ref": "#/$defs/w"}}, "$defs": {"w": widely}})) < 200_000


def test_a_long_chain_of_references_is_not_followed_to_its_end() -> None:
    row = {f"r{i}": {"$ref": f"#/$defs/r{i + 1}"} for i in range(20_000)}
    made = arguments({"properties": {f"p{i}": {"$ref": "#/$defs/r0"} for i in range(1000)}, "$defs": row})
    assert made["properties"]["p0"] == ANY_DECODED_VALUE


def test_a_long_chain_of_definitions_is_converted_one_by_one() -> None:
    row = {f"r{i}": {"anyOf": [{"$ref": f"#/$defs/r{i + 1}"}, A]} for i in range(2000)}
    assert len(arguments({"properties": {"a": {"$ref": "#/$defs/r0"}}, "$defs": row})["$defs"]) > 1000


def test_what_is_nested_beyond_reason_is_any_value() -> None:
    deep: dict[str, Any] = A
    for _ in range(5000):
        deep = {"type": "object", "properties": {"a": deep}}
    assert size(arguments(deep)) < 300
