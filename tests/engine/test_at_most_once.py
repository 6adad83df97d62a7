"""Calls of a paused turn run at most once per stored response, and can be declined."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antwort import Engine, LocalExecutor, Toolset, tool
from antwort.api.items import FunctionCall, FunctionCallOutput, McpApprovalRequest, McpCall
from antwort.api.responses import Response
from antwort.api.wire import replace, to_plain
from antwort.errors import RateLimited, StoreFault
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.base import CallClaim, CallResult, ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.storage.sqlite import SqliteStore
from antwort.testing import ScriptedProvider, answer, call, say
from engine_kit import ask, sent_messages
from jumping_time import jumping_time

ASK = {"type": "function", "name": "ask"}
NO = {"type": "function", "name": "no"}
PAY_AND_ASK = answer(call("pay", amount=5), call("ask"))
DONE = answer(say("Done."))
DECLINED = "The call was not run: the client did not continue the turn."


class Till:
    """A tool that counts how often it was asked to pay, offered as a declared function or as a toolset's tool."""

    def __init__(self, kind: str, *, read_only: bool = False, idempotent: bool = False) -> None:
        self.paid: list[int] = []
        self.may_pay, self.begun = asyncio.Event(), asyncio.Event()
        self.may_pay.set()
        self.is_function = kind == "function"
        toolset = Toolset("till")
        if self.is_function:
            self.executor: Any = LocalExecutor(tool(read_only=read_only, idempotent=idempotent)(self._named()))
            self.offer: dict[str, Any] = {"type": "function", "name": "pay"}
        else:
            toolset.tool(read_only=read_only, idempotent=idempotent)(self._named())
            self.executor = toolset
            self.offer = {"type": "mcp", "server_label": "till", "require_approval": "never"}

    def _named(self) -> Callable[[int], Any]:
        async def pay(amount: int) -> str:
            """Pay an amount."""
            self.paid.append(amount)
            self.begun.set()
            await self.may_pay.wait()
            return f"paid {len(self.paid)}"

        return pay

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [self.offer, ASK]


@pytest.fixture(params=["function", "toolset"])
def till(request: pytest.FixtureRequest) -> Till:
    return Till(request.param)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> ResponseStore:
    return MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "antwort.db")


@asynccontextmanager
async def paused(
    till: Till, store: ResponseStore, *answers: Any, first: Any = PAY_AND_ASK, **fields: Any
) -> AsyncIterator[tuple[Engine, ScriptedProvider, Response]]:
    """An engine with a response that waits for its client, and the model's later answers."""
    model = ScriptedProvider(first, *answers)
    async with Engine(model, store=store, executors=[till.executor]) as engine:
        response = await engine.create(ask("Pay 5.", tools=till.tools, **fields))
        assert (response.status, till.paid) == ("requires_action", [])
        yield engine, model, response


def call_id_in(response: Response, name: str) -> str:
    """The id of the response's call of that tool."""
    found = next(item for item in response.output if isinstance(item, FunctionCall | McpCall) and item.name == name)
    assert isinstance(found.call_id, str)
    return found.call_id


def reply(response: Response, name: str = "ask") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id_in(response, name), "output": "yes"}


def results(response: Response) -> list[Any]:
    """What the calls that a response settled came to."""
    shown: list[Any] = []
    for item in response.output:
        if isinstance(item, FunctionCallOutput):
            shown.append(item.output)
        elif isinstance(item, McpCall):
            shown.append(item.error_text or item.output)
    return shown


def read_by(model: ScriptedProvider, at: int = -1) -> list[Any]:
    """The tool results that the model was shown, in order: that of `pay` comes first."""
    return [content for role, content in sent_messages(model.requests[at]) if role == "tool"]


# ---- once ----


@pytest.mark.proves("RULING-3", "MIXED-2")
async def test_a_call_of_a_paused_turn_runs_once_however_often_the_turn_is_continued(
    till: Till, store: ResponseStore
) -> None:
    async with paused(till, store, DONE, DONE, DONE) as (engine, model, first):
        for _ in range(3):
            response = await engine.create(ask([reply(first)], previous_response_id=first.id))
            assert response.status == "completed"
            assert read_by(model) == ["paid 1", "yes"]
    assert till.paid == [5]


