"""Requests with an idempotency key whose runs have started a tool: whatever happens, it is not run twice."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from antwort.api.requests import CreateRequest
from antwort.engine.runs.subscription import Subscription
from antwort.errors import BackendUnavailable, ClientLeft, DeadlinePassed, RequestCancelled
from antwort.identity import ANONYMOUS
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say, tokens
from antwort.tools.base import ToolCall, ToolContext
from engine_kit import CLOCK, SERVER, ask, engine_of, function_calls, text_of
from keyed_kit import Ground, ground, read, settled
from serving import until

CHARGES = answer(call("charge", amount=5))
DONE = answer(say("It is paid."), usage=tokens(5, 7))


class Till(ToolServerFake):
    """A tool that must not be called twice. It answers when it is told to."""

    def __init__(self) -> None:
        super().__init__("depot", charge=self.charge)
        self.go = asyncio.Event()
        self.is_stopped = False

    async def charge(self, asked: ToolCall, context: ToolContext) -> str:
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.is_stopped = True
            raise
        return "charged"


def order(**fields: Any) -> CreateRequest:
    return ask(tools=[SERVER], **fields)


async def attach(at: Ground, till: Till, request: CreateRequest) -> Subscription:
    """A reader of a run whose tool is under way."""
    reader = await at.engine.start(request, ANONYMOUS, key="key")
    await until(lambda: len(till.calls) == 1)
    return reader


WAYS = pytest.mark.parametrize(
    "way", [{"stream": True}, {}, {"stream": True, "store": False}, {"store": False}], ids=str
)


@pytest.mark.proves("MISTAKE-30")
@WAYS
async def test_when_the_last_one_leaves_the_run_goes_on_and_the_retry_reads_along(way: dict[str, Any]) -> None:
    till, request = Till(), order(**way)
    async with ground(CHARGES, DONE, executors=[till]) as at:
        first = await attach(at, till, request)
        first.leave()
        with pytest.raises(ClientLeft):
            await first.result()
        again = await at.engine.start(request, ANONYMOUS, key="key")
        assert (again.response_id, again.is_replay) == (first.response_id, True)
        till.go.set()
        if request.stream:
            await read(again)
        assert text_of(await again.result()) == "It is paid."
        assert (len(till.calls), till.is_stopped, len(at.ended)) == (1, False, 1)


@pytest.mark.proves("MISTAKE-30")
@WAYS
async def test_a_retry_that_comes_when_it_has_ended_gets_what_nobody_has_read(way: dict[str, Any]) -> None:
    till, request = Till(), order(**way)
    async with ground(CHARGES, DONE, executors=[till]) as at:
        first = await attach(at, till, request)
        first.leave()
        till.go.set()
        await settled(at)
        again = await at.engine.start(request, ANONYMOUS, key="key")
        if request.stream:
            await read(again)
        response = await again.result()
        assert (response.id, response.status) == (first.response_id, "completed")
        assert len(till.calls) == 1


@pytest.mark.proves("MISTAKE-30")
async def test_it_goes_on_as_well_when_the_model_speaks_after_the_tool() -> None:
    till, go = Till(), asyncio.Event()
    till.go.set()
    async with ground(CHARGES, answer(go, say("It is paid.")), executors=[till]) as at:
        reader = await attach(at, till, order())
        await until(lambda: len(at.provider.requests) == 2)
        reader.leave()
        go.set()
        await settled(at)
        assert text_of(await at.engine.create(order(), idempotency_key="key")) == "It is paid."
        assert (len(till.calls), len(at.provider.requests)) == (1, 2)


async def test_it_goes_on_as_well_when_a_host_breaks_the_last_request_off() -> None:
    till = Till()
    async with ground(CHARGES, DONE, executors=[till]) as at:
        reader = await attach(at, till, order())
        reader.stop(RequestCancelled())
        with pytest.raises(ClientLeft):
            await reader.result()
        till.go.set()
        assert (await at.engine.create(order(), idempotency_key="key")).id == reader.response_id
        assert len(till.calls) == 1


async def test_without_a_key_one_who_leaves_stops_the_run_and_its_tool() -> None:
    till = Till()
    async with ground(CHARGES, executors=[till]) as at:
        run = await at.engine.start(order())
        await until(lambda: len(till.calls) == 1)
        run.leave()
        assert ((await run.result()).status, till.is_stopped) == ("cancelled", True)


# ---- what ends it all the same ----


async def test_its_deadline_ends_it_with_nobody_there() -> None:
    till = Till()
    async with ground(CHARGES, executors=[till]) as at:
        reader = await attach(at, till, order())
        reader.leave()
        [run] = at.engine.live_runs.values()
        run.stop(DeadlinePassed())  # as its timer does
        again = await at.engine.create(order(), idempotency_key="key")
        assert (again.id, again.status, till.is_stopped) == (reader.response_id, "incomplete", True)


async def test_cancelling_it_by_its_id_ends_it_and_the_key_stands_for_that() -> None:
    till = Till()
    async with ground(CHARGES, executors=[till]) as at:
        reader = await attach(at, till, order())
        reader.leave()
        await at.engine.cancel(ANONYMOUS, reader.response_id)
        again = await at.engine.create(order(), idempotency_key="key")
        assert (again.id, again.status, till.is_stopped) == (reader.response_id, "cancelled", True)


async def test_the_end_of_the_engine_ends_it_and_the_key_stands_for_the_response_that_failed() -> None:
    till, store = Till(), MemoryStore()
    async with ground(CHARGES, executors=[till], store=store) as at:
        reader = await attach(at, till, order())
        reader.leave()
    assert till.is_stopped
    async with ground(executors=[till], store=store) as at:
        again = await at.engine.create(order(), idempotency_key="key")
    assert (again.id, again.status) == (reader.response_id, "failed")
    assert again.error is not None
    assert again.error.code == "server_shutting_down"


async def test_the_end_of_the_engine_frees_the_key_of_a_run_that_has_started_no_tool() -> None:
    store = MemoryStore()
    async with ground(answer(say("Half"), asyncio.Event()), store=store, hold_back=0) as at:
        reader = await at.engine.start(ask(), ANONYMOUS, key="key")
        await until(lambda: at.provider.under_way == 1)
    assert reader.response.status == "failed"
    async with ground(DONE, store=store) as at:
        assert text_of(await at.engine.create(ask(), idempotency_key="key")) == "It is paid."


# ---- failures ----


@pytest.mark.parametrize("hold_back", [0, 2], ids=["told as a response", "within the time it is held back"])
async def test_a_failure_that_may_pass_keeps_the_key_when_a_tool_was_run(hold_back: float) -> None:
    till = Till()
    till.go.set()
    broken = answer(BackendUnavailable("The backend cannot be reached."))
    async with ground(CHARGES, broken, executors=[till], hold_back=hold_back) as at:
        first = await at.engine.create(order(), idempotency_key="key")
        assert first.status == "failed"
        assert await at.engine.create(order(), idempotency_key="key") == first
        assert len(till.calls) == 1


@pytest.mark.parametrize("is_late", [False, True], ids=["told at once", "told when all is decided"])
async def test_an_error_before_the_first_inference_keeps_the_key_when_a_tool_was_run_by_then(is_late: bool) -> None:
    """A turn called the client and a server: the server's call is run when the client's result is in."""
    till, store = Till(), MemoryStore()
    both, now = [SERVER, CLOCK], answer(call("charge", amount=5), call("clock"))
    paused = await engine_of(ScriptedProvider(now), till, store=store).create(ask(tools=both))
    asked = function_calls(paused)[0]
    result = {"type": "function_call_output", "call_id": asked.call_id, "output": "noon"}
    request = ask([result], previous_response_id=paused.id, tools=both)
    till.go.set()
    async with ground(answer(BackendUnavailable("No.")), executors=[till], store=store) as at:
        reader = await at.engine.start(request, ANONYMOUS, key="key")
        if is_late:
            await settled(at)
        with pytest.raises(BackendUnavailable):
            await reader.result()
        reader.leave()
        assert (await at.engine.create(request, idempotency_key="key")).status == "failed"
        assert len(till.calls) == 1


# ---- who accounts for it ----


async def test_one_of_those_who_read_along_accounts_for_it_and_the_others_do_not() -> None:
    till = Till()
    async with ground(CHARGES, DONE, executors=[till]) as at:
        first = await attach(at, till, order())
        second, third = [await at.engine.start(order(), ANONYMOUS, key="key") for _ in range(2)]
        first.leave()
        till.go.set()
        for reader in (second, third):
            await reader.result()
        late = await at.engine.start(order(), ANONYMOUS, key="key")
        accounts = [reader.summary() for reader in (first, second, third, late)]
        [told] = [ended for ended in accounts if ended is not None]
        assert accounts[0] is accounts[3] is None
        assert told.response.usage is not None
        assert told.response.usage.output_tokens == 7


async def test_one_that_nobody_reads_to_its_end_leaves_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    till = Till()
    async with ground(CHARGES, DONE, executors=[till]) as at:
        reader = await attach(at, till, order())
        reader.leave()
        assert reader.summary() is None
        till.go.set()
        with caplog.at_level(logging.INFO, "antwort.engine"):
            await settled(at)
    [record] = [record for record in caplog.records if "nobody reads" in record.getMessage()]
    fields = record.__dict__["fields"]
    assert (fields["response_id"], fields["output_tokens"], fields["turns"]) == (reader.response_id, 7, 2)


async def test_one_who_comes_back_accounts_for_it(caplog: pytest.LogCaptureFixture) -> None:
    till = Till()
    async with ground(CHARGES, DONE, executors=[till]) as at:
        first = await attach(at, till, order())
        first.leave()
        again = await at.engine.start(order(), ANONYMOUS, key="key")
        till.go.set()
        with caplog.at_level(logging.INFO, "antwort.engine"):
            await again.result()
            await settled(at)
        assert first.summary() is None
        assert again.summary() is not None
    assert "nobody reads" not in caplog.text
