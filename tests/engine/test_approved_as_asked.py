"""What runs is what was asked for, and what the model hears of it is true."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from antwort.api.items import McpApprovalRequest, McpCall
from antwort.api.tools import McpTool
from antwort.engine.engine import Engine
from antwort.engine.history.refusals import DENIED, NO_APPROVAL, NOT_RUN, OUTCOME_UNKNOWN
from antwort.engine.loop.result_events import INTERRUPTED
from antwort.errors import InvalidField, ToolServerUnavailable
from antwort.identity import Identity
from antwort.storage.base import Bound
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, Unanswered
from approval_kit import GUARDED, again, asked, check_pairs, decision, depot, told
from compaction_kit import output_of
from engine_kit import ask, engine_of, items_of, kinds, only, replies, sent, server_calls

SHIP = answer(call("ship", box="7"))
DONE = answer(say("Done."))
SURE = {"role": "user", "content": "Sure?"}


async def refused(engine: Engine, *items: Any, **fields: Any) -> InvalidField:
    with pytest.raises(InvalidField) as caught:
        await engine.create(ask([*items], tools=[GUARDED], **fields))
    assert caught.value.status == 400
    return caught.value


# ---- nothing else than what was asked for ----


@pytest.mark.parametrize("change", [{"arguments": '{"box":"8"}'}, {"name": "lookup"}, {"server_label": "other"}])
@pytest.mark.parametrize("approve", [True, False])
async def test_a_request_that_was_changed_in_another_conversation_decides_nothing(
    change: dict[str, str], approve: bool
) -> None:
    server = depot()
    engine = engine_of(ScriptedProvider(SHIP, DONE), server, ToolServerFake("other", ship=replies("no")))
    first = await engine.create(ask(tools=[GUARDED]))
    held = await engine.conversations.create([SURE, {**again(first)[-1], **change}])
    other = {"type": "mcp", "server_label": "other"}
    with pytest.raises(InvalidField) as caught:
        await engine.create(ask([decision(first, approve=approve)], tools=[GUARDED, other], conversation=held.id))
    assert caught.value.param == "input[0].approval_request_id"
    assert server.calls == []
    assert (await engine.approval(asked(first).id)).status == "pending"
    second = await engine.create(ask([decision(first)], previous_response_id=first.id))
    assert only(second, McpCall).arguments == '{"box":"7"}'


async def test_a_request_that_was_taken_out_and_put_back_otherwise_is_not_run() -> None:
    server = depot()
    engine = engine_of(ScriptedProvider(SHIP), server)
    conversation = (await engine.conversations.create()).id
    first = await engine.create(ask(tools=[GUARDED], conversation=conversation))
    await engine.conversations.delete_item(conversation, asked(first).id)
    changed = {**again(first)[-1], "arguments": '{"box":"8"}'}
    await engine.conversations.add(conversation, [changed])
    await refused(engine, decision(first), conversation=conversation)
    await engine.conversations.add(conversation, [decision(first)])
    error = await refused(engine, SURE, conversation=conversation)
    assert error.param == "conversation"
    assert server.calls == []


@pytest.mark.parametrize("change", [{"arguments": '{"box":"8"}'}, {"name": "lookup"}, {"server_label": "other"}])
@pytest.mark.parametrize("is_decided", [True, False])
async def test_a_call_without_a_result_that_names_an_approval_is_the_one_that_was_made(
    change: dict[str, str], is_decided: bool
) -> None:
    server = depot()
    provider = ScriptedProvider(SHIP, DONE, DONE)
    engine = engine_of(provider, server)
    first = await engine.create(ask(tools=[GUARDED]))
    bare = {"type": "mcp_call", "id": "mcp_1", "server_label": "depot", "name": "ship", "arguments": '{ "box": "7" }'}
    bare["approval_request_id"] = asked(first).id
    items = [*again(first), *([decision(first)] if is_decided else [])]
    error = await refused(engine, *items, {**bare, **change}, SURE)
    assert error.param == f"input[{len(items)}].arguments"
    assert server.calls == []
    assert (await engine.approval(asked(first).id)).status == "pending"
    await engine.create(ask([*items, bare, SURE], tools=[GUARDED]))
    assert server.calls == []
    check_pairs(provider)


async def test_what_runs_are_the_arguments_on_record_however_a_client_writes_them() -> None:
    server = depot()
    engine = engine_of(ScriptedProvider(answer(call("ship", box=1)), DONE), server)
    first = await engine.create(ask(tools=[GUARDED]))
    written = {**again(first)[-1], "arguments": '{"box": true}'}  # which Python takes for the same
    second = await engine.create(ask([written, decision(first)], tools=[GUARDED]))
    assert only(second, McpCall).arguments == '{"box":1}'
    assert [each.arguments for each in server.calls] == ['{"box":1}']


# ---- one by one ----


class Slow:
    """A tool that says when it has begun, and ends when it may."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self, call: ToolCall, context: ToolContext) -> str:
        self.begun.set()
        await self.may_end.wait()
        return "slowly"


