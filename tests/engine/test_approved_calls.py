"""What a follow-up decides about the calls that wait for approval, and what comes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antwort.api.events import McpCallCompleted, McpCallFailed
from antwort.api.items import McpApprovalRequest, McpCall
from antwort.api.wire import UNSET
from antwort.engine.history.refusals import NO_APPROVAL
from antwort.engine.prompt.messages import NO_RESULT
from antwort.errors import AntwortError, Conflict, InvalidField
from antwort.identity import ANONYMOUS
from antwort.storage.base import Page
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from approval_kit import GUARDED, ONE_GUARDED, again, asked, check_pairs, decision, depot, told
from engine_kit import CLOCK, ask, engine_of, function_calls, items_of, kinds, only, replies, server_calls, stream

SHIP = answer(call("ship", box="7"))
DONE = answer(say("Done."))


async def refused(engine: Any, *items: Any, **fields: Any) -> AntwortError:
    with pytest.raises(AntwortError) as caught:
        await engine.create(ask([*items], **fields))
    return caught.value


# ---- approved, denied, or neither ----


@pytest.mark.proves("RULING-16", "FR-021")
async def test_an_approved_call_runs_first_and_names_its_request() -> None:
    server = depot()
    provider = ScriptedProvider(SHIP, DONE)
    engine = engine_of(provider, server)
    first = await engine.create(ask(tools=[GUARDED]))
    outcome = await stream(engine, ask([decision(first)], previous_response_id=first.id))
    assert kinds(outcome.response) == ["mcp_call", "message"]
    item = only(outcome.response, McpCall)
    assert (item.approval_request_id, item.output, item.arguments) == (asked(first).id, "shipped", '{"box":"7"}')
    assert item.id != asked(first).id
    assert item.call_id is UNSET
    assert any(isinstance(event, McpCallCompleted) for event in outcome.events)
    assert [each.arguments for each in server.calls] == ['{"box":"7"}']
    assert told(provider) == [("user", "Hello"), ("assistant", ["ship"]), ("tool", "shipped")]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ({"reason": "Too heavy."}, "The user denied this call. The reason: Too heavy."),
        ({"reason": ""}, "The user denied this call."),
        ({}, "The user denied this call."),
    ],
)
async def test_a_denied_call_is_an_error_that_holds_the_reason(reason: dict[str, str], words: str) -> None:
    server = depot()
    provider = ScriptedProvider(SHIP, DONE)
    engine = engine_of(provider, server)
    first = await engine.create(ask(tools=[GUARDED]))
    outcome = await stream(engine, ask([decision(first, approve=False, **reason)], previous_response_id=first.id))
    item = only(outcome.response, McpCall)
    assert (item.status, item.error_text, item.approval_request_id) == ("failed", words, asked(first).id)
    assert any(isinstance(event, McpCallFailed) for event in outcome.events)
    assert server.calls == []
    assert told(provider) == [("user", "Hello"), ("assistant", ["ship"]), ("tool", words)]


async def test_the_model_hears_of_a_call_that_nobody_has_decided_about() -> None:
    provider = ScriptedProvider(SHIP, DONE)
    engine = engine_of(provider, depot())
    first = await engine.create(ask(tools=[GUARDED]))
    second = await engine.create(ask("Never mind.", previous_response_id=first.id))
    assert kinds(second) == ["message"]
    assert told(provider)[1:] == [("assistant", ["ship"]), ("tool", NO_APPROVAL), ("user", "Never mind.")]


async def test_an_approval_may_come_after_the_conversation_went_on() -> None:
    server = depot()
    provider = ScriptedProvider(SHIP, answer(say("As you like.")), DONE)
    engine = engine_of(provider, server)
    first = await engine.create(ask(tools=[GUARDED]))
    second = await engine.create(ask("Wait.", previous_response_id=first.id))
    third = await engine.create(ask([decision(first)], previous_response_id=second.id))
    assert only(third, McpCall).output == "shipped"
    assert ("tool", "shipped") in told(provider)
    check_pairs(provider)


async def test_some_may_be_approved_and_others_denied() -> None:
    provider = ScriptedProvider(answer(call("ship", box="1"), call("ship", box="2"), call("ship", box="3")), DONE)
    engine = engine_of(provider, depot())
    first = await engine.create(ask(tools=[GUARDED]))
    one, two, _ = items_of(first, McpApprovalRequest)
    given = [decision(two), decision(one, approve=False)]
    second = await engine.create(ask(given, previous_response_id=first.id))
    assert [item.status for item in server_calls(second)] == ["failed", "completed"]
    results = [content for role, content in told(provider) if role == "tool"]
    assert results == ["The user denied this call.", "shipped", NO_APPROVAL]


# ---- by whose tools and limits ----


async def test_it_runs_under_the_parents_tools_whatever_the_follow_up_declares() -> None:
    server = depot()
    provider = ScriptedProvider(SHIP, DONE)
    engine = engine_of(provider, server)
    first = await engine.create(ask(tools=[GUARDED]))
    nothing = {"tools": [], "tool_choice": "none", "max_tool_calls": 1}
    await engine.create(ask([decision(first)], previous_response_id=first.id, **nothing))
    assert len(server.calls) == 1


@pytest.mark.proves("LIMIT-1")
async def test_approved_runs_count_for_the_limit_of_the_response_that_asked() -> None:
    server = depot()
    provider = ScriptedProvider(answer(call("lookup"), call("ship", box="1")), DONE)
    engine = engine_of(provider, server, max_tool_calls=2)
    first = await engine.create(ask(tools=[ONE_GUARDED]))
    second = await engine.create(ask([decision(first)], previous_response_id=first.id))
    assert only(second, McpCall).output == "shipped"


async def test_an_approved_call_of_a_server_that_is_gone_is_answered() -> None:
    store = MemoryStore()
    first = await engine_of(ScriptedProvider(SHIP), depot(), store=store).create(ask(tools=[GUARDED]))
    provider = ScriptedProvider(DONE)
    second = await engine_of(provider, store=store).create(ask([decision(first)], previous_response_id=first.id))
    assert "not available" in (only(second, McpCall).error_text or "")


async def test_the_model_may_ask_for_the_next_call_at_once() -> None:
    provider = ScriptedProvider(SHIP, answer(call("ship", box="8")), DONE)
    engine = engine_of(provider, depot())
    first = await engine.create(ask(tools=[GUARDED]))
    second = await engine.create(ask([decision(first)], previous_response_id=first.id, tools=[GUARDED]))
    assert kinds(second) == ["mcp_call", "mcp_approval_request"]
    assert second.status == "requires_action"
    third = await engine.create(ask([decision(second)], previous_response_id=second.id))
    assert only(third, McpCall).arguments == '{"box":"8"}'
    check_pairs(provider)


@pytest.mark.proves("MIXED-2")
async def test_a_mixed_turn_goes_on_with_the_clients_output_and_its_approval() -> None:
    server = depot()
    provider = ScriptedProvider(answer(call("clock"), call("ship", box="1"), call("lookup")), DONE)
    engine = engine_of(provider, server)
    first = await engine.create(ask(tools=[ONE_GUARDED, CLOCK]))
    output = {"type": "function_call_output", "call_id": function_calls(first)[0].call_id, "output": "noon"}
    second = await engine.create(ask([output, decision(first)], previous_response_id=first.id))
    assert [item.name for item in server_calls(second)] == ["ship", "lookup"]
    assert told(provider)[1:] == [
        ("assistant", ["clock", "ship", "lookup"]),
        ("tool", "noon"),
        ("tool", "shipped"),
        ("tool", "found"),
    ]


# ---- what cannot be decided ----


async def test_a_decision_about_what_nobody_asked_for_is_a_fault() -> None:
    provider = ScriptedProvider(SHIP)
    engine = engine_of(provider, depot())
    first = await engine.create(ask(tools=[GUARDED]))
    other = {"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": True}
    error = await refused(engine, {"role": "user", "content": "Hm."}, other, previous_response_id=first.id)
    assert (error.status, error.param, error.code) == (400, "input[1].approval_request_id", "unknown_approval")
    alone = await refused(engine, decision(first))
    assert (alone.param, alone.code) == ("input[0].approval_request_id", "unknown_approval")


async def test_a_call_is_decided_in_one_way_in_an_input() -> None:
    engine = engine_of(ScriptedProvider(SHIP), depot())
    first = await engine.create(ask(tools=[GUARDED]))
    given = decision(first), decision(first, approve=False)
    error = await refused(engine, *given, previous_response_id=first.id)
    assert (error.status, error.param, error.code) == (400, "input[1].approval_request_id", "duplicate_approval")


@pytest.mark.proves("RULING-3a")
async def test_the_same_decision_twice_in_an_input_is_one() -> None:
    server, provider = depot(), ScriptedProvider(SHIP, DONE)
    engine = engine_of(provider, server)
    first = await engine.create(ask(tools=[GUARDED]))
    second = await engine.create(ask([decision(first), decision(first)], previous_response_id=first.id))
    assert kinds(second) == ["mcp_call", "message"]
    assert len(server.calls) == 1
    listed = await engine.input_items(ANONYMOUS, second.id, Page())
    assert len(listed.items) == 1


@pytest.mark.parametrize("approve", [True, False])
async def test_a_decision_cannot_be_taken_back_in_the_chain_or_beside_it(approve: bool) -> None:
    engine = engine_of(ScriptedProvider(SHIP, DONE), depot())
    first = await engine.create(ask(tools=[GUARDED]))
    second = await engine.create(ask([decision(first, approve=approve)], previous_response_id=first.id))
    for parent in (first, second):
        error = await refused(engine, decision(first, approve=not approve), previous_response_id=parent.id)
        assert isinstance(error, Conflict)
        assert (error.param, error.code) == ("input[0].approval_request_id", "approval_decided")


async def test_a_call_that_waits_cannot_be_changed() -> None:
    engine = engine_of(ScriptedProvider(SHIP), depot())
    first = await engine.create(ask(tools=[GUARDED]))
    changed = {**again(first)[-1], "arguments": '{"box":"8"}'}
    for parent in ({"previous_response_id": first.id}, {"tools": [GUARDED]}):
        error = await refused(engine, changed, decision(first), **parent)
        assert isinstance(error, InvalidField)
        assert error.param == "input[0].arguments"


# ---- once and no more ----


async def test_what_was_approved_in_another_continuation_is_taken_from_there() -> None:
    server = depot()
    provider = ScriptedProvider(SHIP, DONE, DONE)
    engine = engine_of(provider, server)
    first = await engine.create(ask(tools=[GUARDED]))
    for _ in range(2):
        await engine.create(ask([decision(first)], previous_response_id=first.id))
        assert ("tool", "shipped") in told(provider)
    assert len(server.calls) == 1


async def test_the_same_decision_once_more_in_the_chain_changes_nothing() -> None:
    server = depot()
    provider = ScriptedProvider(SHIP, DONE, DONE)
    engine = engine_of(provider, server)
    first = await engine.create(ask(tools=[GUARDED]))
    second = await engine.create(ask([decision(first)], previous_response_id=first.id))
    third = await engine.create(
        ask([decision(first), {"role": "user", "content": "And?"}], previous_response_id=second.id)
    )
    assert kinds(third) == ["message"]
    assert len(server.calls) == 1
    check_pairs(provider)


# ---- clients that keep their history themselves ----


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_client_that_sends_all_again_goes_on_like_one_that_names_the_response(is_stored: bool) -> None:
    server = depot()
    provider = ScriptedProvider(SHIP, DONE, answer(say("Still done.")))
    engine = engine_of(provider, server)
    fields: dict[str, Any] = {"tools": [GUARDED], "store": is_stored}
    said: list[Any] = [{"role": "user", "content": "Hello"}]
    first = await engine.create(ask(said, **fields))
    said += [*again(first), decision(first)]
    second = await engine.create(ask(said, **fields))
    assert only(second, McpCall).output == "shipped"
    assert told(provider) == [("user", "Hello"), ("assistant", ["ship"]), ("tool", "shipped")]
    said += [*again(second), {"role": "user", "content": "Sure?"}]
    await engine.create(ask(said, **fields))
    assert told(provider)[1:] == [
        ("assistant", ["ship"]),
        ("tool", "shipped"),
        ("assistant", "Done."),
        ("user", "Sure?"),
    ]
    assert len(server.calls) == 1


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_run_that_a_client_leaves_out_is_not_made_again(is_stored: bool) -> None:
    server = depot()
    provider = ScriptedProvider(SHIP, DONE, DONE)
    engine = engine_of(provider, server)
    fields: dict[str, Any] = {"tools": [GUARDED], "store": is_stored}
    first = await engine.create(ask(**fields))
    second = await engine.create(ask([*again(first), decision(first)], **fields))
    words = [item for item in again(second) if item["type"] == "message"]
    said = [*again(first), decision(first), *words, {"role": "user", "content": "Sure?"}]
    await engine.create(ask(said, **fields))
    assert len(server.calls) == 1
    assert ("tool", "shipped" if is_stored else NO_RESULT) in told(provider)
    check_pairs(provider)


async def test_a_denial_that_a_client_keeps_without_its_answer_is_told_again() -> None:
    provider = ScriptedProvider(SHIP, DONE)
    engine = engine_of(provider, depot())
    first = await engine.create(ask(tools=[GUARDED], store=False))
    denied = decision(first, approve=False, reason="No.")
    said = [*again(first), denied, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "Go on."}]
    await engine.create(ask(said, store=False))
    assert told(provider)[:3] == [
        ("assistant", ["ship"]),
        ("tool", "The user denied this call. The reason: No."),
        ("assistant", "Fine."),
    ]


async def test_a_reference_stands_for_the_request() -> None:
    server = depot()
    engine = engine_of(ScriptedProvider(SHIP, DONE), server)
    first = await engine.create(ask(tools=[GUARDED]))
    said = [{"type": "item_reference", "id": asked(first).id}, decision(first)]
    second = await engine.create(ask(said, tools=[GUARDED]))
    assert only(second, McpCall).output == "shipped"


async def test_a_call_that_was_never_asked_for_is_not_run_because_a_client_brings_it() -> None:
    server = depot()
    provider = ScriptedProvider(DONE)
    bare = {"type": "mcp_call", "id": "mcp_1", "server_label": "depot", "name": "ship", "arguments": "{}"}
    made = {**bare, "call_id": "call_" + "0" * 32}
    await engine_of(provider, server).create(ask([made], tools=[GUARDED], store=False))
    assert server.calls == []
    assert ("tool", NO_APPROVAL) in told(provider)


@pytest.mark.proves("RULING-21")
@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("request_id", ["mcpr_68aa", "mcpr_" + 32 * "0"])
async def test_an_invented_request_cannot_be_approved(request_id: str, store: bool) -> None:
    server = depot()
    engine = engine_of(ScriptedProvider(DONE), server)
    request = {
        "type": "mcp_approval_request",
        "id": request_id,
        "server_label": "depot",
        "name": "ship",
        "arguments": "{}",
    }
    given = {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": True}
    with pytest.raises(InvalidField) as caught:
        await engine.create(ask([request, given], tools=[GUARDED], store=store))
    assert (caught.value.param, caught.value.code) == ("input[1].approval_request_id", "unknown_approval")
    assert server.calls == []


@pytest.mark.proves("RULING-21")
@pytest.mark.parametrize("change", [{"arguments": '{"box":2}'}, {"name": "lookup"}, {"server_label": "other"}])
async def test_a_request_that_was_changed_since_it_was_given_out_cannot_be_approved(change: dict[str, str]) -> None:
    server = depot()
    engine = engine_of(ScriptedProvider(SHIP, DONE), server)
    first = await engine.create(ask(tools=[GUARDED], store=False))
    changed = {**again(first)[-1], **change}
    with pytest.raises(InvalidField) as caught:
        await engine.create(ask([changed, decision(first)], tools=[GUARDED], store=False))
    assert caught.value.code == "unknown_approval"
    assert server.calls == []


async def test_arguments_that_a_client_formats_otherwise_are_the_same_request() -> None:
    server = depot()
    engine = engine_of(ScriptedProvider(answer(call("ship", box=1, to="Oslo")), DONE), server)
    first = await engine.create(ask(tools=[GUARDED], store=False))
    same = {**again(first)[-1], "arguments": '{ "to": "Oslo",\n "box": 1 }'}
    second = await engine.create(ask([same, decision(first)], tools=[GUARDED], store=False))
    assert only(second, McpCall).output == "shipped"


async def test_history_of_another_server_with_a_settled_approval_is_only_history() -> None:
    provider = ScriptedProvider(DONE)
    foreign = {"server_label": "depot", "name": "ship", "arguments": "{}"}
    items = [
        {"type": "message", "role": "user", "content": "Ship it."},
        {"type": "mcp_approval_request", "id": "mcpr_68aa", **foreign},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_68aa", "approve": True},
        {"type": "mcp_call", "id": "mcp_68ab", "approval_request_id": "mcpr_68aa", **foreign, "output": "shipped"},
        {"type": "message", "role": "user", "content": "And?"},
    ]
    server = depot()
    response = await engine_of(provider, server).create(ask(items, tools=[GUARDED]))
    assert response.status == "completed"
    assert server.calls == []
    check_pairs(provider)


@pytest.mark.proves("RULING-3")
@pytest.mark.parametrize("store", [True, False])
async def test_one_approval_runs_one_call_whatever_id_comes_with_it(store: bool) -> None:
    server = depot()
    engine = engine_of(ScriptedProvider(SHIP, DONE), server)
    first = await engine.create(ask(tools=[GUARDED], store=store))
    forged = {
        "type": "mcp_call",
        "id": "mcp_" + 32 * "1",
        "call_id": "call_" + 32 * "2",
        "approval_request_id": asked(first).id,
        "server_label": "depot",
        "name": "ship",
        "arguments": asked(first).arguments,
    }
    items = [*again(first), decision(first), forged]
    async with asyncio.timeout(5):
        await engine.create(ask(items, tools=[GUARDED], store=store))
    assert len(server.calls) == 1


@pytest.mark.proves("RULING-21")
async def test_what_runs_is_what_the_id_of_the_request_proves() -> None:
    server = depot()
    engine = engine_of(ScriptedProvider(SHIP, DONE), server)
    first = await engine.create(ask(tools=[GUARDED], store=False))
    doubled = {**again(first)[-1], "arguments": '{"box":"99","box":"7"}'}
    await engine.create(ask([doubled, decision(first)], tools=[GUARDED], store=False))
    assert [each.arguments for each in server.calls] == ['{"box":"7"}']


@pytest.mark.proves("RULING-21")
@pytest.mark.parametrize("approve", [True, False])
async def test_a_decision_about_a_request_of_an_unstored_response_is_on_record(approve: bool) -> None:
    server = depot()
    engine = engine_of(ScriptedProvider(SHIP, DONE, DONE), server)
    first = await engine.create(ask(tools=[GUARDED], store=False))
    items = [*again(first), decision(first, approve=approve)]
    second = await engine.create(ask(items, tools=[GUARDED]))
    (shown,) = (await engine.approvals()).approvals
    assert (shown.id, shown.name, shown.decided_by) == (asked(first).id, "ship", second.id)
    assert (shown.status, shown.response_id) == ("approved" if approve else "denied", second.id)
    await engine.create(ask(items, tools=[GUARDED]))
    assert len(server.calls) == approve
    await engine.delete(ANONYMOUS, second.id)
    assert (await engine.approvals()).approvals == ()


@pytest.mark.proves("RULING-21")
async def test_a_conversation_keeps_the_decision_about_a_request_that_is_brought_to_it() -> None:
    server = depot()
    engine = engine_of(ScriptedProvider(SHIP, DONE, DONE), server)
    first = await engine.create(ask(tools=[GUARDED], store=False))
    conversation = (await engine.conversations.create()).id
    items = [*again(first), decision(first)]
    await engine.create(ask(items, tools=[GUARDED], store=False, conversation=conversation))
    (shown,) = (await engine.approvals()).approvals
    assert (shown.id, shown.status) == (asked(first).id, "approved")
    await engine.create(ask([decision(first)], tools=[GUARDED], store=False, conversation=conversation))
    assert len(server.calls) == 1


# ---- conversations ----


async def test_approvals_live_in_conversations() -> None:
    server = depot()
    provider = ScriptedProvider(SHIP, DONE, answer(say("Yes.")))
    engine = engine_of(provider, server)
    conversation = (await engine.conversations.create()).id
    first = await engine.create(ask(tools=[GUARDED], conversation=conversation))
    second = await engine.create(ask([decision(first)], tools=[GUARDED], conversation=conversation))
    assert only(second, McpCall).output == "shipped"
    await engine.create(ask([decision(first), {"role": "user", "content": "Sure?"}], conversation=conversation))
    assert len(server.calls) == 1
    assert told(provider)[1:] == [
        ("assistant", ["ship"]),
        ("tool", "shipped"),
        ("assistant", "Done."),
        ("user", "Sure?"),
    ]


async def test_a_server_with_made_up_names_is_called_by_its_own() -> None:
    server = ToolServerFake("depot", prefix="depot_", ship=replies("shipped"))
    provider = ScriptedProvider(answer(call("depot_ship", box="7")), DONE)
    engine = engine_of(provider, server)
    first = await engine.create(ask(tools=[GUARDED]))
    assert asked(first).name == "ship"
    await engine.create(ask([decision(first)], previous_response_id=first.id, tools=[GUARDED]))
    assert told(provider)[1] == ("assistant", ["depot_ship"])
    assert [each.name for each in server.calls] == ["depot_ship"]


@pytest.mark.parametrize("way", ["conversation", "items", "reference"])
async def test_however_it_goes_on_it_runs_under_the_tools_of_the_response_that_asked(way: str) -> None:
    server = depot()
    provider = ScriptedProvider(SHIP, DONE)
    engine = engine_of(provider, server)
    conversation = (await engine.conversations.create()).id
    fields: dict[str, Any] = {"conversation": conversation} if way == "conversation" else {}
    first = await engine.create(ask(tools=[GUARDED], **fields))
    said = {"items": again(first), "reference": [{"type": "item_reference", "id": asked(first).id}]}.get(way, [])
    second = await engine.create(ask([*said, decision(first)], tool_choice="none", **fields))
    assert only(second, McpCall).output == "shipped"
    assert len(server.calls) == 1


async def test_what_was_denied_does_not_count_as_run() -> None:
    server = depot()
    two = answer(call("ship", box="8"), call("ship", box="9"))
    provider = ScriptedProvider(SHIP, two, DONE)
    engine = engine_of(provider, server)
    first = await engine.create(ask(tools=[GUARDED]))
    fields: dict[str, Any] = {"tools": [GUARDED], "max_tool_calls": 2}
    second = await engine.create(ask([decision(first, approve=False)], previous_response_id=first.id, **fields))
    both = [decision(item) for item in items_of(second, McpApprovalRequest)]
    third = await engine.create(ask(both, previous_response_id=second.id))
    assert [item.output for item in server_calls(third)] == ["shipped", "shipped"]
