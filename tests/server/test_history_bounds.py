"""Histories that are too large: what a client is told, what the model reads instead, and how many are held at once."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.api.items import Message
from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.identity import ANONYMOUS
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, answer, call, say
from engine_kit import WEATHER, sent_messages
from jumping_time import jumping_time
from serving import RESPONSES, Serving, serving, until
from socket_kit import connected

CONVERSATIONS = "/v1/conversations"
TEXT = "x" * 30_000
LIMIT = 100_000
LARGE = "y" * 1_500_000


def made(*answers: Answer, store: MemoryStore | None = None, **limits: Any) -> tuple[Engine, ScriptedProvider]:
    provider = ScriptedProvider(*answers)
    settings = EngineSettings(limits=Limits(**{"history_bytes": LIMIT, **limits}))
    return Engine(provider, store=store or MemoryStore(), settings=settings), provider


async def told(server: Serving, text: str, after: str | None = None, **fields: Any) -> str:
    """The id of a response to the text."""
    body = {"model": "scripted", "input": text, "previous_response_id": after, **fields}
    reply = await server.ask("POST", RESPONSES, body)
    assert reply.status == 200, reply.body
    identifier: str = reply.json()["id"]
    return identifier


async def told_chain(server: Serving, turns: int) -> str:
    last = None
    for at in range(turns):
        last = await told(server, f"turn {at} {TEXT}", last)
    assert last is not None
    return last


@pytest.mark.parametrize("path", ["", "/input_tokens", "/compact"])
async def test_a_chain_that_is_too_large_is_a_400_that_says_what_to_do(path: str) -> None:
    engine, provider = made(*[answer(say("Yes."))] * 4)
    async with serving(engine) as server:
        last = await told_chain(server, 4)
        body = {"model": "scripted", "input": "And?", "previous_response_id": last}
        reply = await server.ask("POST", f"{RESPONSES}{path}", body)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert reply.error["param"] == "previous_response_id"
    assert "bytes, and this server reads 100,000 at most (limits.history_bytes)" in reply.error["message"]
    assert "'truncation': 'auto'" in reply.error["message"]
    assert "Compact it" in reply.error["message"]
    assert len(provider.requests) == 4


async def test_a_conversation_that_is_too_large_is_the_same_400() -> None:
    engine, provider = made(answer(say("Yes.")))
    items = [{"role": "user", "content": f"item {at} {TEXT}"} for at in range(4)]
    async with serving(engine) as server:
        conversation = (await server.ask("POST", CONVERSATIONS, {"items": items})).json()["id"]
        body = {"model": "scripted", "input": "And?", "conversation": conversation}
        refused = await server.ask("POST", RESPONSES, body)
        assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
        assert refused.error["param"] == "conversation"
        reply = await server.ask("POST", RESPONSES, {**body, "truncation": "auto"})
        assert reply.status == 200
    ((_, first), *rest) = sent_messages(provider.requests[-1])
    assert first.startswith("[Left out here, as there is too much of it: the oldest turns of the conversation]")
    assert first.endswith(f"item 1 {TEXT}")
    assert [content[:6] for _, content in rest] == ["item 2", "item 3", "And?"]


async def test_with_truncation_the_newest_turns_of_a_chain_are_read() -> None:
    engine, provider = made(*[answer(say("Yes."))] * 5, store=(store := MemoryStore()))
    async with serving(engine) as server:
        last = await told_chain(server, 4)
        again = await told(server, "And?", last, truncation="auto")
        chain = await store.chain(ANONYMOUS, again)
    ((_, first), *rest) = sent_messages(provider.requests[-1])
    assert first.startswith("[Left out here")
    assert first.endswith(f"turn 1 {TEXT}")
    assert [content[:6] for _, content in rest] == ["Yes.", "turn 2", "Yes.", "turn 3", "Yes.", "And?"]
    assert len(chain) == 5  # it is all on record


async def test_no_result_is_left_without_its_call() -> None:
    engine, provider = made(answer(call("weather", city="Oslo")), answer(say("Rain.")), answer(say("Yes.")))
    async with serving(engine) as server:
        asked = {"model": "scripted", "input": 2 * TEXT, "tools": [WEATHER]}
        first = (await server.ask("POST", RESPONSES, asked)).json()
        [pending] = first["output"]
        result = {"type": "function_call_output", "call_id": pending["call_id"], "output": TEXT + TEXT[:15_000]}
        second = {"model": "scripted", "input": [result], "previous_response_id": first["id"]}
        last = (await server.ask("POST", RESPONSES, second)).json()["id"]
        await told(server, "And?", last, truncation="auto")
    assert [role for role, _ in sent_messages(provider.requests[-2])] == ["user", "assistant", "tool"]
    assert [(role, content[-5:]) for role, content in sent_messages(provider.requests[-1])] == [
        ("user", "tion]"),
        ("assistant", "Rain."),
        ("user", "And?"),
    ]


async def test_a_last_turn_that_is_too_large_by_itself_is_refused_with_truncation_too() -> None:
    engine, _ = made(answer(say("Yes.")))
    async with serving(engine) as server:
        last = await told(server, 4 * TEXT)
        body = {"model": "scripted", "input": "And?", "previous_response_id": last, "truncation": "auto"}
        reply = await server.ask("POST", RESPONSES, body)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert reply.error["message"].endswith("Its last turn is too large by itself.")


async def test_what_is_referred_to_counts_as_often_as_it_is_referred_to() -> None:
    engine, provider = made(answer(say("Yes.")), answer(say("Yes.")))
    async with serving(engine) as server:
        asked = {"model": "scripted", "input": [{"role": "user", "content": TEXT, "id": "msg_long"}]}
        await server.ask("POST", RESPONSES, asked)
        reference = {"type": "item_reference", "id": "msg_long"}
        reply = await server.ask("POST", RESPONSES, {"model": "scripted", "input": [reference] * 4})
        assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "context_length_exceeded", "input")
        assert (await server.ask("POST", RESPONSES, {"model": "scripted", "input": [reference] * 3})).status == 200
    assert len(provider.requests) == 2


async def test_what_a_websocket_remembers_is_held_to_the_same_bound() -> None:
    engine, _ = made(*[answer(say("Yes."))] * 5)
    async with serving(engine) as server, connected(server.port) as socket:
        last = None
        for _ in range(4):
            last = (await socket.ask(input=TEXT, store=False, previous_response_id=last)).id
        await socket.create(input="And?", store=False, previous_response_id=last)
        error = await socket.error()
        assert (error["status"], error["code"]) == (400, "context_length_exceeded")


async def test_of_what_a_websocket_remembers_declared_tools_outlast_a_cut() -> None:
    engine, provider = made(*[answer(say("Yes."))] * 5)
    declaring = {"type": "additional_tools", "role": "developer", "tools": [WEATHER]}
    async with serving(engine) as server, connected(server.port) as socket:
        last = (await socket.ask(input=[declaring, {"role": "user", "content": TEXT}], store=False)).id
        for _ in range(4):
            last = (await socket.ask(input=TEXT, store=False, previous_response_id=last, truncation="auto")).id
    assert len(sent_messages(provider.requests[-1])) == 7
    assert [tool.function.name for tool in provider.requests[-1].tools or ()] == ["weather"]


async def test_of_what_a_websocket_remembers_nothing_counts_before_a_compaction() -> None:
    engine, provider = made(*[answer(say("Yes."))] * 5)
    async with serving(engine) as server, connected(server.port) as socket:
        last = (await socket.ask(input=2 * TEXT, store=False)).id
        for given in ([{"type": "compaction_trigger"}], 2 * TEXT, "And?"):
            last = (await socket.ask(input=given, store=False, previous_response_id=last)).id
    assert provider.requests[-1].messages[-1].content == "And?"


async def test_large_histories_wait_for_one_another_and_small_ones_pass() -> None:
    go = asyncio.Event()
    held = answer(go, say("Yes."))
    engine, provider = made(
        *[answer(say("Yes."))] * 2, held, answer(say("Small.")), held, history_bytes=4_000_000, history_memory=4_000_000
    )
    async with serving(engine) as server:
        large, small = await told(server, LARGE), await told(server, "Hello")
        first = asyncio.create_task(told(server, "one", large))
        await until(lambda: provider.under_way == 1)
        assert 1_500_000 < engine.history_memory.taken < 1_600_000
        second = asyncio.create_task(told(server, "two", large))
        await until(lambda: engine.history_memory.waiting == 1)
        await told(server, "three", small)
        assert provider.under_way == 1
        go.set()
        await asyncio.gather(first, second)
    assert [sent_messages(request)[-1][1] for request in provider.requests[2:]] == ["one", "three", "two"]
    assert engine.history_memory.taken == 0


@jumping_time
async def test_a_large_history_that_others_leave_no_memory_for_is_refused_after_a_minute() -> None:
    never = asyncio.Event()
    engine, _ = made(answer(say("Yes.")), answer(never), history_bytes=4_000_000, history_memory=4_000_000)
    async with serving(engine) as server:
        large = await told(server, LARGE)
        first = asyncio.create_task(told(server, "one", large))
        await until(lambda: engine.history_memory.taken > 0)
        body = {"model": "scripted", "input": "two", "previous_response_id": large}
        reply = await server.ask("POST", RESPONSES, body)
        assert (reply.status, reply.error["code"]) == (503, "history_memory_full")
        assert reply.headers["retry-after"] == "5"
        first.cancel()
    assert (engine.history_memory.taken, engine.history_memory.waiting) == (0, 0)


@pytest.mark.parametrize("path", ["/input_tokens", "/compact", "", "?"])
async def test_memory_is_given_back_however_a_request_ends(path: str) -> None:
    hangs = asyncio.Event()
    engine, provider = made(
        answer(say("Yes.")), answer(say("Summed up."), *[hangs] * (path == "?")), history_bytes=4_000_000
    )
    async with serving(engine) as server:
        last = await told(server, LARGE)
        body = {"model": "scripted", "input": "And?", "previous_response_id": last}
        asking = asyncio.create_task(server.ask("POST", f"{RESPONSES}{path.strip('?')}", body))
        if path == "?":  # the client leaves
            await until(lambda: provider.under_way == 1)
            assert engine.history_memory.taken > 1_500_000
            asking.cancel()
        else:
            assert (await asking).status == 200
        await until(lambda: engine.history_memory.taken == 0)


async def test_a_request_whose_history_comes_in_two_parts_does_not_wait_for_itself() -> None:
    engine, _ = made(*[answer(say("Yes."))] * 3, history_bytes=4_000_000, history_memory=4_000_000)
    async with serving(engine) as server:
        last = await told(server, LARGE)
        other = [{"role": "user", "content": LARGE, "id": "msg_large"}]
        await server.ask("POST", RESPONSES, {"model": "scripted", "input": other})
        referring = [{"type": "item_reference", "id": "msg_large"}]
        body = {"model": "scripted", "input": referring, "previous_response_id": last}
        assert (await server.ask("POST", RESPONSES, body)).status == 200
    assert engine.history_memory.taken == 0


@pytest.mark.parametrize("truncation", ["auto", "disabled"])
async def test_a_large_history_is_freed_with_the_answer_and_not_by_a_later_garbage_collection(truncation: str) -> None:
    """Garbage is collected rarely: until then, requests that come one after the other would fill the memory."""
    engine, _ = made(*[answer(say("Yes."))] * 4, history_bytes=2_000_000)
    async with serving(engine) as server:
        last = await told(server, LARGE)
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                await told(server, "And?", last, truncation=truncation)
            assert not [each for each in gc.get_objects() if type(each) is Message and LARGE in str(each.content)]
        finally:
            gc.enable()
