"""What the model is told of the parameters of servers' tools, and what others are."""

from __future__ import annotations

from typing import Any

import msgspec

from antwort.api.items import McpCall, McpListTools
from antwort.testing import ScriptedProvider, answer, call, say
from antwort.tools.toolset import Toolset
from engine_kit import WEATHER, ask, engine_of, only, sent

CALC = {"type": "mcp", "server_label": "calc"}


class Point(msgspec.Struct):
    x: int
    y: int | None = None


def measure(start: Point, unit: str | None = None) -> str:
    """Measure from a point."""
    return f"{start.x} {start.y} {unit}"


def parameters(provider: ScriptedProvider) -> dict[str, Any]:
    found: dict[str, Any] = sent(provider.requests[0])["tools"][0]["function"]["parameters"]
    return found


async def test_the_model_is_told_plainly_and_clients_as_it_is() -> None:
    provider = ScriptedProvider(answer(say("Hi.")))
    response = await engine_of(provider, Toolset("calc", measure)).create(ask(tools=[CALC]))
    assert parameters(provider) == {
        "type": "object",
        "properties": {
            "start": {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
                "required": ["x"],
            },
            "unit": {"type": "string"},
        },
        "required": ["start"],
        "additionalProperties": False,
    }
    (listed,) = only(response, McpListTools).tools
    assert "$defs" in listed.input_schema


async def test_arguments_are_held_against_the_schema_as_it_is() -> None:
    provider = ScriptedProvider(answer(call("measure", start={"x": 1, "y": None}, unit=None)), answer(say("Done.")))
    response = await engine_of(provider, Toolset("calc", measure)).create(ask(tools=[CALC]))
    assert only(response, McpCall).output == "1 None None"


async def test_the_requests_own_functions_are_told_as_they_are() -> None:
    provider = ScriptedProvider(answer(say("Hi.")))
    schema = {"$schema": "x", "properties": {"city": {"type": ["string", "null"]}}}
    await engine_of(provider).create(ask(tools=[{**WEATHER, "parameters": schema}]))
    assert parameters(provider) == schema
