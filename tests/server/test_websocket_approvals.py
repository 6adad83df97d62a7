"""Approvals on a WebSocket: also where no store keeps what was asked."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.items import McpCall
from antwort.engine.engine import Engine
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, call, say
from approval_kit import GUARDED, asked, check_pairs, decision, depot
from engine_kit import only, text_of
from serving import serving
from socket_kit import connected


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_connection_goes_on_with_what_was_approved(is_stored: bool) -> None:
    server_of_tools = depot()
    provider = ScriptedProvider(answer(call("ship", box="7")), answer(say("Done.")), answer(say("Yes.")))
    engine = Engine(provider, store=MemoryStore(), executors=[server_of_tools])
    fields: dict[str, Any] = {"store": is_stored}
    async with serving(engine) as server, connected(server.port) as socket:
        first = await socket.ask(tools=[GUARDED], **fields)
        assert first.status == "requires_action"
        second = await socket.ask(input=[decision(first)], previous_response_id=first.id, **fields)
        assert only(second, McpCall).approval_request_id == asked(first).id
        third = await socket.ask(input="Sure?", previous_response_id=second.id, **fields)
    assert text_of(third) == "Yes."
    assert len(server_of_tools.calls) == 1
    check_pairs(provider)


async def test_what_is_wrong_with_a_decision_is_told_and_the_connection_goes_on() -> None:
    provider = ScriptedProvider(answer(call("ship", box="7")), answer(say("Done.")))
    engine = Engine(provider, store=MemoryStore(), executors=[depot()])
    async with serving(engine) as server, connected(server.port) as socket:
        first = await socket.ask(tools=[GUARDED])
        unknown = {"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": True}
        await socket.create(input=[unknown], previous_response_id=first.id)
        error = await socket.error()
        assert (error["status"], error["code"]) == (400, "unknown_approval")
        assert error["param"] == "input[0].approval_request_id"
        second = await socket.ask(input=[decision(first, approve=False)], previous_response_id=first.id)
    assert only(second, McpCall).status == "failed"