@pytest.mark.proves("RULING-3")
async def test_follow_ups_at_the_same_moment_wait_for_the_one_that_runs_the_call(
    till: Till, store: ResponseStore
) -> None:
    till.may_pay.clear()
    async with paused(till, store, *[DONE] * 5) as (engine, model, first):
        asked = [
            asyncio.create_task(engine.create(ask([reply(first)], previous_response_id=first.id))) for _ in range(5)
        ]
        await till.begun.wait()
        till.may_pay.set()
        responses = await asyncio.gather(*asked)
        assert [results(each) for each in responses] == [["paid 1"]] * 5
        assert [read_by(model, at) for at in range(1, 6)] == [["paid 1", "yes"]] * 5
    assert till.paid == [5]


@pytest.mark.proves("RULING-3")
async def test_a_retry_after_a_failed_follow_up_reads_the_record(till: Till, store: ResponseStore) -> None:
    async with paused(till, store, answer(RateLimited("Slow down.")), DONE) as (engine, model, first):
        with pytest.raises(RateLimited):
            await engine.create(ask([reply(first)], previous_response_id=first.id))
        assert (await engine.create(ask([reply(first)], previous_response_id=first.id))).status == "completed"
        assert read_by(model) == ["paid 1", "yes"]
    assert till.paid == [5]


@pytest.mark.proves("RULING-3")
@pytest.mark.parametrize("stored", [True, False])
async def test_a_retry_in_a_conversation_reads_the_record(till: Till, store: ResponseStore, stored: bool) -> None:
    model = ScriptedProvider(PAY_AND_ASK, answer(RateLimited("Slow down.")), DONE)
    async with Engine(model, store=store, executors=[till.executor]) as engine:
        conversation = (await engine.conversations.create()).id
        fields: dict[str, Any] = {"conversation": conversation, "tools": till.tools, "store": stored}
        first = await engine.create(ask("Pay 5.", **fields))
        with pytest.raises(RateLimited):
            await engine.create(ask([reply(first)], **fields))
        await engine.create(ask([reply(first)], **fields))
        assert read_by(model) == ["paid 1", "yes"]
    assert till.paid == [5]


@pytest.mark.proves("RULING-3")
async def test_a_client_that_sends_the_whole_history_again_runs_nothing_twice(till: Till, store: ResponseStore) -> None:
    async with paused(till, store, answer(RateLimited("Slow down.")), DONE) as (engine, model, first):
        shown = [item for item in first.output if getattr(item, "name", "") in ("pay", "ask")]
        history = [{"role": "user", "content": "Pay 5."}, *map(to_plain, shown), reply(first)]
        with pytest.raises(RateLimited):
            await engine.create(ask(history, tools=till.tools))
        await engine.create(ask(history, tools=till.tools))
        assert read_by(model) == ["paid 1", "yes"]
    assert till.paid == [5]


@pytest.mark.proves("RULING-3")
async def test_an_unstored_follow_up_leaves_a_record_with_the_stored_response(till: Till, store: ResponseStore) -> None:
    async with paused(till, store, DONE, DONE) as (engine, model, first):
        await engine.create(ask([reply(first)], previous_response_id=first.id, store=False))
        await engine.create(ask([reply(first)], previous_response_id=first.id))
        assert read_by(model) == ["paid 1", "yes"]
    assert till.paid == [5]


@pytest.mark.proves("RULING-3")
async def test_a_call_that_the_client_answers_itself_is_not_run_by_another_branch(
    till: Till, store: ResponseStore
) -> None:
    async with paused(till, store, DONE, DONE) as (engine, model, first):
        own = {"type": "function_call_output", "call_id": call_id_in(first, "pay"), "output": "paid by hand"}
        await engine.create(ask([own, reply(first)], previous_response_id=first.id))
        assert read_by(model) == ["paid by hand", "yes"]
        await engine.create(ask([reply(first)], previous_response_id=first.id))
        assert read_by(model) == ["paid by hand", "yes"]
    assert till.paid == []


@pytest.mark.proves("RULING-3")
async def test_a_call_is_not_run_again_after_its_response_was_deleted_meanwhile(
    till: Till, store: ResponseStore
) -> None:
    till.may_pay.clear()
    twice = answer(call("pay", amount=5), call("pay", amount=6), call("ask"))
    async with paused(till, store, DONE, DONE, first=twice, parallel_tool_calls=False) as (engine, model, first):
        follow_up = ask([reply(first)], previous_response_id=first.id, store=False)
        runs = [await engine.start(follow_up), await engine.start(follow_up)]
        await till.begun.wait()
        await engine.delete(ANONYMOUS, first.id)
        till.may_pay.set()
        await asyncio.gather(*(run.result() for run in runs))
        assert "was deleted" in read_by(model)[1]
    assert till.paid == [5]


