"""A function in, a JSON schema out; arguments in, the function's own types out."""

from __future__ import annotations

import dataclasses
import enum
import typing  # noqa: F401 - for the hint that is written as text
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict

import jsonschema_rs
import msgspec
import pytest

from antwort.tools.base import ToolContext
from antwort.tools.schema import Signature, read_signature


class Unit(enum.Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Box(TypedDict, total=False):
    width: int


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


def takes(hint: object, *default: object) -> Callable[..., None]:
    """A function of one parameter `x`."""

    def function(x: object) -> None: ...

    function.__annotations__ = {"x": hint}
    function.__defaults__ = default or None
    return function


def given(signature: Signature, arguments: str) -> dict[str, object]:
    return signature.read(msgspec.json.decode(arguments), arguments)


def schema_of(hint: object) -> object:
    return read_signature(takes(hint)).parameters["properties"]["x"]


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (date, {"type": "string", "format": "date"}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
        (
            Annotated[int, msgspec.Meta(ge=1, description="how many")],
            {"type": "integer", "minimum": 1, "description": "how many"},
        ),
        (
            tuple[int, str],
            {
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "items": False,
            },
        ),
    ],
)
def test_a_type_hint_has_its_schema(hint: object, expected: object) -> None:
    assert schema_of(hint) == expected


def weather(
    city: str,
    where: Point,
    context: ToolContext,
    unit: Unit = Unit.CELSIUS,
    *,
    days: Annotated[int, msgspec.Meta(ge=1, le=7)] = 1,
    box: Box | None = None,
) -> str:
    """Say what the weather will be,
    as far as anybody knows.

    This is for people who read the source.

    Args:
        city (str): The city,
            in English.
        where: Its place on the map.
        days: How many days ahead: at most 7.

    Returns:
        city: not this one
    """
    return city


def test_a_whole_function_has_its_schema() -> None:
    assert read_signature(weather).parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city, in English."},
            "where": {"$ref": "#/$defs/Point", "description": "Its place on the map."},
            "unit": {"$ref": "#/$defs/Unit", "default": "celsius"},
            "days": {
                "type": "integer",
                "minimum": 1,
                "maximum": 7,
                "default": 1,
                "description": "How many days ahead: at most 7.",
            },
            "box": {"anyOf": [{"$ref": "#/$defs/Box"}, {"type": "null"}], "default": None},
        },
        "required": ["city", "where"],
        "additionalProperties": False,
        "$defs": {
            "Point": {
                "title": "Point",
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0.0}},
                "required": ["x"],
            },
            "Unit": {"title": "Unit", "enum": ["celsius", "kelvin"]},
            "Box": {"title": "Box", "type": "object", "properties": {"width": {"type": "integer"}}, "required": []},
        },
    }


def test_the_first_paragraph_of_the_docstring_is_the_description() -> None:
    expected = "Say what the weather will be, as far as anybody knows."
    assert read_signature(weather).description == expected


def test_the_context_is_injected_and_no_part_of_the_schema() -> None:
    signature = read_signature(weather)
    assert signature.context_parameter == "context"
    assert "context" not in signature.parameters["properties"]


def test_a_function_of_nothing_takes_an_empty_object() -> None:
    def nothing() -> None: ...

    signature = read_signature(nothing)
    assert signature.parameters == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert given(signature, "{}") == {}


def test_every_schema_is_valid_and_recursive_types_keep_their_references() -> None:
    parameters = read_signature(takes(Tree)).parameters
    validator = jsonschema_rs.validator_for(parameters)
    assert validator.is_valid({"x": {"value": 1, "children": [{"value": 2}]}})
    assert not validator.is_valid({"x": {"value": 1, "children": [{}]}})


def test_arguments_are_read_as_the_functions_own_types() -> None:
    values = given(
        read_signature(weather), '{"city": "Bonn", "where": {"x": 1}, "unit": "kelvin", "box": {"width": 2}}'
    )
    assert values == {"city": "Bonn", "where": Point(1.0), "unit": Unit.KELVIN, "box": {"width": 2}}


@pytest.mark.parametrize("default", [None, object(), [], [1], float("nan")])
def test_an_argument_that_is_not_given_is_left_to_the_functions_own_default(default: object) -> None:
    signature = read_signature(takes(Any, default))
    assert given(signature, "{}") == {}
    assert signature.parameters["required"] == []


def test_a_default_that_json_cannot_show_is_not_shown() -> None:
    assert read_signature(takes(int, object())).parameters["properties"]["x"] == {"type": "integer"}