async def interrupted(engine: Engine, slow: Slow, request: Any) -> Any:
    """The response to the request, stopped while the slow tool runs."""
    run = await engine.start(request)
    await slow.begun.wait()
    run.leave()
    response = await run.result()
    slow.may_end.set()
    return response


@pytest.mark.parametrize("goes_on_from", ["first", "second"])
async def test_an_approved_call_that_never_began_can_still_be_run(goes_on_from: str) -> None:
    slow = Slow()
    server = ToolServerFake("depot", wait=slow, ship=replies("shipped"))
    provider = ScriptedProvider(answer(call("wait"), call("ship", box="7")), DONE)
    engine = engine_of(provider, server)
    first = await engine.create(ask(tools=[GUARDED], parallel_tool_calls=False))
    both = [decision(each) for each in items_of(first, McpApprovalRequest)]
    second = await interrupted(engine, slow, ask(both, previous_response_id=first.id))
    assert [item.name for item in server_calls(second)] == ["wait"]
    parent = first if goes_on_from == "first" else second
    third = await engine.create(ask(both, previous_response_id=parent.id))
    assert [(item.name, item.output or None) for item in server_calls(third)][-1] == ("ship", "shipped")
    assert [each.name for each in server.calls] == ["wait", "ship"]
    check_pairs(provider)


@pytest.mark.parametrize("way", ["again", "goes on", "conversation"])
async def test_the_model_hears_that_a_call_was_begun_and_how_it_ended_is_not_known(way: str) -> None:
    slow = Slow()
    server = ToolServerFake("depot", wait=slow)
    provider = ScriptedProvider(answer(call("wait")), DONE, DONE)
    engine = engine_of(provider, server)
    fields: dict[str, Any] = {"tools": [GUARDED]}
    if way == "conversation":
        fields["conversation"] = (await engine.conversations.create()).id
    first = await engine.create(ask(**fields))
    chain = {} if way == "conversation" else {"previous_response_id": first.id}
    second = await interrupted(engine, slow, ask([decision(first)], **fields, **chain))
    item = only(second, McpCall)
    assert (item.status, item.error_text, item.approval_request_id) == ("failed", INTERRUPTED, asked(first).id)
    if way == "goes on":
        chain = {"previous_response_id": second.id}
    third = await engine.create(ask([SURE] if way == "goes on" else [decision(first)], **fields, **chain))
    assert server_calls(third) == []
    assert ("tool", INTERRUPTED) in told(provider)
    assert len(server.calls) == 1
    check_pairs(provider)