@pytest.mark.proves("RULING-3")
async def test_a_retry_does_not_wait_for_a_response_whose_end_could_not_be_recorded(till: Till) -> None:
    class Away(MemoryStore):
        is_away = False

        async def finish_call(self, *args: Any) -> None:
            self._check_there()
            await super().finish_call(*args)

        async def finish(self, *args: Any, **more: Any) -> None:
            self._check_there()
            await super().finish(*args, **more)

        def _check_there(self) -> None:
            if self.is_away:
                raise StoreFault("The database is away.")

    store = Away()
    async with paused(till, store, DONE) as (engine, model, first):
        store.is_away = True
        with pytest.raises(StoreFault):
            await engine.create(ask([reply(first)], previous_response_id=first.id))
        store.is_away = False
        await engine.create(ask([reply(first)], previous_response_id=first.id))
        assert "outcome is not known" in read_by(model)[0]
    assert till.paid == [5]


# ---- declined ----

_DECLINES: list[Any] = [
    pytest.param({"input": "Stop! Do not pay."}, id="only new messages"),
    pytest.param({"input": None, "tool_choice": "none"}, id="tool_choice none"),
    pytest.param(
        {"input": None, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [ASK]}},
        id="allowed_tools without the tool",
    ),
]


@pytest.mark.proves("RULING-3")
@pytest.mark.parametrize("fields", _DECLINES)
async def test_a_follow_up_declines_the_calls_for_good(
    till: Till, store: ResponseStore, fields: dict[str, Any]
) -> None:
    async with paused(till, store, DONE, DONE) as (engine, model, first):
        given = {**fields, "input": fields["input"] or [reply(first)]}
        second = await engine.create(ask(previous_response_id=first.id, tools=till.tools, **given))
        assert results(second) == [DECLINED]
        assert read_by(model)[0] == DECLINED
        await engine.create(ask([reply(first)], previous_response_id=first.id))
        assert read_by(model) == [DECLINED, "yes"]
    assert till.paid == []


@pytest.mark.proves("RULING-3")
async def test_a_declining_branch_reads_what_another_branch_has_run(till: Till, store: ResponseStore) -> None:
    async with paused(till, store, DONE, DONE) as (engine, model, first):
        await engine.create(ask([reply(first)], previous_response_id=first.id))
        await engine.create(ask("Stop! Do not pay.", previous_response_id=first.id))
        assert read_by(model)[0] == "paid 1"
    assert till.paid == [5]


@pytest.mark.proves("RULING-3")
async def test_the_tools_of_the_paused_response_hold_where_the_follow_up_names_none(
    till: Till, store: ResponseStore
) -> None:
    async with paused(till, store, DONE) as (engine, model, first):
        await engine.create(ask([reply(first)], previous_response_id=first.id, tools=[ASK]))
        assert read_by(model) == ["paid 1", "yes"]


@pytest.mark.proves("RULING-3")
async def test_with_some_of_the_results_the_rest_of_the_turn_stays_open(till: Till, store: ResponseStore) -> None:
    both = answer(call("pay", amount=5), call("ask"), call("no"))
    model = ScriptedProvider(both, DONE, DONE)
    async with Engine(model, store=store, executors=[till.executor]) as engine:
        first = await engine.create(ask("Pay 5.", tools=[*till.tools, NO]))
        second = await engine.create(ask([reply(first)], previous_response_id=first.id))
        assert "not been run yet" in read_by(model)[0]
        assert (results(second), till.paid) == ([], [])
        third = await engine.create(ask([reply(first, "no")], previous_response_id=second.id))
        assert results(third) == ["paid 1"]
    assert till.paid == [5]


@pytest.mark.proves("RULING-3")
@pytest.mark.parametrize("is_declined", [True, False])
async def test_the_rest_of_a_turn_stays_open_in_a_conversation_too(
    till: Till, store: ResponseStore, is_declined: bool
) -> None:
    both = answer(call("pay", amount=5), call("ask"), call("no"))
    model = ScriptedProvider(both, DONE, DONE, DONE)
    async with Engine(model, store=store, executors=[till.executor]) as engine:
        conversation = (await engine.conversations.create()).id
        fields: dict[str, Any] = {"conversation": conversation, "tools": [*till.tools, NO]}
        first = await engine.create(ask("Pay 5.", **fields))
        await engine.create(ask([reply(first)], **fields))
        assert "not been run yet" in read_by(model)[0]
        third = await engine.create(ask("Stop." if is_declined else [reply(first, "no")], **fields))
        expected = DECLINED if is_declined else "paid 1"
        assert results(third) == [expected]
        await engine.create(ask("Go on.", **fields))
        assert read_by(model)[0] == expected
    assert till.paid == ([] if is_declined else [5])