def test_a_given_null_is_not_the_same_as_an_absent_argument() -> None:
    assert given(read_signature(takes(int | None, 5)), '{"x": null}') == {"x": None}


@pytest.mark.parametrize(
    ("hint", "written", "expected"),
    [
        (int, "3.0", 3),
        (list[int], "[1.0, 2]", [1, 2]),
        (dict[str, int], '{"a": 2.0}', {"a": 2}),
        (float, "3", 3.0),
        (float, "3.5", 3.5),
        (dict[int, int], '{"1": 2.0}', {1: 2}),
    ],
)
def test_a_whole_number_written_with_a_point_is_an_integer(hint: object, written: str, expected: object) -> None:
    assert given(read_signature(takes(hint)), f'{{"x": {written}}}') == {"x": expected}


@pytest.mark.parametrize("written", ["1.10", '"1.10"', "12345678901234567890.123456789"])
def test_a_decimal_has_the_digits_that_were_written(written: str) -> None:
    assert str(given(read_signature(takes(Decimal)), f'{{"x": {written}}}')["x"]) == written.strip('"')
    assert str(given(read_signature(takes(Decimal | None)), f'{{"x": {written}}}')["x"]) == written.strip('"')


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"where": {"x": 1}}', "`city`"),
        ('{"city": 5, "where": {"x": 1}}', "`$.city`"),
        ('{"city": "Bonn", "where": {"x": "far"}}', "`$.where.x`"),
        ('{"city": "Bonn", "where": {"x": 1}, "days": 8}', "`$.days`"),
        ('{"city": "Bonn", "where": {"x": 1}, "color": 1}', "`color`"),
        ('{"city": "Bonn", "where": {"x": 1}, "context": {}}', "`context`"),
        ("[]", "object"),
    ],
)
def test_what_does_not_fit_is_named(arguments: str, words: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=words.replace("$", r"\$")):
        given(read_signature(weather), arguments)


def star(*numbers: int) -> None: ...
def stars(**numbers: int) -> None: ...
def slash(number: int, /) -> None: ...
def odd(number: complex) -> None: ...
def union(number: Point | Tree) -> None: ...
def twice(one: ToolContext, two: ToolContext) -> None: ...
def bare(number: int) -> None: ...


del bare.__annotations__["number"]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (star, "star: parameter 'numbers' is variadic positional"),
        (stars, "stars: parameter 'numbers' is variadic keyword"),
        (slash, "slash: parameter 'number' is positional-only"),
        (bare, "bare: parameter 'number' has no type hint"),
        (odd, "odd: parameter 'number' of type .*complex.* has no JSON schema"),
        (union, "union: parameter 'number' .* has no JSON schema"),
        (takes("NotThere"), "function: a type hint cannot be resolved: .*NotThere"),
        (twice, "twice: only one parameter can take the ToolContext, not one and two"),
        (Point(1), "is not a function"),
    ],
)
def test_what_no_schema_can_be_made_for_is_named(function: Callable[..., object], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        read_signature(function)


@pytest.mark.parametrize(
    "hint",
    [ToolContext, ToolContext | None, "typing.Optional[ToolContext]", Annotated[ToolContext, "the call"]],
    ids=str,
)
def test_a_context_is_given_however_its_type_is_written_and_is_no_part_of_the_schema(hint: object) -> None:
    signature = read_signature(takes(hint))
    assert signature.context_parameter == "x"
    assert signature.parameters["properties"] == {}


def test_what_is_a_context_or_something_else_has_no_schema() -> None:
    with pytest.raises(TypeError, match="parameter 'x'"):
        read_signature(takes(ToolContext | str))


def test_a_parameter_that_python_cannot_call_so_is_called_by_the_word_itself() -> None:
    def move(from_: str, to: str, class_: int = 1, from__: int = 2, id_: int = 3) -> None:
        """Move.

        Args:
            from_: Where it is.
        """

    signature = read_signature(move)
    properties = signature.parameters["properties"]
    assert [*properties] == ["from", "to", "class", "from__", "id_"]
    assert signature.parameters["required"] == ["from", "to"]
    assert properties["from"] == {"type": "string", "description": "Where it is."}
    assert properties["class"] == {"type": "integer", "default": 1}
    assert given(signature, '{"from": "a", "to": "b", "class": 4}') == {"from_": "a", "to": "b", "class_": 4}
    with pytest.raises(msgspec.ValidationError):
        given(signature, '{"from_": "a", "to": "b"}')