# ---- late answers ----


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("way", ["chain", "conversation", "items"])
async def test_what_was_decided_late_is_told_behind_what_was_said(approve: bool, way: str) -> None:
    provider = ScriptedProvider(SHIP, answer(say("As you like.")), DONE, answer(say("Yes.")))
    engine = engine_of(provider, depot())
    conversation = (await engine.conversations.create()).id
    said: list[Any] = []

    async def turn(*items: Any, parent: Any = None) -> Any:
        fields: dict[str, Any] = {"tools": [GUARDED]}
        if way == "items":
            said.extend(items)
            response = await engine.create(ask(said, store=False, **fields))
            said.extend(again(response))
            return response
        if way == "conversation":
            return await engine.create(ask([*items], conversation=conversation, **fields))
        return await engine.create(ask([*items], previous_response_id=parent and parent.id, **fields))

    first = await turn({"role": "user", "content": "Hello"})
    second = await turn({"role": "user", "content": "Wait."}, parent=first)
    third = await turn(decision(first, approve=approve), parent=second)
    result = "shipped" if approve else DENIED
    assert told(provider) == [
        ("user", "Hello"),
        ("assistant", ["ship"]),
        ("tool", NO_APPROVAL),
        ("user", "Wait."),
        ("assistant", ["ship"]),  # the words are with it
        ("tool", result),
    ]
    last = provider.requests[-1].messages[-2]
    assert last.content == "As you like."
    await turn(SURE, parent=third)
    assert told(provider)[-4:] == [("assistant", ["ship"]), ("tool", result), ("assistant", "Done."), ("user", "Sure?")]
    check_pairs(provider)


async def test_calls_of_one_turn_may_be_approved_one_after_the_other() -> None:
    provider = ScriptedProvider(answer(call("ship", box="1"), call("ship", box="2")), DONE, answer(say("Both.")))
    engine = engine_of(provider, depot())
    first = await engine.create(ask(tools=[GUARDED]))
    one, two = items_of(first, McpApprovalRequest)
    second = await engine.create(ask([decision(one)], previous_response_id=first.id))
    third = await engine.create(ask([SURE, decision(two)], previous_response_id=second.id))
    assert only(third, McpCall).output == "shipped"
    assert told(provider)[1:] == [
        ("assistant", ["ship", "ship"]),
        ("tool", "shipped"),
        ("tool", NO_APPROVAL),
        ("assistant", "Done."),
        ("user", "Sure?"),
        ("assistant", ["ship"]),
        ("tool", "shipped"),
    ]
    ids = [each.id for message in provider.requests[-1].messages for each in message.tool_calls or ()]
    assert len(set(ids)) == 3
    check_pairs(provider)


async def test_what_was_run_elsewhere_meanwhile_is_told_behind_what_was_said() -> None:
    provider = ScriptedProvider(SHIP, answer(say("As you like.")), DONE, DONE)
    engine = engine_of(provider, depot())
    first = await engine.create(ask(tools=[GUARDED]))
    second = await engine.create(ask("Wait.", previous_response_id=first.id))
    await engine.create(ask([decision(first)], previous_response_id=first.id))
    await engine.create(ask([], previous_response_id=second.id))
    assert told(provider)[2:] == [
        ("tool", NO_APPROVAL),
        ("user", "Wait."),
        ("assistant", ["ship"]),
        ("tool", "shipped"),
    ]
    check_pairs(provider)


# ---- what was decided elsewhere ----


async def test_the_model_hears_of_a_call_that_was_run_where_nothing_was_kept() -> None:
    provider = ScriptedProvider(SHIP, DONE, DONE)
    engine = engine_of(provider, depot())
    first = await engine.create(ask(tools=[GUARDED]))
    await engine.create(ask([decision(first)], previous_response_id=first.id, store=False))
    await engine.create(ask("And now?", previous_response_id=first.id))
    assert told(provider)[1:] == [("assistant", ["ship"]), ("tool", OUTCOME_UNKNOWN), ("user", "And now?")]


async def test_the_model_hears_of_a_call_that_was_denied_elsewhere() -> None:
    provider = ScriptedProvider(SHIP, DONE, DONE)
    engine = engine_of(provider, depot())
    first = await engine.create(ask(tools=[GUARDED]))
    await engine.create(ask([decision(first, approve=False)], previous_response_id=first.id, store=False))
    await engine.create(ask("And now?", previous_response_id=first.id))
    assert ("tool", DENIED) in told(provider)


