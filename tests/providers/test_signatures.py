"""Tools in words that a small model reads at a glance."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.wire import UNSET, UnsetType
from antwort.providers.base import ChatTool, ChatToolFunction
from antwort.providers.signatures import listing


def line(field: Any, **more: Any) -> str:
    schema = {"type": "object", "properties": {"a": field}, "required": ["a"], **more}
    return listing([ChatTool(function=ChatToolFunction(name="f", parameters=schema))])


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"enum": ["C", 1, None]}, '"C" | 1 | null'),
        ({"const": "é"}, '"é"'),
        ({"type": "array", "items": {"type": "integer"}}, "integer[]"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, '("a" | "b")[]'),
        ({"type": "array"}, "any[]"),
        ({"anyOf": [{"type": "string"}, {"type": "string"}, {"type": "null"}]}, "string | null"),
        ({"type": "object"}, "object"),
        ({"properties": {"x": {"type": "number"}}}, "{x?: number}"),
        ({"$ref": "#/$defs/p~1q"}, "boolean"),
        ({"$ref": "http://elsewhere"}, "any"),
        ({"allOf": [{"$ref": "#/$defs/unit"}], "default": "C"}, '"C" | "F"'),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "string"),
        ({}, "any"),
        (True, "any"),
    ],
)
def test_a_parameter_shows_its_type(field: Any, shown: str) -> None:
    assert line(field, **{"$defs": {"p/q": {"type": "boolean"}, "unit": {"enum": ["C", "F"]}}}) == f"f(a: {shown})"


def test_a_type_that_refers_to_itself_comes_to_an_end() -> None:
    node = {"type": "array", "items": {"$ref": "#/$defs/node"}}
    assert line({"$ref": "#/$defs/node"}, **{"$defs": {"node": node}}) == "f(a: any[][])"


def test_references_that_multiply_are_worked_out_once() -> None:
    # 20 * 500 at every level: without that this would not end.
    many = {"type": "object", "properties": {f"p{i}": {"anyOf": [{"$ref": "#/$defs/m"}] * 500} for i in range(20)}}
    assert line({"$ref": "#/$defs/m"}, **{"$defs": {"m": many}}).startswith("f(a: {p0?: {p0?: any, p1?: any")


def test_alternatives_without_end_are_not_told() -> None:
    deep: Any = {"type": "string"}
    for _ in range(5000):
        deep = {"anyOf": [deep]}
    assert line(deep) == "f(...)"


@pytest.mark.parametrize("parameters", [UNSET, {}, {"type": "object", "properties": "none"}])
def test_a_tool_without_parameters_takes_none(parameters: dict[str, Any] | UnsetType) -> None:
    assert listing([ChatTool(function=ChatToolFunction(name="now", parameters=parameters))]) == "now()"


def test_each_tool_has_a_line_and_each_parameter_that_is_described() -> None:
    fields = {
        "a": {"type": "string", "description": "What\n  it is"},
        "b": {"type": "string", "description": "  "},
        "c": {"type": "string"},
    }
    tools = [
        ChatTool(
            function=ChatToolFunction(
                name="f", description="Does\nsomething. ", parameters={"properties": fields, "required": ["b"]}
            )
        ),
        ChatTool(function=ChatToolFunction(name="g")),
    ]
    assert listing(tools) == "f(a?: string, b: string, c?: string) - Does something.\n  a: What it is\ng()"


CITY = {"type": "object", "properties": {"city": {"type": "string", "description": "Its name"}}, "required": ["city"]}
PLACE = {"type": "object", "properties": {"lat": {"type": "number"}}}


@pytest.mark.parametrize(
    ("parameters", "shown"),
    [
        ({"$ref": "#/$defs/c", "$defs": {"c": CITY}}, "f(city: string)\n  city: Its name"),
        (
            {"allOf": [CITY, {"$ref": "#/$defs/p"}], "$defs": {"p": PLACE}},
            "f(city: string, lat?: number)\n  city: Its name",
        ),
        ({"anyOf": [CITY, {"type": "null"}]}, "f(city: string)\n  city: Its name"),
        (
            {"oneOf": [CITY, {"$ref": "#/$defs/p"}], "$defs": {"p": PLACE}},
            "f(city: string) or f(lat?: number)\n  city: Its name",
        ),
        (
            {"type": "object", "properties": PLACE["properties"], "anyOf": [{"required": ["lat"]}, {}]},
            "f(lat: number) or f(lat?: number)",
        ),
        ({"anyOf": [{"type": "string"}]}, "f()"),
    ],
)
def test_parameters_that_are_said_in_parts_are_told_as_one(parameters: dict[str, Any], shown: str) -> None:
    assert listing([ChatTool(function=ChatToolFunction(name="f", parameters=parameters))]) == shown


def test_short_words_about_parts_of_a_parameter_are_told() -> None:
    long = {"type": "string", "description": "x" * 81}
    sku = {"type": "string", "description": "Begins\nwith SKU-"}
    order = {"type": "object", "properties": {"sku": sku, "note": long}}
    for field, path in [
        (order, "a.sku"),
        ({"type": "array", "items": order}, "a[].sku"),
        ({"anyOf": [{"$ref": "#/$defs/order"}, {"type": "null"}]}, "a.sku"),
    ]:
        assert line(field, **{"$defs": {"order": order}}).splitlines()[1:] == [f"  {path}: Begins with SKU-"]
    many = {"properties": {f"p{at}": sku for at in range(40)}}
    assert len(line(many).splitlines()) == 17


def test_parts_that_multiply_are_not_told_without_end() -> None:
    parts = [{"allOf": [{"$ref": "#/$defs/m"}]}] * 200
    many = {"properties": {f"p{at}": {"anyOf": parts} for at in range(200)}}
    assert line({"$ref": "#/$defs/m"}, **{"$defs": {"m": many}}).startswith("f(a: {p0?: ")