# ---- cancelled ----


@pytest.mark.proves("RULING-3", "RULING-7")
async def test_cancelling_a_paused_response_declines_its_calls_and_keeps_its_status(
    till: Till, store: ResponseStore
) -> None:
    async with paused(till, store, DONE) as (engine, model, first):
        assert await engine.cancel(ANONYMOUS, first.id) == first
        await engine.create(ask([reply(first)], previous_response_id=first.id))
        assert read_by(model) == ["The call was not run: the response was cancelled.", "yes"]
    assert till.paid == []


@pytest.mark.proves("RULING-7")
async def test_cancelling_a_paused_response_denies_what_waits_for_approval(store: ResponseStore) -> None:
    till = Till("toolset")
    till.offer["require_approval"] = "always"
    async with paused(till, store, DONE, first=answer(call("pay", amount=5))) as (engine, model, first):
        (asked,) = [item for item in first.output if isinstance(item, McpApprovalRequest)]
        assert await engine.cancel(ANONYMOUS, first.id) == first
        assert (await engine.approval(asked.id)).status == "denied"
        await engine.create(ask("Go on.", previous_response_id=first.id))
        assert read_by(model) == ["The user denied this call."]
    assert till.paid == []


@pytest.mark.proves("RULING-3")
async def test_cancelling_a_follow_up_declines_the_calls_that_it_has_not_begun(
    till: Till, store: ResponseStore
) -> None:
    till.may_pay.clear()
    twice = answer(call("pay", amount=5), call("pay", amount=6), call("ask"))
    async with paused(till, store, DONE, first=twice, parallel_tool_calls=False) as (engine, model, first):
        run = await engine.start(ask([reply(first)], previous_response_id=first.id))
        await till.begun.wait()
        await engine.cancel(ANONYMOUS, run.response_id)
        till.may_pay.set()
        await engine.create(ask([reply(first)], previous_response_id=first.id))
        assert "not known" in read_by(model)[0]
        assert read_by(model)[1] == "The call was not run: the response was stopped before it began."
    assert till.paid == [5]


@pytest.mark.proves("RULING-3")
async def test_a_follow_up_whose_client_left_leaves_what_it_has_not_begun_to_the_retry(
    till: Till, store: ResponseStore
) -> None:
    till.may_pay.clear()
    twice = answer(call("pay", amount=5), call("pay", amount=6), call("ask"))
    async with paused(till, store, DONE, first=twice, parallel_tool_calls=False) as (engine, model, first):
        run = await engine.start(ask([reply(first)], previous_response_id=first.id))
        await till.begun.wait()
        run.leave()
        await run.result()
        till.may_pay.set()
        await engine.create(ask([reply(first)], previous_response_id=first.id))
        assert "not known" in read_by(model)[0]
        assert read_by(model)[1] == "paid 2"
    assert till.paid == [5, 6]


# ---- lost ----


@pytest.mark.proves("RULING-3")
@pytest.mark.parametrize("kind", ["function", "toolset"])
async def test_a_call_whose_process_died_is_not_run_again(kind: str, store: ResponseStore) -> None:
    till = Till(kind)
    async with paused(till, store, DONE) as (engine, model, first):
        claim = CallClaim(call_id=call_id_in(first, "pay"), settled_by="resp_dead", response_id=first.id)
        await store.claim_call(ANONYMOUS, claim)
        await engine.create(ask([reply(first)], previous_response_id=first.id))
        assert "outcome is not known" in read_by(model)[0]
    assert till.paid == []


@pytest.mark.proves("RULING-3")
@pytest.mark.parametrize("is_read_only", [True, False])
@pytest.mark.parametrize("kind", ["function", "toolset"])
async def test_a_harmless_call_whose_process_died_is_run_again(
    kind: str, is_read_only: bool, store: ResponseStore
) -> None:
    till = Till(kind, read_only=is_read_only, idempotent=not is_read_only)
    async with paused(till, store, DONE, DONE) as (engine, model, first):
        claim = CallClaim(call_id=call_id_in(first, "pay"), settled_by="resp_dead", response_id=first.id)
        await store.claim_call(ANONYMOUS, claim)
        for _ in range(2):
            await engine.create(ask([reply(first)], previous_response_id=first.id))
            assert read_by(model)[0] == "paid 1"
    assert till.paid == [5]


