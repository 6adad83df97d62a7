"""Turns of one conversation that come at once: each hears all before it, and none is held up by one that came to
nothing.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from antwort.api.events import TERMINAL, OutputTextDelta
from antwort.api.tools import McpTool
from antwort.engine.engine import Engine
from antwort.engine.runs.subscription import Subscription
from antwort.errors import (
    AntwortError,
    BackendUnavailable,
    ConversationLocked,
    ConversationNotFound,
    ShuttingDown,
    StoreFault,
)
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.base import NewResponse
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, say
from antwort.tools.base import ToolDefinition
from conversation_kit import begun, said, words
from engine_kit import SERVER, ask, engine_of, sent_messages, stream, text_of
from serving import until


def is_free(engine: Engine) -> bool:
    return len(engine.conversation_locks) == 0


async def waiting(engine: Engine, **fields: Any) -> asyncio.Task[Subscription]:
    """A request that has come to the end of the queue, and waits there."""
    task = asyncio.create_task(engine.start(ask(**fields)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_a_turn_waits_for_the_one_before_it_and_hears_it() -> None:
    go, store = asyncio.Event(), MemoryStore()
    provider = ScriptedProvider(answer(say("One"), go), answer(say("Two")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine)
    first = await engine.start(ask("a", conversation=conversation))
    second = await waiting(engine, input="b", conversation=conversation)
    go.set()
    await (await second).result()
    assert first.response.status == "completed"
    assert sent_messages(provider.requests[1]) == [("user", "a"), ("assistant", "One"), ("user", "b")]
    assert words(await said(store, conversation)) == ["user: a", "assistant: One", "user: b", "assistant: Two"]
    assert is_free(engine)


async def test_turns_of_other_conversations_and_other_requests_do_not_wait() -> None:
    go = asyncio.Event()
    engine = engine_of(ScriptedProvider(answer(say("One"), go), answer(say("Two")), answer(say("Three"))))
    one, other = await begun(engine), await begun(engine)
    first = await engine.start(ask("a", conversation=one))
    await until(lambda: engine.live == 1)
    assert text_of(await engine.create(ask("b", conversation=other))) == "Two"
    assert text_of(await engine.create(ask("c"))) == "Three"
    go.set()
    await first.result()


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_who_is_told_the_end_of_a_turn_finds_it_in_the_conversation_and_the_place_free(is_stored: bool) -> None:
    go, store = asyncio.Event(), MemoryStore()
    engine = engine_of(ScriptedProvider(answer(say("One"), go)), store=store)
    conversation = await begun(engine)
    events = engine.respond(ask("a", conversation=conversation, store=is_stored))
    async with aclosing(events):
        while not isinstance(await anext(events), OutputTextDelta):
            pass
        assert not is_free(engine)
        assert await said(store, conversation) == ()
        go.set()
        while not isinstance(await anext(events), TERMINAL):
            pass
        assert is_free(engine)
        assert words(await said(store, conversation)) == ["user: a", "assistant: One"]


async def test_a_turn_that_does_not_come_in_time_is_refused() -> None:
    go = asyncio.Event()
    engine = engine_of(ScriptedProvider(answer(say("One"), go), answer(say("Three"))), conversation_wait=0)
    conversation = await begun(engine)
    first = await engine.start(ask("a", conversation=conversation))
    with pytest.raises(ConversationLocked):
        await engine.create(ask("b", conversation=conversation))
    go.set()
    await first.result()
    assert text_of(await engine.create(ask("b", conversation=conversation))) == "Three"


@pytest.mark.parametrize(("wait", "deadline", "param"), [(60, 0.01, "deadline"), (0, 5, "conversation")])
async def test_a_turn_whose_own_time_is_over_first_is_refused_for_that(
    wait: float, deadline: float, param: str
) -> None:
    go = asyncio.Event()
    engine = engine_of(ScriptedProvider(answer(say("One"), go)), conversation_wait=wait)
    conversation = await begun(engine)
    first = await engine.start(ask("a", conversation=conversation))
    with pytest.raises(ConversationLocked) as caught:
        await engine.create(ask("b", conversation=conversation, deadline=deadline))
    assert caught.value.param == param
    assert ("0.01 s" in str(caught.value)) is (param == "deadline")
    go.set()
    await first.result()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True, "store": False}, "background"),
        ({"model": "other"}, "model"),
        ({"tools": [{"type": "mcp", "server_label": "nobody"}]}, "tools[0].server_label"),
    ],
)
async def test_what_is_wrong_with_a_request_by_itself_is_told_before_its_turn_comes(
    fields: dict[str, Any], param: str
) -> None:
    go, identity = asyncio.Event(), Identity(models=("scripted",))
    engine = engine_of(ScriptedProvider(answer(say("One"), go)))
    conversation = await begun(engine, identity=identity)
    first = await engine.start(ask("a", conversation=conversation), identity)
    with pytest.raises(AntwortError) as caught:
        await engine.start(ask("b", conversation=conversation, **fields), identity)
    assert caught.value.param == param
    assert not is_free(engine)
    go.set()
    await first.result()
    assert is_free(engine)


class SlowServer(ToolServerFake):
    """Takes its time to say which tools it has."""

    def __init__(self) -> None:
        super().__init__("depot")
        self.is_asked, self.go = asyncio.Event(), asyncio.Event()

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        self.is_asked.set()
        await self.go.wait()
        return await super().discover(declared, identity)


async def test_a_turn_that_asks_for_tools_first_keeps_its_place() -> None:
    server, store = SlowServer(), MemoryStore()
    engine = engine_of(ScriptedProvider(answer(say("One")), answer(say("Two"))), server, store=store)
    conversation = await begun(engine)
    slow = asyncio.create_task(engine.create(ask("a", conversation=conversation, tools=[SERVER])))
    await server.is_asked.wait()
    fast = asyncio.create_task(engine.create(ask("b", conversation=conversation)))
    for _ in range(5):
        await asyncio.sleep(0)
    server.go.set()
    await asyncio.gather(slow, fast)
    told = [line for line in words(await said(store, conversation)) if line.startswith("user")]
    assert told == ["user: a", "user: b"]


# ---- turns that come to nothing ----


async def test_a_turn_that_cannot_be_planned_holds_nobody_up() -> None:
    engine = engine_of(ScriptedProvider(answer(say("One"))))
    conversation = await begun(engine)
    unknown = [{"type": "function_call_output", "call_id": "call_x", "output": "1"}]
    results = await asyncio.gather(
        engine.create(ask(unknown, conversation=conversation)),
        engine.create(ask("b", conversation=conversation)),
        return_exceptions=True,
    )
    assert isinstance(results[0], Exception)
    assert not isinstance(results[1], BaseException)
    assert is_free(engine)


async def test_a_turn_whose_inference_fails_holds_nobody_up() -> None:
    store = MemoryStore()
    provider = ScriptedProvider(answer(BackendUnavailable("Not now.")), answer(say("Two")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine)
    turns = (engine.create(ask(text, conversation=conversation)) for text in "ab")
    failed, second = await asyncio.gather(*turns, return_exceptions=True)
    assert isinstance(failed, BackendUnavailable)
    assert not isinstance(second, BaseException)
    assert words(await said(store, conversation)) == ["user: b", "assistant: Two"]


class Refusing(MemoryStore):
    """Takes the first row when it is told to, or not at all."""

    def __init__(self, fault: Exception | None) -> None:
        super().__init__()
        self.is_asked, self.go, self._fault = asyncio.Event(), asyncio.Event(), fault
        self._is_first = True

    async def begin(self, new: NewResponse) -> None:
        if self._is_first:
            self._is_first = False
            self.is_asked.set()
            if self._fault is not None:
                raise self._fault
            await self.go.wait()
        await super().begin(new)


async def test_a_turn_that_cannot_be_put_on_record_holds_nobody_up() -> None:
    engine = engine_of(ScriptedProvider(answer(say("Two"))), store=Refusing(StoreFault("The disk is full.")))
    conversation = await begun(engine)
    turns = (engine.create(ask(text, conversation=conversation)) for text in "ab")
    failed, second = await asyncio.gather(*turns, return_exceptions=True)
    assert isinstance(failed, StoreFault)
    assert not isinstance(second, BaseException)
    assert is_free(engine)


async def test_a_request_that_is_broken_off_while_its_row_is_written_holds_nobody_up() -> None:
    store = Refusing(None)
    async with engine_of(ScriptedProvider(answer(say("Two"))), store=store) as engine:
        conversation = await begun(engine)
        first = asyncio.create_task(engine.create(ask("a", conversation=conversation)))
        await store.is_asked.wait()
        second = asyncio.create_task(engine.create(ask("b", conversation=conversation)))
        first.cancel()
        await second
        assert words(await said(store, conversation)) == ["user: b", "assistant: Two"]
        assert is_free(engine)


@pytest.mark.parametrize("way", ["released", "forgotten"])
async def test_a_plan_that_is_not_launched_holds_nobody_up(way: str) -> None:
    engine = engine_of(ScriptedProvider(answer(say("Two"))))
    conversation = await begun(engine)
    plan = await engine.plan(ask("a", conversation=conversation))
    second = await waiting(engine, input="b", conversation=conversation)
    if way == "released":
        plan.release()
    del plan
    gc.collect()
    await (await asyncio.wait_for(second, 5)).result()
    assert is_free(engine)


async def test_a_client_that_leaves_the_queue_gives_up_its_place_there() -> None:
    go, store = asyncio.Event(), MemoryStore()
    engine = engine_of(ScriptedProvider(answer(say("One"), go), answer(say("Three"))), store=store)
    conversation = await begun(engine)
    first = await engine.start(ask("a", conversation=conversation))
    second = await waiting(engine, input="b", conversation=conversation)
    third = await waiting(engine, input="c", conversation=conversation)
    second.cancel()
    go.set()
    await first.result()
    await (await third).result()
    assert words(await said(store, conversation)) == ["user: a", "assistant: One", "user: c", "assistant: Three"]
    assert is_free(engine)


async def test_a_client_that_leaves_its_turn_lets_the_next_begin() -> None:
    store = MemoryStore()
    engine = engine_of(ScriptedProvider(answer(say("One"), asyncio.Event()), answer(say("Two"))), store=store)
    conversation = await begun(engine)
    first = await engine.start(ask("a", conversation=conversation, stream=True))
    second = await waiting(engine, input="b", conversation=conversation)
    first.leave()
    await (await second).result()
    assert words(await said(store, conversation)) == ["user: b", "assistant: Two"]


async def test_a_conversation_that_is_not_there_leaves_nothing_behind() -> None:
    engine = engine_of(ScriptedProvider())
    turns = (engine.create(ask("a", conversation="conv_none")) for _ in range(3))
    results = await asyncio.gather(*turns, return_exceptions=True)
    assert all(isinstance(result, ConversationNotFound) for result in results)
    assert is_free(engine)


async def test_when_the_engine_closes_the_turn_under_way_is_ended_and_those_behind_it_are_told() -> None:
    engine = engine_of(ScriptedProvider(answer(say("One"), asyncio.Event())))
    conversation = await begun(engine)
    first = await engine.start(ask("a", conversation=conversation))
    await first.answered()
    behind = [await waiting(engine, input="b", conversation=conversation) for _ in range(2)]
    await engine.close()
    results = await asyncio.gather(*behind, return_exceptions=True)
    assert [type(result) for result in results] == [ShuttingDown, ShuttingDown]
    assert first.response.status == "failed"
    assert is_free(engine)


async def test_while_a_drain_waits_for_the_turn_under_way_those_behind_it_know_already() -> None:
    go = asyncio.Event()
    engine = engine_of(ScriptedProvider(answer(say("One"), go)))
    conversation = await begun(engine)
    first = await engine.start(ask("a", conversation=conversation))
    behind = await waiting(engine, input="b", conversation=conversation)
    draining = asyncio.create_task(engine.drain(60))
    with pytest.raises(ShuttingDown):
        await behind
    go.set()
    await draining
    assert first.response.status == "completed"


# ---- with a key ----


async def test_the_repeat_of_a_turn_that_has_ended_does_not_wait_for_another() -> None:
    go = asyncio.Event()
    async with engine_of(ScriptedProvider(answer(say("One")), answer(say("Two"), go))) as engine:
        conversation = await begun(engine)
        keyed = ask("a", conversation=conversation)
        first = await engine.create(keyed, idempotency_key="key")
        second = await engine.start(ask("b", conversation=conversation))
        assert await engine.create(keyed, idempotency_key="key") == first
        assert second.response.status == "in_progress"
        go.set()
        await second.result()


async def test_the_same_turn_sent_twice_with_a_key_is_taken_once() -> None:
    go, store = asyncio.Event(), MemoryStore()
    async with engine_of(ScriptedProvider(answer(say("One"), go), answer(say("Two"))), store=store) as engine:
        conversation = await begun(engine)
        first = await engine.start(ask("a", conversation=conversation))
        keyed = ask("b", conversation=conversation)
        both = [asyncio.create_task(engine.create(keyed, idempotency_key="key")) for _ in range(2)]
        await asyncio.sleep(0)
        go.set()
        await first.result()
        one, other = await asyncio.gather(*both)
        assert one == other
        assert words(await said(store, conversation)) == ["user: a", "assistant: One", "user: b", "assistant: Two"]


async def test_a_turn_with_a_key_that_everybody_leaves_gives_up_its_place_in_the_queue() -> None:
    go, store = asyncio.Event(), MemoryStore()
    async with engine_of(ScriptedProvider(answer(say("One"), go), answer(say("Three"))), store=store) as engine:
        conversation = await begun(engine)
        first = await engine.start(ask("a", conversation=conversation))
        keyed = asyncio.create_task(engine.create(ask("b", conversation=conversation), idempotency_key="key"))
        await until(lambda: len(next(iter(engine.conversation_locks._waiting.values()))) == 1)
        keyed.cancel()
        third = asyncio.create_task(engine.create(ask("c", conversation=conversation)))
        await asyncio.wait([keyed])
        go.set()
        await first.result()
        await third
        assert words(await said(store, conversation)) == ["user: a", "assistant: One", "user: c", "assistant: Three"]


async def test_a_turn_with_a_key_that_was_refused_in_the_queue_is_a_new_try_the_next_time() -> None:
    go = asyncio.Event()
    provider = ScriptedProvider(answer(say("One"), go), answer(say("Two")))
    async with engine_of(provider, conversation_wait=0) as engine:
        conversation = await begun(engine)
        first = await engine.start(ask("a", conversation=conversation))
        keyed = ask("b", conversation=conversation)
        with pytest.raises(ConversationLocked):
            await engine.create(keyed, idempotency_key="key")
        go.set()
        await first.result()
        assert text_of(await engine.create(keyed, idempotency_key="key")) == "Two"


async def test_a_streamed_repeat_of_a_turn_names_the_conversation() -> None:
    async with engine_of(ScriptedProvider(answer(say("One")))) as engine:
        conversation = await begun(engine)
        keyed = ask("a", conversation=conversation)
        first = await engine.create(keyed, idempotency_key="key")
        events = [event async for event in engine.respond(keyed, idempotency_key="key")]
        assert isinstance(last := events[-1], TERMINAL)
        assert last.response == first
        assert (await engine.retrieve(ANONYMOUS, first.id)).conversation == first.conversation


async def test_streamed_turns_that_come_at_once_follow_each_other() -> None:
    store = MemoryStore()
    engine = engine_of(ScriptedProvider(*(answer(say(f"{n}")) for n in range(8))), store=store)
    conversation = await begun(engine)
    await asyncio.gather(*(stream(engine, ask(f"q{n}", conversation=conversation)) for n in range(8)))
    told = words(await said(store, conversation))
    assert told == [line for n in range(8) for line in (f"user: q{n}", f"assistant: {n}")]
