"""Background responses seen from two engines on one record: read, cancelled, deleted and waited for from either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antwort.api.items import InputItem
from antwort.api.responses import Response
from antwort.engine.engine import Engine
from antwort.engine.settings import BackgroundSettings, EngineSettings
from antwort.errors import ConversationLocked, ResponseNotFound
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.base import Page
from antwort.storage.memory import MemoryStore
from antwort.storage.run_log import Traits
from antwort.testing import Answer, ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolCall, ToolContext, ToolExecutor
from conversation_kit import begun, words
from engine_kit import SERVER, ask, sent_messages, text_of
from run_log_kit import ForwardingLog
from serving import until

NONE = BackgroundSettings(at_once=0)
OTHER = Identity(owner="somebody else")


class KeptStore(MemoryStore):
    async def close(self) -> None:
        """The other engine may still need it."""


class Watched(ForwardingLog):
    """Counts how often it is asked whether a conversation is busy. What it holds is said to outlive its process."""

    traits = Traits(durability="system", many=False)
    asked = 0

    async def is_busy(self, identity: Identity, conversation_id: str) -> bool:
        self.asked += 1
        return await super().is_busy(identity, conversation_id)


@asynccontextmanager
async def replicas(
    *answers: Answer, executors: tuple[ToolExecutor, ...] = (), **settings: Any
) -> AsyncIterator[tuple[Engine, Engine, ScriptedProvider]]:
    """One that makes runs, and one that makes none; and what the first one's model is asked."""
    store = KeptStore()
    log, provider = Watched(store), ScriptedProvider(*answers)
    makes = Engine(provider, store=store, runs=log, executors=executors, settings=EngineSettings(**settings))
    asks = Engine(
        ScriptedProvider(answer(say("Said by the other"))),
        store=store,
        runs=log,
        executors=executors,
        settings=EngineSettings(background=NONE, **settings),
    )
    async with makes, asks:
        yield makes, asks, provider


async def items_in(engine: Engine, conversation: str) -> tuple[InputItem, ...]:
    return (await engine.conversations.items(conversation, Page(limit=1000, order="asc"))).items


async def ended(engine: Engine, response: Response) -> Response:
    async with await engine.follow(ANONYMOUS, response.id) as reader:
        async for _ in reader.events():
            pass
    return reader.response


async def test_what_one_has_queued_the_other_makes_and_both_show() -> None:
    hold = asyncio.Event()
    async with replicas(answer(say("Hello"), hold, say(" there"))) as (makes, asks, provider):
        queued = await asks.create(ask(background=True))
        await until(lambda: any(run.response.output for run in makes.live_runs.values()))
        assert asks.live == 0
        seen = [await engine.retrieve(ANONYMOUS, queued.id) for engine in (makes, asks)]
        assert [response.status for response in seen] == ["in_progress", "in_progress"]
        listed = [(await engine.list(ANONYMOUS, Page())).responses for engine in (makes, asks)]
        assert listed[0] == listed[1]
        hold.set()
        assert await ended(asks, queued) == await ended(makes, queued)
    assert len(provider.requests) == 1


async def test_a_cancel_at_the_other_reaches_the_model() -> None:
    async with replicas(answer(say("Hello"), asyncio.Event())) as (makes, asks, provider):
        queued = await asks.create(ask(background=True))
        await until(lambda: any(run.response.output for run in makes.live_runs.values()))
        cancelled = [await asks.cancel(ANONYMOUS, queued.id) for _ in range(2)]
        assert provider.under_way == 0
        assert [response.status for response in cancelled] == ["cancelled", "cancelled"]
        assert cancelled[0] == await makes.retrieve(ANONYMOUS, queued.id)


async def test_a_cancel_at_the_other_reaches_the_tool() -> None:
    begins, stops = asyncio.Event(), asyncio.Event()

    async def dig(call: ToolCall, context: ToolContext) -> str:
        begins.set()
        try:
            await asyncio.Event().wait()
        finally:
            stops.set()
        raise AssertionError

    async with replicas(answer(call("dig")), executors=(ToolServerFake("depot", dig=dig),)) as (_, asks, _provider):
        queued = await asks.create(ask(background=True, tools=[SERVER]))
        await begins.wait()
        assert (await asks.cancel(ANONYMOUS, queued.id)).status == "cancelled"
        assert stops.is_set()


async def test_one_that_runs_at_the_other_is_ended_and_deleted() -> None:
    async with replicas(answer(say("Hello"), asyncio.Event())) as (makes, asks, provider):
        queued = await asks.create(ask(background=True))
        await until(lambda: provider.under_way == 1)
        await asks.delete(ANONYMOUS, queued.id)
        await until(lambda: not makes.live_runs)
        assert provider.under_way == 0
        for engine in (makes, asks):
            with pytest.raises(ResponseNotFound):
                await engine.retrieve(ANONYMOUS, queued.id)