async def test_the_model_hears_of_a_call_that_was_approved_and_never_begun() -> None:
    slow = Slow()
    server = ToolServerFake("depot", wait=slow, ship=replies("shipped"))
    provider = ScriptedProvider(answer(call("wait"), call("ship", box="7")), DONE)
    engine = engine_of(provider, server)
    first = await engine.create(ask(tools=[GUARDED], parallel_tool_calls=False))
    both = [decision(each) for each in items_of(first, McpApprovalRequest)]
    await interrupted(engine, slow, ask(both, previous_response_id=first.id))
    await engine.create(ask("And now?", previous_response_id=first.id))
    assert [content for role, content in told(provider) if role == "tool"] == [INTERRUPTED, NOT_RUN]


# ---- what nobody can answer, and what is not needed ----


async def test_a_turn_that_adds_nothing_to_its_conversation_asks_for_nothing() -> None:
    slow = Slow()
    server = ToolServerFake("depot", wait=slow, ship=replies("shipped"))
    guarded = {**GUARDED, "require_approval": {"always": {"tool_names": ["ship"]}}}
    engine = engine_of(ScriptedProvider(answer(call("wait"), call("ship", box="7"))), server)
    conversation = (await engine.conversations.create()).id
    stopped = await interrupted(engine, slow, ask(tools=[guarded], conversation=conversation))
    assert "mcp_approval_request" in kinds(stopped)
    assert (await engine.approvals()).approvals == ()


async def test_a_turn_that_no_conversation_keeps_can_be_answered_after_it_was_stopped() -> None:
    slow = Slow()
    server = ToolServerFake("depot", wait=slow, ship=replies("shipped"))
    guarded = {**GUARDED, "require_approval": {"always": {"tool_names": ["ship"]}}}
    engine = engine_of(ScriptedProvider(answer(call("wait"), call("ship", box="7")), DONE), server)
    stopped = await interrupted(engine, slow, ask(tools=[guarded]))
    assert [each.status for each in (await engine.approvals()).approvals] == ["pending"]
    second = await engine.create(ask([decision(stopped)], previous_response_id=stopped.id))
    assert server_calls(second)[-1].output == "shipped"


