"""Arguments validated against the tool's schema. Nothing is ever fetched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio

from antwort.schema import validate
from antwort.schema.validate import decode_object, has_references

SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "sites": {"type": "array", "items": {"type": "object", "properties": {"host": {"type": "string"}}}},
        "kind": {"oneOf": [{"const": "a"}, {"const": "b"}]},
    },
    "required": ["query"],
    "additionalProperties": False,
}


def find_problem(arguments: str, schema: dict[str, Any]) -> str | None:
    value = decode_object(arguments)
    return value if isinstance(value, str) else validate.find_problem(value, schema)


def find_problem_bounded(arguments: str, schema: dict[str, Any]) -> str | None:
    value = decode_object(arguments)
    return value if isinstance(value, str) else validate.find_problem_bounded(value, schema, arguments)


@pytest.mark.parametrize(
    "arguments", ['{"query": "x"}', ' {"query": "x", "limit": null, "sites": [{"host": "h"}], "kind": "b"} ']
)
def test_arguments_that_fit_are_no_problem(arguments: str) -> None:
    assert find_problem(arguments, SEARCH) is None


@pytest.mark.proves("EDGE-4")
@pytest.mark.parametrize("arguments", ['{"query": "x"', "{query: 1}", "NaN", "", '{"a": ' + "[" * 5000, '"\ud800"'])
def test_what_is_not_json_is_said_to_be_none(arguments: str) -> None:
    problem = decode_object(arguments)
    assert isinstance(problem, str)
    assert problem.startswith("The arguments are not valid JSON: ")


@pytest.mark.parametrize("arguments", ["[]", '"x"', "5", "null"])
def test_arguments_must_be_an_object(arguments: str) -> None:
    assert find_problem(arguments, SEARCH) == "The arguments must be a JSON object."


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{}", '"query" is a required property'),
        ('{"query": 5}', 'query: 5 is not of type "string"'),
        ('{"query": "x", "page": 1}', "Additional properties are not allowed ('page' was unexpected)"),
        ('{"query": "x", "sites": [{}, {"host": 1}]}', 'sites[1].host: 1 is not of type "string"'),
        ('{"query": "x", "limit": "2"}', 'limit: "2" is not of type "integer" or "2" is not of type "null"'),
        ('{"query": "x", "kind": "c"}', 'kind: "a" was expected or "b" was expected'),
    ],
)
def test_a_problem_names_the_place_and_what_was_expected_there(arguments: str, problem: str) -> None:
    assert find_problem(arguments, SEARCH) == f"The arguments do not fit: {problem}"


def test_at_most_three_problems_are_named() -> None:
    schema = {"properties": {name: {"type": "integer"} for name in "abcde"}}
    problem = find_problem('{"a": "", "b": "", "c": "", "d": "", "e": ""}', schema)
    assert problem is not None
    assert problem.count("is not of type") == 3


def test_of_a_long_value_only_both_ends_are_repeated() -> None:
    problem = find_problem('{"query": [' + '"word", ' * 500 + "0]}", SEARCH)
    assert problem is not None
    assert len(problem) < 300
    assert problem.endswith('is not of type "string"')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5},
        {"properties": {"x": {"pattern": "("}}},
        {"$ref": "#/nowhere"},
        {"$ref": "file:///etc/hostname"},
        {"default": object()},
        {},
    ],
)
def test_a_broken_schema_asks_for_nothing(schema: dict[str, Any]) -> None:
    assert find_problem('{"x": 1}', schema) is None


@pytest_asyncio.fixture
async def requests() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that would answer with a schema that nothing fits, and what it was asked."""
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nfalse")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"$ref": "{server}/schema"}}},
        {"$id": "{server}/base", "properties": {"x": {"$ref": "other"}}},
        {"$schema": "{server}/meta", "type": "object"},
        {"$dynamicRef": "{server}/schema"},
    ],
)
async def test_a_schema_elsewhere_is_never_fetched(schema: dict[str, Any], requests: tuple[str, list[bytes]]) -> None:
    server, seen = requests
    here = {key: _fill(value, server) for key, value in schema.items()}
    assert find_problem('{"x": 1}', here) is None
    assert seen == []


def _fill(value: object, server: str) -> object:
    if isinstance(value, dict):
        return {key: _fill(each, server) for key, each in value.items()}
    return value.replace("{server}", server) if isinstance(value, str) else value


def test_a_schema_that_points_to_itself_is_followed() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}}, "required": ["id"]}
    assert find_problem('{"id": 1, "left": {"id": 2}}', tree) is None
    assert find_problem('{"id": 1, "left": {}}', tree) == (
        'The arguments do not fit: left: "id" is a required property'
    )