async def test_somebody_else_reads_and_stops_nothing() -> None:
    hold = asyncio.Event()
    async with replicas(answer(hold, say("Hello"))) as (makes, asks, provider):
        queued = await asks.create(ask(background=True))
        await until(lambda: provider.under_way == 1)
        for engine in (makes, asks):
            for act in (engine.retrieve, engine.cancel, engine.delete, engine.follow):
                with pytest.raises(ResponseNotFound):
                    await act(OTHER, queued.id)
        hold.set()
        assert (await ended(asks, queued)).status == "completed"


async def test_the_same_key_at_both_is_one_response() -> None:
    async with replicas(answer(say("Hello"))) as (makes, asks, provider):
        asked = [
            engine.create(ask(background=True), idempotency_key="one-and-the-same") for engine in (makes, asks) * 5
        ]
        responses = await asyncio.gather(*asked)
        assert len({response.id for response in responses}) == 1
        assert (await ended(asks, responses[0])).status == "completed"
    assert len(provider.requests) == 1


# ---- conversations ----


async def test_a_background_turn_waits_for_nobody_when_it_is_asked_for_and_for_its_turn_when_it_is_made() -> None:
    hold = asyncio.Event()
    async with replicas(answer(hold, say("One")), answer(say("Two"))) as (makes, _, provider):
        conversation = await begun(makes)
        foreground = asyncio.create_task(makes.create(ask("a", conversation=conversation)))
        await until(lambda: provider.under_way == 1)
        queued = await makes.create(ask("b", conversation=conversation, background=True))
        assert queued.status == "queued"
        hold.set()
        await foreground
        assert text_of(await ended(makes, queued)) == "Two"
        assert words(await items_in(makes, conversation)) == [
            "user: a",
            "assistant: One",
            "user: b",
            "assistant: Two",
        ]


async def test_background_turns_are_made_in_the_order_in_which_they_were_asked_for() -> None:
    answers = [answer(say(str(number))) for number in range(6)]
    async with replicas(*answers) as (makes, asks, provider):
        conversation = await begun(makes)
        queued = [
            await engine.create(ask(str(at), conversation=conversation, background=True))
            for at, engine in enumerate([makes, asks] * 3)
        ]
        for response in reversed(queued):
            assert (await ended(asks, response)).status == "completed"
    heard = [sent_messages(request)[-1][1] for request in provider.requests]
    assert heard == ["0", "1", "2", "3", "4", "5"]
    assert len(sent_messages(provider.requests[-1])) == 11


@pytest.mark.parametrize("where", ["here", "at the other"])
async def test_a_foreground_turn_waits_for_background_turns_before_it(where: str) -> None:
    hold = asyncio.Event()
    async with replicas(answer(hold, say("One")), answer(say("Two")), answer(say("Three"))) as (makes, asks, provider):
        engine = makes if where == "here" else asks
        conversation = await begun(makes)
        for text in "ab":
            await asks.create(ask(text, conversation=conversation, background=True))
        await until(lambda: provider.under_way == 1)
        foreground = asyncio.create_task(engine.create(ask("c", conversation=conversation)))
        log = engine.runs
        assert isinstance(log, Watched)
        await until(lambda: log.asked >= 3 or any(engine.conversation_locks._waiting.values()))
        assert len(provider.requests) == 1
        hold.set()
        response = await foreground
        heard = words(await items_in(makes, conversation))
    assert heard[:4] == ["user: a", "assistant: One", "user: b", "assistant: Two"]
    assert heard[4:] == ["user: c", f"assistant: {text_of(response)}"]


async def test_a_foreground_turn_whose_turn_does_not_come_in_time_is_refused_and_holds_nobody_up() -> None:
    hold = asyncio.Event()
    async with replicas(answer(hold, say("One")), answer(say("Two")), conversation_wait=0.05) as (
        makes,
        asks,
        provider,
    ):
        conversation = await begun(makes)
        first = await makes.create(ask("a", conversation=conversation, background=True))
        await until(lambda: provider.under_way == 1)
        for engine in (makes, asks):
            with pytest.raises(ConversationLocked):
                await engine.create(ask("b", conversation=conversation))
        hold.set()
        await ended(makes, first)
        assert text_of(await makes.create(ask("c", conversation=conversation))) == "Two"
        assert len(makes.conversation_locks) == 0


async def test_a_cancelled_background_turn_lets_the_next_one_in() -> None:
    async with replicas(answer(asyncio.Event()), answer(say("Two"))) as (makes, asks, provider):
        conversation = await begun(makes)
        first, second = [
            await asks.create(ask(text, conversation=conversation, background=True)) for text in ("a", "b")
        ]
        await until(lambda: provider.under_way == 1)
        assert (await asks.cancel(ANONYMOUS, first.id)).status == "cancelled"
        assert text_of(await ended(asks, second)) == "Two"
        assert words(await items_in(makes, conversation)) == ["user: b", "assistant: Two"]
