"""A server's call that a client sends back without its result: it has been run, and is not run again."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.items import FunctionCall, McpCall
from antwort.api.responses import Response
from antwort.engine.translate import NO_RESULT
from antwort.identity import Identity
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolCall, ToolContext
from engine_kit import CLOCK, SERVER, ask, engine_of, kinds, only, sent_messages

HELLO: dict[str, Any] = {"role": "user", "content": "Hello"}
MORE: dict[str, Any] = {"role": "user", "content": "And now?"}


class Depot(ToolServerFake):
    def __init__(self) -> None:
        super().__init__("depot", lookup=self.look)
        self.runs = 0

    async def look(self, _: ToolCall, __: ToolContext) -> str:
        self.runs += 1
        return "found"


def bare(item: McpCall, **changed: Any) -> dict[str, Any]:
    """As pydantic-ai sends it: what the server gave out is for the server to know."""
    shown = {"type": "mcp_call", "id": item.id, "server_label": item.server_label, "name": item.name}
    return {**shown, "arguments": item.arguments, "output": None, "error": None, **changed}


def words(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "output_text", "text": text}]}


def told(provider: ScriptedProvider) -> list[tuple[str, Any]]:
    return sent_messages(provider.requests[-1])


async def asked_first(depot: Depot, **more: Any) -> tuple[Any, ScriptedProvider, Response]:
    provider = ScriptedProvider(answer(call("lookup")), answer(say("It is there.")), answer(say("Still there.")))
    engine = engine_of(provider, depot)
    return engine, provider, await engine.create(ask(tools=[SERVER], **more))


@pytest.mark.parametrize("is_declared", [True, False], ids=["its server declared", "its server not declared"])
async def test_the_result_is_read_from_the_store(is_declared: bool) -> None:
    depot = Depot()
    engine, provider, first = await asked_first(depot)
    history = [HELLO, bare(only(first, McpCall)), words("It is there."), MORE]
    second = await engine.create(ask(history, tools=[SERVER] if is_declared else []))
    assert "mcp_call" not in kinds(second)
    assert depot.runs == 1
    assert [role for role, _ in told(provider)] == ["user", "assistant", "tool", "assistant", "user"]
    assert ("tool", "found") in told(provider)


async def test_where_the_store_has_none_the_model_is_told_so_and_nothing_runs() -> None:
    depot = Depot()
    engine, provider, first = await asked_first(depot, store=False)
    history = [HELLO, bare(only(first, McpCall)), words("It is there."), MORE]
    second = await engine.create(ask(history, tools=[SERVER]))
    assert "mcp_call" not in kinds(second)
    assert depot.runs == 1
    assert ("tool", NO_RESULT) in told(provider)


@pytest.mark.parametrize("said", [[], [words("One moment.")]], ids=["no words", "words in the same turn"])
async def test_a_call_whose_turn_did_not_end_in_words_is_still_to_be_run(said: list[dict[str, Any]]) -> None:
    depot = Depot()
    provider = ScriptedProvider(answer(call("lookup"), call("clock")), answer(say("All of it.")))
    engine = engine_of(provider, depot)
    first = await engine.create(ask(tools=[SERVER, CLOCK], store=False))
    call_id = only(first, FunctionCall).call_id
    clock = {"type": "function_call", "call_id": call_id, "name": "clock", "arguments": "{}"}
    noon = {"type": "function_call_output", "call_id": call_id, "output": "noon"}
    await engine.create(ask([HELLO, bare(only(first, McpCall)), *said, clock, noon], tools=[SERVER, CLOCK]))
    assert depot.runs == 1


async def test_nobody_reads_the_result_of_another_tenant() -> None:
    depot = Depot()
    engine, provider, first = await asked_first(depot)
    history = [HELLO, bare(only(first, McpCall)), words("It is there."), MORE]
    await engine.create(ask(history, tools=[SERVER]), Identity("other", "other"))
    assert ("tool", "found") not in told(provider)


async def test_an_item_of_another_kind_under_that_id_changes_nothing() -> None:
    depot = Depot()
    engine, provider, first = await asked_first(depot)
    history = [HELLO, bare(only(first, McpCall), id=first.output[-1].id), words("It is there."), MORE]
    await engine.create(ask(history, tools=[SERVER]))
    assert ("tool", NO_RESULT) in told(provider)
