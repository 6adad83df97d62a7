"""What a connection remembers."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.api.items import FunctionCallOutput, InputItem, Message, OpaqueItem, OutputText
from antwort.api.requests import parse_request
from antwort.api.responses import ConversationRef, Response
from antwort.api.wire import encode, replace
from antwort.engine.engine import Engine
from antwort.engine.history.memory_limit import HistoryReader
from antwort.engine.history.recent_responses import RecentMemory, RecentResponses, packed
from antwort.errors import ResponseNotFound
from antwort.identity import ANONYMOUS, Identity
from antwort.limiter import Limiter
from antwort.storage.base import Link
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, ToolServerFake, answer, call, say
from engine_kit import CLOCK, SERVER, ask, function_calls, replies, sent_messages, server_calls


def message(item_id: str, text: str) -> Message:
    return Message(id=item_id, role="assistant", status="completed", content=(OutputText(text=text),))


def link(response_id: str, *items: Message, **fields: Any) -> Link:
    response = Response(id=response_id, created_at=0, status="completed", model="m", store=False, output=items)
    return Link(response=replace(response, **fields), request=b"{}", input=(), turn_ends=())


def test_the_latest_is_found_and_no_other() -> None:
    recent, first, second = RecentResponses(), link("resp_1"), link("resp_2")
    recent.keep((first,))
    recent.keep((first, second))
    assert recent.response_id == "resp_2"
    assert recent.links() == (first, second)


@pytest.mark.parametrize(
    "fields", [{"store": True}, {"status": "failed"}, {"conversation": ConversationRef(id="conv_1")}], ids=str
)
def test_what_is_continued_otherwise_or_not_at_all_is_not_kept(fields: dict[str, Any]) -> None:
    recent = RecentResponses()
    recent.keep((link("resp_1"),))
    recent.keep((link("resp_2", **fields),))
    assert (recent.response_id, recent.size) == (None, 0)


@pytest.mark.parametrize(("evicted", "left"), [("resp_1", None), ("resp_2", "resp_1"), (None, "resp_1")])
def test_only_what_was_to_be_continued_is_forgotten(evicted: str | None, left: str | None) -> None:
    recent = RecentResponses()
    recent.keep((link("resp_1"),))
    recent.evict(evicted)
    assert recent.response_id == left


def test_no_more_is_kept_than_the_limit_whichever_way_it_is_counted() -> None:
    links = [link(f"resp_{number}", message(f"msg_{number}", "x" * 1000)) for number in range(4)]
    sizes = [packed(each).size for each in links]
    recent = RecentResponses(sum(sizes[:3]))
    for number in range(3):
        recent.keep(tuple(links[: number + 1]))
        assert recent.size == sum(sizes[: number + 1])
    recent.keep(tuple(links))
    assert (recent.response_id, recent.size) == (None, 0)
    recent.keep(tuple(links[:3]))
    assert recent.size == sum(sizes[:3])


def chain_of(response_id: str, *texts: str) -> tuple[Link, ...]:
    """A response to a request that said these, as a connection comes by it."""
    items = [{"role": "user", "content": text} for text in texts]
    request = parse_request(encode({"model": "m", "input": items, "tools": [CLOCK], "store": False}), Limits())
    links = link(response_id, message(f"msg_{response_id}", "Well."))
    return (replace(links, request=request.raw, input=request.input),)


@pytest.mark.parametrize(
    ("first", "character", "times"), [("x", "x", 4_000_000), ("😀", "x", 4_000_000), ("ü", "ü", 2_000_000)]
)
def test_what_is_held_is_what_is_counted(first: str, character: str, times: int) -> None:
    """However wide Python makes a text."""
    recent = RecentResponses()
    tracemalloc.start()
    try:
        recent.keep(chain_of("resp_1", first + character * times))
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 4_000_000 < recent.size < 4_100_000
    assert held < recent.size + 200_000


def test_what_is_held_of_many_small_ones_is_what_is_counted() -> None:
    recent, chain = RecentResponses(), sum((chain_of(f"resp_{number}", "Hi") for number in range(300)), ())
    tracemalloc.start()
    try:
        recent.keep(chain)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.2 * recent.size


@pytest.mark.parametrize(
    "item",
    [
        message("msg_1", "ü"),
        Message(id="msg_2", role="user", status="completed", content=()),
        FunctionCallOutput(id="fco_1", call_id="call_1", output="{}", status="completed"),
        OpaqueItem("novelty", "nov_1", {"type": "novelty", "id": "nov_1", "deep": [{"x": None}, 1.5]}),
    ],
    ids=lambda item: item.id,
)
def test_an_item_is_the_same_afterwards(item: InputItem) -> None:
    recent, first = RecentResponses(), link("resp_1")
    chain = (replace(first, input=(item,), turn_ends=(0, 1)),)
    recent.keep(chain)
    assert recent.links() == chain


def test_a_request_is_remembered_but_for_its_input() -> None:
    recent = RecentResponses()
    recent.keep(chain_of("resp_1", "Hi"))
    [kept] = recent.links()
    request, (said,) = parse_request(kept.request, Limits()), kept.input
    assert (request.input, len(request.tools), request.store) == ((), 1, False)
    assert b"Hi" in encode(said)


# ---- many connections ----


def test_where_memory_does_not_suffice_those_forget_that_have_been_idle_for_longest() -> None:
    size = packed(link("resp_1")).size
    budget = RecentMemory(max_size=3 * size)
    first, second, third, fourth = (RecentResponses(memory=budget) for _ in range(4))
    for recent in (first, second, third):
        recent.keep((link("resp_1"),))
    first.keep((link("resp_2"),))
    fourth.keep((link("resp_1"),))
    assert [recent.response_id for recent in (first, second, third, fourth)] == ["resp_2", None, "resp_1", "resp_1"]
    assert budget.size == 3 * size


def test_what_is_forgotten_makes_room() -> None:
    size = packed(link("resp_1")).size
    budget = RecentMemory(max_size=2 * size)
    first, second, third = (RecentResponses(memory=budget) for _ in range(3))
    for recent in (first, second):
        recent.keep((link("resp_1"),))
    second.clear()
    second.clear()
    third.keep((link("resp_1"),))
    assert (first.response_id, third.response_id, budget.size) == ("resp_1", "resp_1", 2 * size)


def test_what_is_more_than_all_may_remember_is_not_remembered() -> None:
    budget = RecentMemory(max_size=packed(link("resp_1")).size - 1)
    recent = RecentResponses(memory=budget)
    recent.keep((link("resp_1"),))
    assert (recent.response_id, recent.size, budget.size) == (None, 0, 0)


async def test_items_are_found_in_the_chain_first_and_the_newest_of_them() -> None:
    store, recent = MemoryStore(), RecentResponses()
    async with Engine(ScriptedProvider(answer(say("stored"))), store=store) as engine:
        [kept] = (await engine.create(ask())).output
        recent.keep((link("resp_1", message("msg_1", "old")), link("resp_2", message("msg_1", "new"))))
        reader = HistoryReader(Limiter(1), Limits(), store, recent, ANONYMOUS, truncates=False, seconds=None)
        found = await reader.items(["msg_1", kept.id, "msg_3"])
    assert found == {"msg_1": message("msg_1", "new"), kept.id: kept}


# ---- with an engine ----


def engine_of(*answers: Answer, **kwargs: Any) -> tuple[Engine, ScriptedProvider]:
    provider = ScriptedProvider(*answers)
    return Engine(provider, store=MemoryStore(), **kwargs), provider


async def turn(engine: Engine, recent: RecentResponses, **fields: Any) -> Response:
    run = await engine.start(ask(stream=False, **fields), recent=recent)
    response = await run.result()
    recent.keep(run.chain())
    return response


async def test_what_is_remembered_is_said_again_and_only_where_it_is_remembered() -> None:
    engine, provider = engine_of(answer(say("one")), answer(say("two")))
    async with engine:
        recent = RecentResponses()
        first = await turn(engine, recent, input="a", store=False)
        await turn(engine, recent, input="b", store=False, previous_response_id=first.id)
        assert sent_messages(provider.requests[-1]) == [("user", "a"), ("assistant", "one"), ("user", "b")]
        with pytest.raises(ResponseNotFound):
            await engine.plan(ask(previous_response_id=recent.response_id), ANONYMOUS)
        with pytest.raises(ResponseNotFound):
            await engine.plan(ask(previous_response_id=recent.response_id), Identity("other", "bob"), RecentResponses())


async def test_a_stored_response_that_continues_remembered_ones_can_be_continued_from_the_store() -> None:
    engine, provider = engine_of(*[answer(say(str(number))) for number in range(5)])
    async with engine:
        recent = RecentResponses()
        root = await turn(engine, recent, input="a")
        first = await turn(engine, recent, input="b", store=False, previous_response_id=root.id)
        second = await turn(engine, recent, input="c", store=False, previous_response_id=first.id)
        third = await turn(engine, recent, input="d", previous_response_id=second.id)
        assert recent.response_id is None
        assert (await engine.retrieve(ANONYMOUS, third.id)).previous_response_id == second.id
        await engine.create(ask(input="e", previous_response_id=third.id))
        texts = [text for _, text in sent_messages(provider.requests[-1])]
        assert texts == ["a", "0", "b", "1", "c", "2", "d", "3", "e"]


async def test_a_request_that_generates_nothing_asks_nobody() -> None:
    engine, provider = engine_of()
    async with engine:
        response = await engine.create(ask(input="a", generate=False))
        assert (response.status, response.output) == ("completed", ())
        assert (await engine.retrieve(ANONYMOUS, response.id)).status == "completed"
    assert provider.requests == []


async def test_a_server_call_left_open_in_what_is_remembered_is_run_by_what_continues_it() -> None:
    """A turn that calls a tool of the client's as well pauses; the server's call waits in what is remembered."""
    engine, provider = engine_of(
        answer(call("lookup"), call("clock")),
        answer(say("Found at noon")),
        executors=[ToolServerFake("depot", lookup=replies("found"))],
    )
    async with engine:
        recent = RecentResponses()
        first = await turn(engine, recent, store=False, tools=[SERVER, CLOCK])
        assert first.status == "requires_action"
        (asked,) = function_calls(first)
        output = {"type": "function_call_output", "call_id": asked.call_id, "output": "noon"}
        fields = {"tools": [SERVER, CLOCK], "input": [output], "previous_response_id": first.id}
        second = await turn(engine, recent, store=False, **fields)
    results = [text for role, text in sent_messages(provider.requests[-1]) if role == "tool"]
    assert sorted(results) == ["found", "noon"]
    assert [item.output for item in server_calls(second)] == ["found"]