class Counting(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.links = 0
        self.items_wanted: list[str] = []

    async def link(self, *args: Any, **fields: Any) -> Any:
        self.links += 1
        return await super().link(*args, **fields)

    async def items(self, identity: Identity, ids: Sequence[str], bound: Bound | None = None) -> Any:
        self.items_wanted += ids
        return await super().items(identity, ids, bound)


@pytest.mark.parametrize("with_runs", [True, False])
async def test_only_those_who_asked_for_what_is_to_be_run_are_looked_up(with_runs: bool) -> None:
    store = Counting()
    engine = engine_of(ScriptedProvider(*[SHIP, DONE] * 4, DONE), depot(), store=store)
    said: list[Any] = []
    for _ in range(4):
        said.append({"role": "user", "content": "Ship it."})
        first = await engine.create(ask(said, tools=[GUARDED]))
        said += [*again(first), decision(first)]
        second = await engine.create(ask(said, tools=[GUARDED]))
        said += [item for item in again(second) if with_runs or item["type"] != "mcp_call"]
    assert store.links == 4
    store.items_wanted.clear()
    await engine.create(ask([*said, SURE], tools=[GUARDED]))
    assert store.links == 4
    assert len(store.items_wanted) == (0 if with_runs else 4)


async def test_a_decision_that_only_a_compaction_holds_runs_once() -> None:
    server = depot()
    summed = answer(say("They talked."))
    provider = ScriptedProvider(SHIP, summed, DONE, DONE)
    engine = engine_of(provider, server)
    first = await engine.create(ask(tools=[GUARDED]))
    talk = [{"role": "user", "content": "x " * 200}, {"role": "assistant", "content": "Well."}]
    said = [*talk, {"role": "user", "content": "Ship it."}, *again(first), decision(first)]
    held = output_of(await engine.compact(model="scripted", input=said))[-1]
    for _ in range(2):
        await engine.create(ask([held], tools=[GUARDED]))
    assert len(server.calls) == 1
    assert (await engine.approvals()).approvals[0].status == "approved"


# ---- servers that cannot be asked ----


class Shaky(ToolServerFake):
    """A depot that can be down, or have lost its tools."""

    is_down = False
    is_empty = False

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        if self.is_down and declared.server_label == "depot":
            raise Unanswered("The tool server 'depot' cannot be reached.")
        found = await super().discover(declared, identity)
        return [] if found is not None and self.is_empty else found


@pytest.mark.parametrize("way", ["chain", "items", "conversation"])
async def test_an_approval_waits_for_a_server_that_is_down(way: str) -> None:
    server = Shaky("depot", ship=replies("shipped"))
    engine = engine_of(ScriptedProvider(SHIP, DONE), server)
    fields: dict[str, Any] = {"tools": [GUARDED]}
    if way == "conversation":
        fields["conversation"] = (await engine.conversations.create()).id
    first = await engine.create(ask(**fields))
    if way == "chain":
        fields["previous_response_id"] = first.id
    given = [*(again(first) if way == "items" else ()), decision(first)]
    server.is_down = True
    for _ in range(2):
        with pytest.raises(ToolServerUnavailable, match="cannot be reached") as caught:
            await engine.create(ask(given, **fields))
        assert (caught.value.status, caught.value.code, caught.value.may_pass) == (503, "tool_server_unavailable", True)
    assert (await engine.approval(asked(first).id)).status == "pending"
    server.is_down = False
    assert only(await engine.create(ask(given, **fields)), McpCall).output == "shipped"


async def test_a_denial_waits_for_no_server() -> None:
    server = Shaky("depot", ship=replies("shipped"))
    engine = engine_of(ScriptedProvider(SHIP, DONE), server)
    first = await engine.create(ask(tools=[GUARDED]))
    server.is_down = True
    second = await engine.create(ask([decision(first, approve=False)], previous_response_id=first.id))
    assert only(second, McpCall).error_text == DENIED


async def test_a_tool_that_its_server_has_no_more_is_gone() -> None:
    server = Shaky("depot", ship=replies("shipped"))
    engine = engine_of(ScriptedProvider(SHIP, DONE), server)
    first = await engine.create(ask(tools=[GUARDED]))
    server.is_empty = True
    second = await engine.create(ask([decision(first)], previous_response_id=first.id))
    assert only(second, McpCall).error_text == "The tool 'ship' is not available any more."


async def test_tokens_are_counted_whether_a_server_answers_or_not() -> None:
    server = Shaky("depot", ship=replies("shipped"))
    engine = engine_of(ScriptedProvider(SHIP), server)
    first = await engine.create(ask(tools=[GUARDED]))
    server.is_down = True
    assert await engine.count(ask([decision(first)], previous_response_id=first.id)) > 0


# ---- which servers are asked for their tools again ----


class Fickle(ToolServerFake):
    """Counts how often its list is asked for anew, and fails then where it is down."""

    def __init__(self, label: str, *, is_down: bool = False) -> None:
        super().__init__(label, f"{label}_", ship=replies("shipped"))
        self.is_down, self.refreshed = is_down, 0

    async def refresh(self, declared: McpTool, identity: Identity) -> None:
        if declared.server_label == self._label:
            self.refreshed += 1
            if self.is_down:
                raise Unanswered("The server is down.")


@pytest.mark.parametrize("is_stored", [True, False])
async def test_an_approval_asks_only_the_server_of_the_approved_call_for_its_tools_again(is_stored: bool) -> None:
    near, far = Fickle("near"), Fickle("far", is_down=True)
    tools = [{**GUARDED, "server_label": label} for label in ("near", "far")]
    provider = ScriptedProvider(answer(call("near_ship")), DONE)
    engine = engine_of(provider, near, far)
    first = await engine.create(ask(tools=tools, store=is_stored))
    said = [decision(first)] if is_stored else [*again(first), decision(first)]
    before = {"previous_response_id": first.id} if is_stored else {}
    second = await engine.create(ask(said, tools=tools, store=is_stored, **before))
    assert only(second, McpCall).output == "shipped"
    assert near.refreshed > far.refreshed == 0
    offered = [tool["function"]["name"] for tool in sent(provider.requests[-1])["tools"]]
    assert offered == ["near_ship", "far_ship"]
