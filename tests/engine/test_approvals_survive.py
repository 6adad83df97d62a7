"""Approvals where a conversation is compacted or shortened, and where a response is told again."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.decoding import at_once
from antwort.api.items import (
    Compaction,
    InputItem,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    OutputText,
)
from antwort.engine.context.compaction import split_item_steps
from antwort.engine.context.summarizer import entry_steps
from antwort.engine.history.recent_responses import packed
from antwort.engine.history.refusals import NO_APPROVAL
from antwort.engine.runs.replay import replay_events
from antwort.storage.base import Link, Page
from antwort.testing import ScriptedProvider, StreamChecker, answer, call, say
from approval_kit import GUARDED, again, asked, check_pairs, decision, depot, told
from compaction_kit import SUMMED, TALK, output_of, threshold
from engine_kit import ask, engine_of, kinds, only, stream

SHIP = answer(call("ship", box="7"))
DONE = answer(say("Done."))
HASH = "0" * 32
REQUEST = McpApprovalRequest(id=f"mcpr_{HASH}", server_label="depot", name="ship", arguments='{"box":"7"}')
DENIED = McpApprovalResponse(id="mcpa_1", approval_request_id=REQUEST.id, approve=False, reason="No.")
RUN = McpCall(
    id=f"mcp_{HASH}_run",
    server_label="depot",
    name="ship",
    arguments='{"box":"7"}',
    output="shipped",
    approval_request_id=REQUEST.id,
)


def words(role: Any, text: str) -> Message:
    return Message(id=f"msg_{text}", role=role, content=(OutputText(text=text),))


# ---- compaction ----


async def test_what_waits_survives_a_compaction_and_can_be_approved_behind_it() -> None:
    server = depot()
    provider = ScriptedProvider(SHIP, SUMMED, DONE)
    engine = engine_of(provider, server, compaction_keep=0)
    fields: dict[str, Any] = {"tools": [GUARDED], "store": False}
    first = await engine.create(ask([*TALK, {"role": "user", "content": "Ship it."}], **fields))
    said = [*TALK, {"role": "user", "content": "Ship it."}, *again(first)]
    window = output_of(await engine.compact(model="scripted", input=said))
    assert "mcp_approval_request" in [item["type"] for item in window]
    second = await engine.create(ask([window[-1], decision(first)], **fields))
    assert only(second, McpCall).output == "shipped"
    assert told(provider)[-2:] == [("assistant", ["ship"]), ("tool", "shipped")]
    check_pairs(provider)


async def test_what_waits_survives_a_compaction_in_a_chain() -> None:
    server = depot()
    provider = ScriptedProvider(SHIP, SUMMED, answer(say("As you like.")), DONE)
    engine = engine_of(provider, server, compaction_keep=0)
    long = [{"role": "user", "content": "x " * 5000}, {"role": "assistant", "content": "Well."}]
    first = await engine.create(ask([*long, {"role": "user", "content": "Ship it."}], tools=[GUARDED]))
    compact: dict[str, Any] = {"context_management": [threshold(1000)]}
    second = await engine.create(ask("Wait.", previous_response_id=first.id, **compact))
    assert any(isinstance(item, Compaction) for item in second.output), kinds(second)
    third = await engine.create(ask([decision(first)], previous_response_id=second.id))
    assert only(third, McpCall).output == "shipped"
    assert len(server.calls) == 1
    check_pairs(provider)


@pytest.mark.parametrize("budget", [0, 60, 200, 10_000])
def test_no_decision_is_parted_from_its_request(budget: int) -> None:
    items: list[InputItem] = [
        words("user", "Hello"),
        REQUEST,
        DENIED,
        words("assistant", "Well."),
        words("user", "And?"),
    ]
    _, recent = at_once(split_item_steps(items, budget, lambda _: 50))
    kept = [item for item in recent if isinstance(item, McpApprovalRequest | McpApprovalResponse)]
    assert kept in ([], [REQUEST, DENIED])


@pytest.mark.parametrize(
    ("items", "results"),
    [
        ([REQUEST], [f"[{NO_APPROVAL}]"]),
        ([REQUEST, DENIED], ["[The user denied this call. The reason: No.]"]),
        ([REQUEST, RUN], ["shipped"]),
    ],
)
def test_a_summary_is_told_of_a_call_once_with_what_came_of_it(items: list[Any], results: list[str]) -> None:
    entries = at_once(entry_steps([words("user", "Ship it."), *items]))
    assert [entry.calls for entry in entries if entry.role == "assistant"] == ["ship"]
    assert [entry.text for entry in entries if entry.role == "tool"] == results


# ---- truncation ----


async def test_truncation_leaves_out_a_call_only_with_what_came_of_it() -> None:
    server = depot()
    provider = ScriptedProvider(SHIP, DONE, answer(say("Yes.")))
    engine = engine_of(provider, server, truncation="auto")
    first = await engine.create(ask("Ship it. " * 50, tools=[GUARDED]))
    second = await engine.create(ask([decision(first)], previous_response_id=first.id))
    await engine.create(ask("Sure? " * 20_000, previous_response_id=second.id))
    check_pairs(provider)


# ---- told again ----


async def test_a_response_that_asks_is_the_fold_of_its_events_told_again() -> None:
    engine = engine_of(ScriptedProvider(SHIP, DONE), depot())
    first = (await stream(engine, ask(tools=[GUARDED]))).response
    second = (await stream(engine, ask([decision(first)], previous_response_id=first.id))).response
    for response in (first, second):
        checker = StreamChecker()
        for number, event in enumerate(replay_events(response)):
            checker.feed(number, event)
        assert checker.finish() == response


async def test_a_keyed_request_that_comes_again_is_asked_about_once() -> None:
    server = depot()
    engine = engine_of(ScriptedProvider(SHIP, DONE), server)
    first = await engine.create(ask(tools=[GUARDED]), idempotency_key="ask")
    assert await engine.create(ask(tools=[GUARDED]), idempotency_key="ask") == first
    follow = ask([decision(first)], previous_response_id=first.id)
    second = await engine.create(follow, idempotency_key="go")
    assert await engine.create(follow, idempotency_key="go") == second
    assert len(server.calls) == 1


async def test_a_connection_remembers_what_waits() -> None:
    engine = engine_of(ScriptedProvider(SHIP), depot())
    response = await engine.create(ask(tools=[GUARDED], store=False))
    link = Link(response=response, request=b'{"model":"m"}', input=(DENIED,), turn_ends=(1,))
    back = packed(link).unpacked()
    assert asked(back.response) == asked(response)
    assert back.input == (DENIED,)


async def test_the_items_of_a_conversation_are_shown_as_they_were() -> None:
    engine = engine_of(ScriptedProvider(SHIP, DONE), depot())
    conversation = (await engine.conversations.create()).id
    first = await engine.create(ask(tools=[GUARDED], conversation=conversation))
    await engine.create(ask([decision(first)], tools=[GUARDED], conversation=conversation))
    found = (await engine.conversations.items(conversation, Page(order="asc"))).items
    assert [type(item).__name__ for item in found] == [
        "Message",
        "McpListTools",
        "McpApprovalRequest",
        "McpApprovalResponse",
        "McpCall",
        "Message",
    ]