class _Overtaken(MemoryStore):
    """Another follow-up takes the call over from a dead one, just after this one has seen that it is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.claim: CallClaim | None = None

    async def get(self, identity: Identity, response_id: str) -> Response | None:
        response = await super().get(identity, response_id)
        if response_id == "resp_dead" and self.claim is not None:
            await self.claim_call(identity, replace(self.claim, settled_by="resp_other", instead_of="resp_dead"))
        elif response_id == "resp_other" and self.claim is not None:
            await self.finish_call(identity, self.claim.call_id, "resp_other", CallResult("paid by the other"))
            response = await super().get(identity, self.claim.response_id or "")
            assert response is not None
            response = replace(response, status="in_progress")
        return response


@pytest.mark.proves("RULING-3")
@pytest.mark.parametrize("is_read_only", [True, False])
async def test_a_call_that_another_follow_up_takes_over_from_a_dead_one_is_left_to_it(is_read_only: bool) -> None:
    till, store = Till("function", read_only=is_read_only), _Overtaken()
    async with paused(till, store, DONE) as (engine, model, first):
        store.claim = CallClaim(call_id=call_id_in(first, "pay"), settled_by="resp_dead", response_id=first.id)
        await store.claim_call(ANONYMOUS, store.claim)
        await engine.create(ask([reply(first)], previous_response_id=first.id))
        assert read_by(model)[0] == "paid by the other"
    assert till.paid == []


# ---- turns of a stored run ----


class _Reached(asyncio.Event):
    """A part of an answer that never comes, and says that the model waits for it."""

    def __init__(self, asked: asyncio.Event) -> None:
        super().__init__()
        self._asked = asked

    async def wait(self) -> Any:
        self._asked.set()
        return await super().wait()


@pytest.mark.proves("RULING-15")
@pytest.mark.parametrize("stream", [True, False])
async def test_finished_turns_survive_the_process_and_a_follow_up_tells_the_model(
    till: Till, store: ResponseStore, stream: bool
) -> None:
    turns: Sequence[Any] = [answer(call("pay", amount=amount)) for amount in (1, 2)]
    asked = asyncio.Event()
    model = ScriptedProvider(*turns, answer(_Reached(asked)), DONE)
    engine = Engine(model, store=store, executors=[till.executor])
    run = await engine.start(ask("Pay.", tools=[till.offer], stream=stream))
    await asked.wait()
    assert await store.fail_running("The server was stopped.") == 1  # what the next process does when it starts
    async with Engine(model, store=store, executors=[till.executor]) as other:
        failed = await other.retrieve(ANONYMOUS, run.response_id)
        assert (failed.status, results(failed)) == ("failed", ["paid 1", "paid 2"])
        await other.create(ask("Go on.", previous_response_id=failed.id))
        assert read_by(model) == ["paid 1", "paid 2"]
        engine.live_runs[run.response_id].abort()
        await run.wait()
    assert till.paid == [1, 2]


@pytest.mark.proves("RULING-15")
async def test_the_model_is_not_asked_again_when_another_process_has_ended_the_response(till: Till) -> None:
    store = MemoryStore()
    till.may_pay.clear()
    model = ScriptedProvider(answer(call("pay", amount=1)), DONE)
    async with Engine(model, store=store, executors=[till.executor]) as engine:
        run = await engine.start(ask("Pay.", tools=[till.offer]))
        await till.begun.wait()
        await store.fail_running("The server was stopped.")
        till.may_pay.set()
        assert (await run.result()).status == "failed"
    assert len(model.requests) == 1


@pytest.mark.proves("RULING-15")
@pytest.mark.parametrize(("faults", "status"), [(1, "completed"), (100, "failed")])
@jumping_time
async def test_a_turn_that_cannot_be_recorded_is_tried_again_before_the_run_fails(
    till: Till, faults: int, status: str
) -> None:
    class Away(MemoryStore):
        faults_left = faults

        async def record_turn(self, *args: Any, **more: Any) -> None:
            if self.faults_left:
                self.faults_left -= 1
                raise StoreFault("The database is away.")
            await super().record_turn(*args, **more)

    model = ScriptedProvider(answer(call("pay", amount=1)), DONE)
    async with Engine(model, store=Away(), executors=[till.executor]) as engine:
        response = await engine.create(ask("Pay.", tools=[till.offer]))
    assert (response.status, len(model.requests)) == (status, 2 if status == "completed" else 1)
