"""The validators are called: a running server refuses a bad request before it has done anything."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from serving import RESPONSES, serving

MESSAGE = {"role": "user", "content": "hi"}
SMALL = Limits(input_items=2, part_bytes=64, tools=2, metadata_keys=2)

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"input": [{"role": "user", "content": [{"type": "foo"}]}]}, "input[0].content[0].type", "invalid_value"),
    ({"input": 5}, "input", "invalid_value"),
    ({"input": "hi", "temperature": 3}, "temperature", "invalid_value"),
    ({"input": "hi", "tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
    ({"input": "hi", "tool_choice": {"type": "function", "name": "nowhere"}}, "tool_choice.name", "unknown_tool"),
    ({"input": [MESSAGE] * 3}, "input", "too_many_items"),
    ({"input": "x" * 65}, "input[0].content[0].text", "string_above_max_length"),
    ({"input": "hi", "tools": [{"type": "function", "name": f"f{i}"} for i in range(3)]}, "tools", "too_many_tools"),
    ({"input": "hi", "metadata": {"a": "", "b": "", "c": ""}}, "metadata", "too_many_keys"),
]


@pytest.mark.proves("MISTAKE-04", "CP-030", "CP-036", "CP-040")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param", "code"), BAD, ids=[f"{param} {code}" for _, param, code in BAD])
async def test_a_bad_request_is_refused_before_any_work(
    fields: dict[str, Any], param: str, code: str, stream: bool
) -> None:
    provider = ScriptedProvider()
    engine = Engine(provider, store=MemoryStore(), settings=EngineSettings(limits=SMALL))
    async with serving(engine) as server:
        reply = await server.ask("POST", RESPONSES, {"model": "scripted", "stream": stream, **fields})
    assert reply.status == 400
    error = reply.error
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert provider.requests == []


@pytest.mark.proves("CP-040")
async def test_a_request_within_the_limits_is_answered() -> None:
    engine = Engine(ScriptedProvider(answer(say("ok"))), store=MemoryStore(), settings=EngineSettings(limits=SMALL))
    body = {"model": "scripted", "input": [MESSAGE] * 2, "metadata": {"a": "", "b": ""}}
    async with serving(engine) as server:
        reply = await server.ask("POST", RESPONSES, body)
    assert reply.status == 200
    assert reply.json()["status"] == "completed"