@pytest.mark.parametrize(
    ("schema", "expected"),
    [({"type": "object"}, False), ({"$ref": "#"}, True), ({"items": {"$dynamicRef": "#a"}}, True), ({"x": set}, False)],
)
def test_references_are_found_anywhere_in_a_schema(schema: dict[str, Any], expected: bool) -> None:
    assert has_references(schema) is expected


# ---- untrusted schemas ----


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{}", '"query" is a required property'),
        ('{"query": 5}', 'query: 5 is not of type "string"'),
        ('{"query": "x", "page": 1}', "Additional properties are not allowed ('page' was unexpected)"),
        ('{"query": "x", "limit": "2"}', 'limit: "2" is not of type "integer" or "2" is not of type "null"'),
        ('{"query": "x", "kind": "c"}', 'kind: "a" was expected or "b" was expected'),
        ('{"query": "x", "kind": "a"}', None),
    ],
)
def test_a_untrusted_schema_is_checked(arguments: str, problem: str | None) -> None:
    told = None if problem is None else f"The arguments do not fit: {problem}"
    assert find_problem_bounded(arguments, SEARCH) == told


def test_references_of_a_untrusted_schema_are_followed_to_their_second_time() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}, "required": ["id"]}
    schema = {"$ref": "#/$defs/tree", "$defs": {"tree": tree}}
    problem = 'The arguments do not fit: "id" is a required property'
    assert find_problem_bounded("{}", schema) == problem
    assert find_problem_bounded('{"id": 1, "left": {}}', schema) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"type": "string", "pattern": "^b"}}},
        {"properties": {"x": {"format": "date"}}},
        {"patternProperties": {"^x": {}}, "additionalProperties": False},
        {"properties": {"x": {"not": {"pattern": "^b"}}}},
        {"properties": {"x": {"oneOf": [{"pattern": "^a"}, {"pattern": "^b"}]}}},
        {"properties": {"x": {"if": {"pattern": "^b"}, "else": False}}},
        {"properties": {"x": {"enum": [str(n) for n in range(1_000)]}}},
        {"properties": {"x": False}, "$defs": {f"d{n}": {} for n in range(10_000)}},
        {"$id": "https://example.com/a", "properties": {"x": {"$id": "b", "$ref": "#/properties/y"}, "y": False}},
        {"properties": {"x": {"type": "integer", "$ref": "#anchor"}}},
    ],
    ids=lambda schema: str(schema)[:60],
)
def test_what_a_untrusted_schema_asks_beyond_what_is_cheap_is_not_checked(schema: dict[str, Any]) -> None:
    assert find_problem_bounded('{"x": "a"}', schema) is None


DOUBLING = {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(40)}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {f"p{n}": {"pattern": f"^[^a]{{900}}{n}(?=x)$"} for n in range(2000)}},
        {"allOf": [{"$ref": "#/$defs/0"}], "$defs": DOUBLING},
        {"properties": {f"z{n}": {"$ref": "#/$defs/a"} for n in range(900)}, "$defs": {"a": {"enum": ["x"] * 100_000}}},
    ],
    ids=["patterns", "doubling", "many values"],
)
def test_a_untrusted_schema_that_is_work_never_comes_to_the_validator(
    schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    compile_schema = jsonschema_rs.validator_for

    def noted(key: str, **options: Any) -> jsonschema_rs.Validator:
        seen.append(key)
        return compile_schema(key, **options)

    monkeypatch.setattr(jsonschema_rs, "validator_for", noted)
    assert find_problem_bounded("{}", schema) is None
    assert all(len(key) < 64 * 1024 and "pattern" not in key and "$ref" not in key for key in seen)


def test_many_values_are_not_held_against_a_large_untrusted_schema() -> None:
    schema = {"properties": {"x": {"items": {"enum": list(range(200))}}}}
    few, many = '{"x": [-1]}', f'{{"x": [{",".join(["-1"] * 50_000)}]}}'
    assert find_problem_bounded(few, schema) is not None
    assert find_problem_bounded(many, schema) is None


def test_a_schema_is_compiled_once() -> None:
    schema = {"type": "object", "properties": {"compiled_once": {"type": "integer"}}}
    before = validate._validator.cache_info()
    for _ in range(5):
        assert find_problem('{"compiled_once": 1}', dict(schema)) is None
    after = validate._validator.cache_info()
    assert after.misses == before.misses + 1
    assert after.maxsize is not None
