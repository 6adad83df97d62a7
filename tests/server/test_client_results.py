"""Results that clients bring, over HTTP: those of their calls, once more, and those of servers' calls."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.engine.engine import Engine
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from engine_kit import CLOCK, SERVER, replies, sent_messages
from serving import HELLO, RESPONSES, Serving, serving

OK = answer(say("Ok."))


def result(call_id: str, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


async def created(server: Serving, **fields: Any) -> dict[str, Any]:
    reply = await server.ask("POST", RESPONSES, {**HELLO, **fields})
    assert reply.status == 200, reply.body
    response: dict[str, Any] = reply.json()
    return response


@pytest.mark.proves("RULING-3a")
async def test_a_result_sent_again_is_ignored_and_a_different_one_is_a_400() -> None:
    provider = ScriptedProvider(answer(call("clock")), OK, OK)
    async with serving(Engine(provider)) as server:
        first = await created(server, tools=[CLOCK])
        call_id = first["output"][0]["call_id"]
        second = await created(server, previous_response_id=first["id"], input=[result(call_id, "noon")])
        again = [result(call_id, [{"type": "input_text", "text": "noon"}]), {"role": "user", "content": "And?"}]
        await created(server, previous_response_id=second["id"], input=again)
        roles = [role for role, _ in sent_messages(provider.requests[-1])]
        assert roles == ["user", "assistant", "tool", "assistant", "user"]
        other = {**HELLO, "previous_response_id": second["id"], "input": [result(call_id, "one")]}
        reply = await server.ask("POST", RESPONSES, other)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert (reply.error["code"], reply.error["param"]) == ("duplicate_output", "input[0].call_id")


@pytest.mark.proves("RULING-3")
@pytest.mark.parametrize("field", ["call_id", "id"])
async def test_a_client_answers_a_servers_open_call_by_either_id(field: str) -> None:
    depot = ToolServerFake("depot", lookup=replies("found"))
    provider = ScriptedProvider(answer(call("lookup"), call("clock")), OK)
    async with serving(Engine(provider, executors=[depot])) as server:
        first = await created(server, tools=[SERVER, CLOCK])
        assert first["status"] == "requires_action"
        lookup, clock = first["output"][-2:]
        items = [result(lookup[field], "by hand"), result(clock["call_id"], "noon")]
        second = await created(server, previous_response_id=first["id"], input=items)
        listed = (await server.ask("GET", f"{RESPONSES}/{second['id']}/input_items?order=asc")).json()
    assert [item["type"] for item in second["output"]] == ["message"]
    assert depot.calls == []
    assert [content for role, content in sent_messages(provider.requests[-1]) if role == "tool"] == ["by hand", "noon"]
    assert [(item["call_id"], item["output"]) for item in listed["data"]] == [
        (lookup["call_id"], "by hand"),
        (clock["call_id"], "noon"),
    ]


@pytest.mark.proves("RULING-3a")
async def test_a_message_between_a_call_and_its_result_is_told_behind_it() -> None:
    provider = ScriptedProvider(answer(call("clock")), OK)
    async with serving(Engine(provider)) as server:
        first = await created(server, tools=[CLOCK], input="Time?")
        said = [{"role": "user", "content": text} for text in ("Time?", "Quick!")]
        items = [*said, result(first["output"][0]["call_id"], "noon")]
        await created(server, previous_response_id=first["id"], input=items)
    assert sent_messages(provider.requests[-1])[2:] == [("tool", "noon"), ("user", "Quick!")]
