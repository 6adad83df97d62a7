"""Input that comes to no message: the one who sent it hears of it before the backend does."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.errors import InvalidField
from antwort.providers.base import Capabilities
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from engine_kit import CLOCK, SERVER, ask, engine_of, function_calls, replies, sent_messages, stream

THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
NOTHING: list[list[dict[str, Any]]] = [
    [],
    [{"type": "reasoning", "summary": []}],
    [{"role": "assistant", "content": ""}],
    [{"type": "acme:note", "text": "x"}],
    [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{", "status": "incomplete"}],
]


@pytest.mark.parametrize("items", NOTHING, ids=["empty", "reasoning", "no words", "unknown", "a cut call"])
@pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "whole"])
async def test_input_that_says_nothing_is_refused_before_the_backend_is_asked(
    items: list[dict[str, Any]], is_streamed: bool
) -> None:
    provider = ScriptedProvider(answer(say("Well.")))
    engine = engine_of(provider)
    with pytest.raises(InvalidField) as caught:
        await (stream(engine, ask(items)) if is_streamed else engine.create(ask(items)))
    assert (caught.value.param, caught.value.code) == ("input", "missing_required_parameter")
    assert provider.requests == []


async def test_reasoning_alone_says_nothing_to_a_backend_that_takes_none() -> None:
    provider = ScriptedProvider(answer(say("Well.")), capabilities=Capabilities(reasoning_field=None))
    with pytest.raises(InvalidField, match="says nothing"):
        await engine_of(provider).create(ask([THOUGHT]))


@pytest.mark.parametrize(
    ("items", "fields", "roles"),
    [
        ([], {"instructions": "Greet."}, ["system"]),
        ("", {}, ["user"]),
        ([{"role": "developer", "content": "Greet."}], {}, ["system"]),
        ([{"role": "assistant", "content": "Hm."}], {}, ["assistant"]),
        ([THOUGHT], {}, ["assistant"]),
    ],
    ids=["instructions", "an empty string", "a developer", "an assistant", "reasoning"],
)
async def test_whatever_comes_to_a_message_is_asked(items: Any, fields: dict[str, Any], roles: list[str]) -> None:
    provider = ScriptedProvider(answer(say("Well.")))
    await engine_of(provider).create(ask(items, **fields))
    assert [role for role, _ in sent_messages(provider.requests[0])] == roles


async def test_what_was_said_before_is_enough() -> None:
    provider = ScriptedProvider(answer(call("lookup"), call("clock")), answer(say("Well.")), answer(say("So.")))
    engine = engine_of(provider, ToolServerFake("depot", lookup=replies("found")))
    first = await engine.create(ask(tools=[SERVER, CLOCK]))
    noon = {"type": "function_call_output", "call_id": function_calls(first)[0].call_id, "output": "noon"}
    second = await engine.create(ask([noon], previous_response_id=first.id))
    third = await engine.create(ask([], previous_response_id=second.id))
    assert (second.status, third.status) == ("completed", "completed")
