"""Approvals on record: they expire, survive a restart, and are acted on by one response at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from antwort.api.items import McpApprovalRequest, McpCall
from antwort.api.responses import Response
from antwort.api.wire import replace
from antwort.engine.engine import Engine
from antwort.engine.history.refusals import NO_APPROVAL, NOT_BEGUN, OUTCOME_UNKNOWN
from antwort.engine.runs.recorders import new_row
from antwort.engine.settings import EngineSettings
from antwort.errors import AntwortError, ApprovalInUse, ApprovalNotFound, StoreFault
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.base import CallClaim, NewResponse, Page, ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.storage.sqlite import SqliteStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolCall, ToolContext
from approval_kit import GUARDED, asked, check_pairs, decision, depot, told
from engine_kit import ask, items_of, kinds, only, replies

SHIP = answer(call("ship", box="7"))
DONE = answer(say("Done."))


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def engine_at(
    clock: Clock,
    *answers: Any,
    server: ToolServerFake | None = None,
    store: ResponseStore | None = None,
    seconds: float = 60.0,
) -> tuple[Engine, ScriptedProvider]:
    provider = ScriptedProvider(*answers)
    settings = EngineSettings(approval_time=seconds)
    executors = [server or depot()]
    return Engine(provider, store=store or MemoryStore(), executors=executors, settings=settings, clock=clock), provider


async def test_what_waits_can_be_listed_and_looked_at() -> None:
    clock = Clock()
    engine, _ = engine_at(clock, answer(call("ship", box="1"), call("ship", box="2")), DONE)
    response = await engine.create(ask(tools=[GUARDED]))
    one, two = items_of(response, McpApprovalRequest)
    found = (await engine.approvals()).approvals
    assert [each.id for each in found] == [two.id, one.id]
    shown = await engine.approval(one.id)
    assert (shown.status, shown.response_id, shown.server_label, shown.name) == (
        "pending",
        response.id,
        "depot",
        "ship",
    )
    assert (shown.arguments, shown.created_at, shown.expires_at) == ('{"box":"1"}', 1_700_000_000, 1_700_000_060)
    second = await engine.create(ask([decision(two), decision(one, approve=False)], previous_response_id=response.id))
    assert [(each.status, each.decided_by) for each in (await engine.approvals()).approvals] == [
        ("approved", second.id),
        ("denied", second.id),
    ]
    assert [each.id for each in (await engine.approvals(status="denied")).approvals] == [one.id]
    assert (await engine.approvals(page=Page(limit=1))).has_more


async def test_what_is_not_stored_is_not_listed() -> None:
    engine, _ = engine_at(Clock(), SHIP)
    response = await engine.create(ask(tools=[GUARDED], store=False))
    assert (await engine.approvals()).approvals == ()
    with pytest.raises(ApprovalNotFound):
        await engine.approval(asked(response).id)


async def test_nobody_sees_or_uses_the_approvals_of_others() -> None:
    engine, _ = engine_at(Clock(), SHIP)
    response = await engine.create(ask(tools=[GUARDED]), Identity("acme", "ann"))
    for other in (ANONYMOUS, Identity("acme", "bob")):
        assert (await engine.approvals(other)).approvals == ()
        with pytest.raises(ApprovalNotFound):
            await engine.approval(asked(response).id, other)


# ---- time ----


async def test_what_has_expired_can_only_be_denied() -> None:
    clock, server = Clock(), depot()
    engine, provider = engine_at(clock, SHIP, DONE, server=server)
    first = await engine.create(ask(tools=[GUARDED]))
    clock.now += 60
    assert (await engine.approval(asked(first).id)).status == "expired"
    assert [each.id for each in (await engine.approvals(status="expired")).approvals] == [asked(first).id]
    with pytest.raises(AntwortError) as caught:
        await engine.create(ask([decision(first)], previous_response_id=first.id))
    assert (caught.value.status, caught.value.code) == (400, "approval_expired")
    assert caught.value.param == "input[0].approval_request_id"
    second = await engine.create(ask([decision(first, approve=False)], previous_response_id=first.id))
    assert only(second, McpCall).error_text == "The user denied this call."
    assert (await engine.approval(asked(first).id)).status == "denied"
    assert server.calls == []
    check_pairs(provider)


async def test_an_approval_that_is_put_into_a_conversation_too_late_counts_for_nothing() -> None:
    clock, server = Clock(), depot()
    engine, provider = engine_at(clock, SHIP, DONE, server=server)
    conversation = (await engine.conversations.create()).id
    first = await engine.create(ask(tools=[GUARDED], conversation=conversation))
    clock.now += 60
    await engine.conversations.add(conversation, [decision(first)])
    await engine.create(ask([], tools=[GUARDED], conversation=conversation))
    assert server.calls == []
    assert told(provider)[-1] == ("tool", NO_APPROVAL)


async def test_an_approval_is_good_until_the_last_second() -> None:
    clock = Clock()
    engine, _ = engine_at(clock, SHIP, DONE)
    first = await engine.create(ask(tools=[GUARDED]))
    clock.now += 59
    second = await engine.create(ask([decision(first)], previous_response_id=first.id))
    assert only(second, McpCall).output == "shipped"


# ---- restarts ----


async def test_what_waits_survives_a_restart(tmp_path: Path) -> None:
    path, clock, server = tmp_path / "antwort.db", Clock(), depot()
    engine, _ = engine_at(clock, SHIP, store=await SqliteStore.open(path))
    async with engine:
        first = await engine.create(ask(tools=[GUARDED]))
    engine, provider = engine_at(clock, DONE, DONE, store=await SqliteStore.open(path), server=server)
    async with engine:
        assert [each.id for each in (await engine.approvals(status="pending")).approvals] == [asked(first).id]
        await engine.create(ask([decision(first)], previous_response_id=first.id))
    assert told(provider)[-1] == ("tool", "shipped")
    assert len(server.calls) == 1


@pytest.mark.proves("RULING-3")
@pytest.mark.parametrize("has_begun", [True, False])
async def test_an_approved_call_whose_process_died_is_run_only_if_it_had_not_begun(
    tmp_path: Path, has_begun: bool
) -> None:
    path, clock, server = tmp_path / "antwort.db", Clock(), depot()
    store = await SqliteStore.open(path)
    engine, _ = engine_at(clock, SHIP, store=store)
    first = await engine.create(ask(tools=[GUARDED]))
    plan = await engine.plan(ask([decision(first)], previous_response_id=first.id))
    await store.begin(new_row(plan))
    if has_begun:
        (left,) = plan.history.leftovers
        claim = CallClaim(call_id=left.call.call_id, settled_by=plan.response.id, response_id=first.id)
        await store.claim_call(ANONYMOUS, claim)
    await store.close()  # as a process that is killed leaves it
    engine, provider = engine_at(clock, DONE, store=await SqliteStore.open(path), server=server)
    async with engine:
        second = await engine.create(ask([decision(first)], previous_response_id=first.id))
    shown = only(second, McpCall)
    assert (shown.error_text or shown.output) == (OUTCOME_UNKNOWN if has_begun else "shipped")
    assert len(server.calls) == (not has_begun)
    check_pairs(provider)


# ---- one at a time ----


async def test_a_second_request_with_the_same_approval_waits_for_the_first() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def ship(each: ToolCall, context: ToolContext) -> str:
        begun.set()
        await go.wait()
        return "shipped"

    server = ToolServerFake("depot", ship=ship)
    engine, provider = engine_at(Clock(), SHIP, DONE, DONE, DONE, server=server)
    first = await engine.create(ask(tools=[GUARDED]))
    follow = ask([decision(first)], previous_response_id=first.id)
    runs = [await engine.start(follow)]
    await begun.wait()
    # One after the other: of two that arrive at the very same moment, one may be refused with `ApprovalInUse`.
    runs += [await engine.start(replace(follow, store=stored)) for stored in (True, False)]
    go.set()
    for run in runs:
        assert only(await run.result(), McpCall).output == "shipped"
    assert len(server.calls) == 1
    assert told(provider)[-1] == ("tool", "shipped")


async def test_two_that_were_planned_at_once_do_not_both_run() -> None:
    class Gate(MemoryStore):
        """Lets rows of follow-ups be begun when there are two."""

        both = asyncio.Barrier(2)

        async def begin(self, new: NewResponse) -> None:
            if new.response.previous_response_id is not None:
                await self.both.wait()
            await super().begin(new)

    server = depot()
    engine, _ = engine_at(Clock(), SHIP, DONE, server=server, store=Gate())
    first = await engine.create(ask(tools=[GUARDED]))
    follow_up = ask([decision(first)], previous_response_id=first.id)
    outcomes = await asyncio.gather(engine.create(follow_up), engine.create(follow_up), return_exceptions=True)
    assert {type(each) for each in outcomes} == {ApprovalInUse, Response}
    assert len(server.calls) == 1


@pytest.mark.proves("RULING-3")
async def test_a_call_that_an_unstored_follow_up_ran_is_answered_from_the_record() -> None:
    server = depot()
    engine, provider = engine_at(Clock(), SHIP, DONE, DONE, server=server)
    first = await engine.create(ask(tools=[GUARDED]))
    await engine.create(ask([decision(first)], previous_response_id=first.id, store=False))
    third = await engine.create(ask([decision(first)], previous_response_id=first.id))
    assert only(third, McpCall).output == "shipped"
    assert len(server.calls) == 1
    check_pairs(provider)


@pytest.mark.proves("RULING-3")
async def test_cancelling_a_follow_up_before_its_call_began_declines_the_call_for_good() -> None:
    server = depot()
    engine, _ = engine_at(Clock(), SHIP, DONE, server=server)
    first = await engine.create(ask(tools=[GUARDED]))
    run = await engine.start(ask([decision(first)], previous_response_id=first.id))
    ended = await engine.cancel(ANONYMOUS, run.response_id)
    assert (ended.status, kinds(ended), server.calls) == ("cancelled", [], [])
    second = await engine.create(ask([decision(first)], previous_response_id=first.id))
    assert only(second, McpCall).error_text == NOT_BEGUN
    assert server.calls == []


async def test_a_follow_up_of_a_cancelled_one_does_not_run_its_call_either() -> None:
    server = depot()
    engine, _ = engine_at(Clock(), SHIP, DONE, server=server)
    first = await engine.create(ask(tools=[GUARDED]))
    run = await engine.start(ask([decision(first)], previous_response_id=first.id))
    await engine.cancel(ANONYMOUS, run.response_id)
    third = await engine.create(ask("Go on.", previous_response_id=run.response_id))
    assert only(third, McpCall).error_text == NOT_BEGUN
    assert server.calls == []


async def test_a_response_that_could_not_be_recorded_asks_when_it_is() -> None:
    class Full(MemoryStore):
        is_full = True

        async def finish(self, *args: Any, **more: Any) -> None:
            if self.is_full:
                raise StoreFault("The disk is full.")
            await super().finish(*args, **more)

    store = Full()
    engine, _ = engine_at(Clock(), SHIP, store=store)
    response = await engine.create(ask(tools=[GUARDED]))
    assert response.status == "failed"
    store.is_full = False
    assert [each.response_id for each in (await engine.approvals()).approvals] == [response.id]


async def test_deleting_the_response_withdraws_the_question() -> None:
    engine, _ = engine_at(Clock(), SHIP)
    response = await engine.create(ask(tools=[GUARDED]))
    await engine.delete(ANONYMOUS, response.id)
    assert (await engine.approvals()).approvals == ()


async def test_a_tool_that_fails_after_approval_is_news_for_the_model() -> None:
    async def ship(each: ToolCall, context: ToolContext) -> str:
        raise RuntimeError("No truck.")

    engine, provider = engine_at(Clock(), SHIP, DONE, server=ToolServerFake("depot", ship=ship, lookup=replies("x")))
    first = await engine.create(ask(tools=[GUARDED]))
    second = await engine.create(ask([decision(first)], previous_response_id=first.id))
    assert (only(second, McpCall).status, second.status) == ("failed", "completed")
    assert told(provider)[-1] == ("tool", "No truck.")


# ---- conversations whose turns are not kept ----


async def test_what_a_turn_asks_for_that_only_its_conversation_keeps_is_on_record_too() -> None:
    server = depot()
    clock = Clock()
    engine, provider = engine_at(clock, SHIP, DONE, SHIP, server=server)
    held: dict[str, Any] = {
        "conversation": (await engine.conversations.create()).id,
        "tools": [GUARDED],
        "store": False,
    }
    first = await engine.create(ask(**held))
    assert [(each.id, each.status) for each in (await engine.approvals()).approvals] == [(asked(first).id, "pending")]
    second = await engine.create(ask([decision(first)], **held))
    assert only(second, McpCall).output == "shipped"
    assert (await engine.approval(asked(first).id)).status == "approved"
    third = await engine.create(ask("Once more.", **held))
    clock.now += 61
    with pytest.raises(AntwortError) as caught:
        await engine.create(ask([decision(third)], **held))
    assert caught.value.code == "approval_expired"
    assert len(server.calls) == 1
    check_pairs(provider)


async def test_a_call_that_only_a_conversation_keeps_is_not_begun_again_when_its_client_left() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(call: ToolCall, context: ToolContext) -> str:
        begun.set()
        await may_end.wait()
        return "shipped"

    server = ToolServerFake("depot", ship=slow)
    engine, _ = engine_at(Clock(), SHIP, DONE, server=server)
    held: dict[str, Any] = {
        "conversation": (await engine.conversations.create()).id,
        "tools": [GUARDED],
        "store": False,
    }
    first = await engine.create(ask(**held))
    run = await engine.start(ask([decision(first)], **held))
    await begun.wait()
    run.leave()
    await run.result()
    may_end.set()
    again = await engine.create(ask([decision(first)], **held))
    assert only(again, McpCall).error_text == OUTCOME_UNKNOWN
    assert len(server.calls) == 1
