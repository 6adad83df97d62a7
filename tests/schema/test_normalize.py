"""Schemas of tool servers, normalized for backends."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from itertools import product
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.schema.keywords import plain_pattern
from antwort.schema.normalize import ANY_VALUE, NormalizedSchemaCache, normalize, normalize_all
from plan_kit import STEADY
from schema_kit import nasty_schemas

Schema: TypeAlias = dict[str, Any]

NUMBER: Schema = {"type": "number"}
TEXT: Schema = {"type": "string"}


def property_of(inner: object, root: Schema | None = None, *, required: bool = False) -> object:
    """What becomes of a schema where a property has it."""
    names = {"required": ["x"]} if required else {}
    return normalize({"type": "object", "properties": {"x": inner}, **names, **(root or {})})["properties"].get("x")


# ---- what backends choke on ----


@pytest.mark.parametrize(
    ("given", "normalized"),
    [
        ({"anyOf": [TEXT, {"type": "null"}], "default": None}, TEXT),
        ({"type": ["string", "null"]}, TEXT),
        ({"enum": ["a", None]}, {"type": "string", "enum": ["a"]}),
        ({"type": "null"}, {"type": "null"}),
        ({"const": "a"}, {"type": "string", "enum": ["a"]}),
        ({"enum": [1, "a"]}, {"enum": [1, "a"]}),
        ({"type": ["string", "number"]}, {"anyOf": [TEXT, NUMBER]}),
        ({"oneOf": [TEXT, TEXT]}, TEXT),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, {"type": "integer", "minimum": 3}),
        (
            {"allOf": [{"type": "number", "minimum": 1}, {"type": "integer", "minimum": 3}]},
            {"type": "integer", "minimum": 3},
        ),
        ({"allOf": [{"enum": [1, 2, 3]}, {"enum": [2.0, 3]}]}, {"type": "integer", "enum": [2, 3]}),
        (
            {"allOf": [{"properties": {"y": TEXT}}, {"properties": {"y": {"minLength": 1, "description": "A name."}}}]},
            {"type": "object", "properties": {"y": {**TEXT, "minLength": 1, "description": "A name."}}},
        ),
        ({"type": "number", "exclusiveMinimum": 0}, {"type": "number", "minimum": 0}),
        ({"type": "integer", "exclusiveMinimum": 0, "maximum": 9.5}, {"type": "integer", "minimum": 1, "maximum": 9}),
        ({"type": "integer", "minimum": 9, "maximum": 1}, {"type": "integer"}),
        ({"type": "string", "pattern": r"^\d{3}$"}, {"type": "string", "pattern": "^[0-9]{3}$"}),
        ({"type": "string", "pattern": "(?=x)y"}, TEXT),
        ({"type": "string", "maxLength": 65536, "minLength": 1}, {"type": "string", "minLength": 1}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "string", "format": "my-own"}, TEXT),
        (True, ANY_VALUE),
        ({}, ANY_VALUE),
        ({"description": "Whatever."}, {**ANY_VALUE, "description": "Whatever."}),
        (False, None),
        ({"type": "any"}, ANY_VALUE),
        ({"$ref": "https://example.com/schema.json"}, ANY_VALUE),
        ({"$ref": "#/nowhere"}, ANY_VALUE),
        ({"$ref": "#anchor"}, ANY_VALUE),
        ({"type": "string", "not": {"const": "a"}, "title": "X", "x-mine": 1}, TEXT),
        ({"type": "object"}, {"type": "object"}),
        ({"properties": {"y": TEXT}}, {"type": "object", "properties": {"y": TEXT}}),
        ({"type": "object", "additionalProperties": NUMBER}, {"type": "object", "additionalProperties": NUMBER}),
        ({"type": "object", "additionalProperties": {}}, {"type": "object"}),
        ({"type": "object", "patternProperties": {"^a": TEXT}, "additionalProperties": False}, {"type": "object"}),
        ({"type": "array"}, {"type": "array", "items": ANY_VALUE}),
        ({"type": "array", "items": False}, {"type": "array", "items": {}, "maxItems": 0}),
        (
            {"type": "array", "prefixItems": [TEXT, NUMBER], "items": False},
            {"type": "array", "items": {"anyOf": [TEXT, NUMBER]}, "maxItems": 2},
        ),
        ({"type": "array", "items": [TEXT]}, {"type": "array", "items": ANY_VALUE}),
        (
            {"type": "array", "items": [TEXT], "additionalItems": NUMBER},
            {"type": "array", "items": {"anyOf": [TEXT, NUMBER]}},
        ),
        (
            {"type": "object", "properties": {"y": TEXT}, "anyOf": [{"required": ["y"]}, {"required": ["z"]}]},
            {"type": "object", "properties": {"y": TEXT}},
        ),
        (
            {"minLength": 1, "minimum": 3},
            {"anyOf": [{"type": "string", "minLength": 1}, {"type": "number", "minimum": 3}]},
        ),
        (
            {"patternProperties": {"^x": NUMBER}, "additionalProperties": TEXT, "required": ["x1"]},
            {"type": "object", "properties": {"x1": ANY_VALUE}, "required": ["x1"]},
        ),
        (
            {
                "properties": {"a": TEXT},
                "anyOf": [{"properties": {"b": NUMBER}, "required": ["b"]}, {"required": ["a"]}],
            },
            {"type": "object", "properties": {"a": TEXT, "b": NUMBER}},
        ),
        (
            {
                "properties": {"a": TEXT},
                "oneOf": [{"properties": {"b": NUMBER}}, {"properties": {"a": NUMBER, "b": TEXT}}],
            },
            {"type": "object", "properties": {"a": TEXT, "b": {"anyOf": [NUMBER, TEXT]}}},
        ),
        (
            {"properties": {"a": TEXT}, "additionalProperties": False, "anyOf": [{"properties": {"b": NUMBER}}]},
            {"type": "object", "properties": {"a": TEXT}, "additionalProperties": False},
        ),
    ],
    ids=str,
)
def test_what_not_every_backend_takes_is_rewritten(given: object, normalized: object) -> None:
    assert property_of(given) == normalized


@pytest.mark.parametrize(
    ("given", "normalized"),
    [
        ({"type": ["string", "null"]}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"anyOf": [TEXT, {"type": "null"}]}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"enum": ["a", None]}, {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]}),
    ],
    ids=str,
)
def test_null_stays_where_a_value_must_be_given(given: object, normalized: object) -> None:
    assert property_of(given, required=True) == normalized


def test_a_reference_is_what_it_refers_to_with_what_is_said_of_it_there() -> None:
    definitions = {"City": {"type": "string", "minLength": 1, "description": "A city."}}
    assert property_of({"$ref": "#/$defs/City"}, {"$defs": definitions}) == definitions["City"]
    said = {"$ref": "#/$defs/City", "description": "Where to.", "maxLength": 3}
    assert property_of(said, {"$defs": definitions}) == {**definitions["City"], "description": "Where to."}


def test_what_refers_to_itself_is_cut_at_its_second_time() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "value": NUMBER}}
    normalized = property_of({"$ref": "#/$defs/Node"}, {"$defs": {"Node": node}})
    assert normalized == {"type": "object", "properties": {"next": {"type": "object"}, "value": NUMBER}}


def test_what_refers_to_itself_and_may_be_anything_is_cut_to_anything() -> None:
    value = {"anyOf": [TEXT, {"type": "array", "items": {"$ref": "#/$defs/Value"}}]}
    normalized = property_of({"$ref": "#/$defs/Value"}, {"$defs": {"Value": value}})
    assert normalized == {"anyOf": [TEXT, {"type": "array", "items": ANY_VALUE}]}


@pytest.mark.parametrize(
    "schema", [{}, {"type": "object"}, {"type": "string"}, {"type": None}, {"$ref": "#"}, {"not": {}}]
)
def test_arguments_are_an_object_with_properties(schema: Schema) -> None:
    assert normalize(schema) == {"type": "object", "properties": {}}


def test_alternatives_of_arguments_become_one_object() -> None:
    made = {"properties": {"kind": {"const": "made"}, "name": TEXT}, "required": ["kind", "name"]}
    gone = {"properties": {"kind": {"const": "gone"}, "id": NUMBER}, "required": ["kind", "id"]}
    closed = [{"type": "object", "additionalProperties": False, **each} for each in (made, gone)]
    assert normalize({"oneOf": closed}) == {
        "type": "object",
        "properties": {
            "kind": {"anyOf": [{"type": "string", "enum": ["made"]}, {"type": "string", "enum": ["gone"]}]},
            "name": TEXT,
            "id": NUMBER,
        },
        "required": ["kind"],
        "additionalProperties": False,
    }
    assert (
        normalize({"type": "object", "oneOf": [made, gone]})["properties"]["name"] == ANY_VALUE
    )  # the other one takes any


def test_a_property_that_is_required_and_not_described_is_there() -> None:
    assert normalize({"type": "object", "required": ["id"]}) == {
        "type": "object",
        "properties": {"id": ANY_VALUE},
        "required": ["id"],
    }


# ---- bounds ----


def nested(levels: int) -> Schema:
    schema: Schema = TEXT
    for _ in range(levels):
        schema = {"type": "object", "properties": {"inner": schema}}
    return schema


def doubling(levels: int) -> Schema:
    """Each definition has the next one twice: written out, it is as long as two to the power of the levels."""
    definitions = {
        f"d{n}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/d{n + 1}"} for side in "lr"}}
        for n in range(levels)
    }
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": definitions}


@pytest.mark.parametrize(
    "schema",
    [
        nested(200),
        nested(100_000),
        doubling(40),
        {"type": "object", "properties": {f"p{n}": {"type": "string", "description": "x" * 5000} for n in range(5000)}},
        {"type": "object", "properties": {"x": {"enum": [f"value {n}" for n in range(100_000)]}}},
        {"allOf": [{"$ref": "#"}] * 10_000},
    ],
    ids=["deep", "very deep", "doubling", "wide", "many values", "many parts"],
)
def test_however_large_a_schema_is_what_the_model_reads_is_not(schema: Schema) -> None:
    normalized = normalize(schema)
    assert normalized["type"] == "object"
    assert len(json.dumps(normalized)) < 64 * 1024


def test_a_schema_with_a_name_of_its_own_within_another_is_not_read() -> None:
    """Its references are about itself, and not about the document that it stands in."""
    embedded = {"$id": "https://example.com/city", "type": "object", "properties": {"name": {"$ref": "#/$defs/name"}}}
    root = {"$id": "https://example.com/tool", "$defs": {"name": NUMBER}}
    assert property_of(embedded, root) == {"type": "object"}


def referring(target: Schema, times: int = 900) -> Schema:
    return {
        "type": "object",
        "properties": {f"p{n}": {"$ref": "#/$defs/target"} for n in range(times)},
        "$defs": {"target": target},
    }


@pytest.mark.parametrize(
    "schema",
    [
        referring({"enum": [f"value {n}" for n in range(100_000)]}),
        referring({"enum": [f"v{n}" for n in range(2_000)]}),
        referring({"type": "object", "required": ["name"] * 200_000}),
        referring({"type": "object", "required": [f"v{n}" for n in range(2_000)]}),
        referring({"type": "object", "properties": {f"v{n}": {} for n in range(2_000)}}),
        referring({"anyOf": [{"type": "string", "minLength": n} for n in range(900)]}),
        referring({"properties": {"x": {}}, "anyOf": [{"properties": {f"k{n}": {}}} for n in range(600)]}),
        referring({"default": ["x" * 20] * 2_000}),
        referring({"$ref": "#" + "/x" * 20_000}),
        {"type": "object", "properties": {f"p{n}": {"pattern": f"^{'([a-c]|x)+' * 18}{n}$"} for n in range(500)}},
        {
            "type": "object",
            "properties": {f"p{n}": {"$ref": f"#/$defs/{n}"} for n in range(600)},
            "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}", "description": "d"} for n in range(600)},
        },
    ],
    ids=lambda schema: json.dumps(schema)[-24:],
)
def test_no_schema_is_much_work(schema: Schema) -> None:
    plain_pattern.cache_clear()
    assert steps_of(lambda: normalize(schema)) < 1_500_000


def steps_of(work: Callable[[], object]) -> int:
    """How many instructions it takes, which is the same on any machine."""
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        nonlocal steps
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps


def test_the_same_schema_is_normalized_once() -> None:
    schema = {"type": "object", "properties": {"x": {"const": 1}}}
    assert normalize(schema) is normalize(schema)
    assert normalize(json.loads(json.dumps(schema))) is normalize(schema)


async def test_other_tasks_run_between_many_schemas() -> None:
    schemas = [{"type": "object", "properties": {f"one_by_one_{n}": {}}} for n in range(5)]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await normalize_all(schemas)
    between = turns
    await normalize_all(schemas)
    beside.cancel()
    assert (between, turns) == (5, 5)


def test_the_cache_holds_schemas_up_to_its_bound() -> None:
    cache = NormalizedSchemaCache(max_values=1_000)
    schemas = [{"enum": [str(m) for m in range(100)], "title": str(n)} for n in range(50)]
    for schema in schemas:
        cache.normalize(schema)
    assert schemas[-1] in cache
    assert schemas[-2] in cache
    assert sum(schema in cache for schema in schemas) < 10
    large = {"enum": ["x"] * 100_000}
    cache.normalize(large)
    assert large not in cache


# ---- whatever it is ----


@STEADY
@given(nasty_schemas())
def test_whatever_comes_is_plain(schema: Schema) -> None:
    normalized = normalize(schema)
    assert normalized["type"] == "object"
    assert isinstance(normalized["properties"], dict)
    for each in parts(normalized):
        assert each.keys() <= PLAIN_WORDS
        assert isinstance(each.get("type", ""), str)


PLAIN_WORDS = {
    *("type", "description", "default", "enum", "anyOf", "properties", "required", "additionalProperties"),
    *("items", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum"),
}


def parts(schema: Schema) -> Iterator[Schema]:
    yield schema
    more = schema.get("additionalProperties")
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), schema.get("items"), more]
    for each in inner:
        if isinstance(each, dict):
            yield from parts(each)


class Case(NamedTuple):
    """A schema and values that fit it."""

    schema: Any
    values: st.SearchStrategy[Any]


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text("ab", max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("abc"), inner, max_size=2)),
    max_leaves=4,
)
LEAVES = [
    Case({"type": "string"}, st.text("ab", max_size=3)),
    Case({"type": "string", "minLength": 1, "maxLength": 2}, st.text("ab", min_size=1, max_size=2)),
    Case({"type": "string", "pattern": r"^\d+$"}, st.integers(0, 99).map(str)),
    Case({"type": "integer", "exclusiveMinimum": -2, "maximum": 5}, st.integers(-1, 5)),
    Case({"type": "number", "exclusiveMaximum": 2, "multipleOf": 0.5}, st.sampled_from([-0.5, 0, 1.5])),
    Case({"type": ["integer", "null"]}, st.one_of(st.none(), st.integers(-9, 9))),
    Case({"type": "null"}, st.none()),
    Case({"const": {"a": [1, None]}}, st.just({"a": [1, None]})),
    Case({"enum": ["a", 2, None]}, st.sampled_from(["a", 2, None])),
    Case({"$ref": "#/$defs/leaf"}, st.integers(0, 3)),
    Case({"$ref": "#/$defs/leaf", "description": "A leaf."}, st.integers(0, 3)),
    Case({"$ref": "#/$defs/tree"}, st.deferred(lambda: TREES)),
    Case(True, JSON),
    Case({}, JSON),
    Case({"description": "Anything."}, JSON),
    Case({"not": {"type": "string"}}, st.booleans()),
]
TREES: st.SearchStrategy[Any] = st.recursive(
    st.just({"value": None}), lambda inner: st.fixed_dictionaries({"left": inner, "right": inner}), max_leaves=3
)
DEFINITIONS = {
    "leaf": {"type": "integer", "minimum": 0},
    "tree": {
        "type": "object",
        "properties": {
            "left": {"$ref": "#/$defs/tree"},
            "right": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
            "value": {"type": "null"},
        },
        "additionalProperties": False,
    },
}


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    cases = draw(st.dictionaries(st.sampled_from("abcd"), inner, max_size=3))
    required = [name for name in cases if draw(st.booleans())]
    more = draw(st.sampled_from([None, True, False, {"type": "integer"}]))
    schema: Schema = {"type": "object", "properties": {name: case.schema for name, case in cases.items()}}
    schema |= {"required": required} if required else {}
    schema |= {} if more is None else {"additionalProperties": more}
    values = st.fixed_dictionaries(
        {name: cases[name].values for name in required},
        optional={name: case.values for name, case in cases.items() if name not in required}
        | ({} if more is False else {"extra": st.integers(0, 3)}),
    )
    return Case(schema, values)


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    item = draw(inner)
    if draw(st.booleans()):
        return Case({"type": "array", "items": item.schema, "maxItems": 2}, st.lists(item.values, max_size=2))
    first = draw(st.lists(inner, min_size=1, max_size=2))
    schema = {"type": "array", "prefixItems": [case.schema for case in first], "items": item.schema}
    rest = st.lists(item.values, max_size=1)
    return Case(schema, st.tuples(*(case.values for case in first), rest).map(lambda made: [*made[:-1], *made[-1]]))


@st.composite
def alternatives(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    cases = draw(st.lists(inner, min_size=1, max_size=3))
    values = st.one_of([case.values for case in cases])
    schemas = [case.schema for case in cases]
    if draw(st.booleans()):
        return Case({"anyOf": schemas, "description": "One of these."}, values)
    return Case({"allOf": [{"anyOf": schemas}, True], "default": None}, values)


@st.composite
def joined(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    """An object in two parts that hold at once, and that may both describe the same property."""
    one, other = draw(inner), draw(inner)
    again: Schema = draw(
        st.sampled_from([{}, {"one": True}, {"one": {"anyOf": [one.schema, False]}}, {"one": one.schema}])
    )
    schema = {
        "allOf": [
            {"type": "object", "properties": {"one": one.schema}, "required": ["one"]},
            {"type": "object", "properties": {**again, "other": other.schema}},
        ]
    }
    return Case(schema, st.fixed_dictionaries({"one": one.values}, optional={"other": other.values}))


CASES = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(objects(inner), arrays(inner), alternatives(inner), joined(inner)),
    max_leaves=6,
)


@st.composite
def arguments(draw: st.DrawFn) -> tuple[Schema, Any]:
    """A tool's schema, and arguments that it takes: an object, one of several, or several in one."""
    cases = draw(st.lists(st.one_of(objects(CASES), joined(CASES)), min_size=1, max_size=2))
    schema = cases[0].schema if len(cases) == 1 else {"anyOf": [case.schema for case in cases]}
    return {**schema, "$defs": DEFINITIONS}, draw(draw(st.sampled_from(cases)).values)


@STEADY
@given(arguments())
def test_what_a_tool_accepts_its_normalized_schema_accepts(case: tuple[Schema, Any]) -> None:
    schema, value = case
    assert jsonschema_rs.validator_for(schema).is_valid(value)
    normalized = jsonschema_rs.validator_for(normalize(schema))
    assert any(normalized.is_valid(each) for each in without_nulls(value))


def without_nulls(value: Any) -> Iterator[Any]:
    """The value, and all that it may be with some of its properties left out that are null."""
    if isinstance(value, list):
        yield from map(list, product(*(without_nulls(each) for each in value)))
    elif isinstance(value, dict):
        ways = [[*without_nulls(each), *([MISSING] if each is None else [])] for each in value.values()]
        for chosen in product(*ways):
            yield {name: each for name, each in zip(value, chosen, strict=True) if each is not MISSING}
    else:
        yield value


MISSING = object()
