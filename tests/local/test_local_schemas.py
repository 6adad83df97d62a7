"""What a schema may ask of llama.cpp."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.errors import InvalidField
from antwort.local.provider import SCHEMA_BYTES, SCHEMA_CHOICES, check_schemas
from antwort.providers.base import ChatTool, ChatToolFunction
from fleet_kit import asking


def of(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


ENOUGH = list(range(SCHEMA_CHOICES))


@pytest.mark.parametrize("schema", [{"enum": ENOUGH}, {"anyOf": [{"const": each} for each in ENOUGH]}, {"enum": 5}, {}])
def test_a_schema_within_its_bounds_is_let_through(schema: Any) -> None:
    check_schemas(asking(response_format=of(schema), tools=[ChatTool(function=ChatToolFunction(name="f"))]))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"enum": [*ENOUGH, "x"]}, "more than 500 enum values and members of unions"),
        ({"properties": {"a": {"enum": ENOUGH}, "b": {"oneOf": [{}]}}}, "more than 500"),
        ({"description": "x" * SCHEMA_BYTES}, "longer than 65536 bytes"),
    ],
)
def test_one_beyond_them_is_refused_where_it_stands(schema: Any, problem: str) -> None:
    with pytest.raises(InvalidField, match=problem) as caught:
        check_schemas(asking(response_format=of(schema)))
    assert caught.value.param == "text.format"
    with pytest.raises(InvalidField, match=problem) as caught:
        check_schemas(asking(tools=[ChatTool(function=ChatToolFunction(name="f", parameters=schema))]))
    assert caught.value.param == "tools"
