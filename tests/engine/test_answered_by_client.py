"""A client may answer a server's open call itself: then nobody runs it, and the model reads the client's result."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from antwort.api.items import FunctionCall, McpApprovalRequest, McpCall
from antwort.api.responses import Response
from antwort.api.wire import to_plain
from antwort.engine.engine import Engine
from antwort.engine.history.calls import requested_call, shown_id
from antwort.errors import InvalidField
from antwort.identity import ANONYMOUS
from antwort.storage.base import Page, ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.storage.sqlite import SqliteStore
from antwort.testing import Answer, ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolCall, ToolContext
from approval_kit import check_pairs
from conversation_kit import begun, user
from engine_kit import CLOCK, SERVER, ask, engine_of, function_calls, items_of, kinds, only, sent, server_calls

Plain = dict[str, Any]
TOOLS = [SERVER, CLOCK]
GUARDED = {**SERVER, "require_approval": "always"}
MIXED = answer(call("pay", amount=5), call("clock"))
OK = answer(say("Ok."))


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ResponseStore]:
    opened = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "antwort.db")
    yield opened
    await opened.close()


class Shop:
    """Counts what it runs."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.server = ToolServerFake("depot", pay=self.pay)

    async def pay(self, asked: ToolCall, context: ToolContext) -> str:
        self.runs.append(asked.arguments)
        return "paid"


def started(*answers: Answer, store: ResponseStore | None = None) -> tuple[Shop, ScriptedProvider, Engine]:
    shop, provider = Shop(), ScriptedProvider(*answers)
    return shop, provider, engine_of(provider, shop.server, store=store)


def result(call_id: object, output: Any) -> Plain:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def noon(response: Response) -> Plain:
    return result(function_calls(response)[0].call_id, "noon")


def by_call_id(asked: McpCall, output: Any = "in cash") -> Plain:
    return result(asked.call_id, output)


def by_item_id(asked: McpCall, output: Any = "in cash") -> Plain:
    return result(asked.id, output)


def as_custom(asked: McpCall, output: Any = "in cash") -> Plain:
    return {**result(asked.id, output), "type": "custom_tool_call_output"}


def as_call(asked: McpCall, output: Any = "in cash") -> Plain:
    return {**to_plain(asked), "output": output}


def as_call_of_its_id(asked: McpCall, output: Any = "in cash") -> Plain:
    """By a client whose SDK drops what it does not know."""
    return {key: value for key, value in as_call(asked, output).items() if key != "call_id"}


Way = Callable[..., Plain]
WAYS = [by_call_id, by_item_id, as_custom, as_call, as_call_of_its_id]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


def told(provider: ScriptedProvider) -> list[str]:
    return [_line(message) for message in sent(provider.requests[-1])["messages"]]


def _line(message: Plain) -> str:
    names = [each["function"]["name"] for each in message.get("tool_calls") or ()]
    return " ".join([message["role"], *names, *([str(message["content"])] if message["content"] else [])])


BOTH = ["user Hello", "assistant pay clock", "tool in cash", "tool noon"]


# ---- in each way ----


@pytest.mark.proves("RULING-3")
async def test_a_call_that_the_client_has_answered_is_not_run(way: Way, store: ResponseStore) -> None:
    shop, provider, engine = started(MIXED, OK, OK, store=store)
    first = await engine.create(ask(tools=TOOLS))
    items = [noon(first), way(only(first, McpCall))]
    second = await engine.create(ask(items, previous_response_id=first.id, tools=TOOLS))
    assert (kinds(second), told(provider)) == (["message"], BOTH)
    listed = await engine.input_items(ANONYMOUS, second.id, Page(order="asc"))
    shown = [(item["call_id"], item["output"]) for item in map(to_plain, listed.items)]
    assert shown == [(function_calls(first)[0].call_id, "noon"), (only(first, McpCall).call_id, "in cash")]
    await engine.create(ask("Next", previous_response_id=second.id, tools=TOOLS))
    assert told(provider) == [*BOTH, "assistant Ok.", "user Next"]
    assert shop.runs == []


@pytest.mark.proves("RULING-3")
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_it_is_so_in_a_conversation(way: Way, is_stored: bool, store: ResponseStore) -> None:
    shop, provider, engine = started(MIXED, OK, OK, store=store)
    fields = {"conversation": await begun(engine), "tools": TOOLS, "store": is_stored}
    first = await engine.create(ask(**fields))
    await engine.create(ask([way(only(first, McpCall)), noon(first)], **fields))
    assert told(provider) == BOTH
    await engine.create(ask("Next", **fields))
    assert told(provider) == [*BOTH, "assistant Ok.", "user Next"]
    assert shop.runs == []


@pytest.mark.proves("RULING-3")
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_it_is_so_for_a_client_that_keeps_its_history_itself(way: Way, is_stored: bool) -> None:
    shop, provider, engine = started(MIXED, OK, OK)
    first = await engine.create(ask(tools=TOOLS, store=is_stored))
    history = [user("Hello"), *map(to_plain, first.output), noon(first), way(only(first, McpCall))]
    second = await engine.create(ask(history, tools=TOOLS, store=is_stored))
    assert (kinds(second)[-1], told(provider)) == ("message", BOTH)
    history += [to_plain(second.output[-1]), user("Next")]
    await engine.create(ask(history, tools=TOOLS, store=is_stored))
    assert told(provider) == [*BOTH, "assistant Ok.", "user Next"]
    assert shop.runs == []


async def test_it_is_so_by_reference_to_the_call() -> None:
    shop, provider, engine = started(MIXED, OK)
    first = await engine.create(ask(tools=TOOLS))
    asked, own = only(first, McpCall), only(first, FunctionCall)
    references = [{"type": "item_reference", "id": item.id} for item in (asked, own)]
    await engine.create(ask([user("Hello"), *references, by_item_id(asked), noon(first)], tools=TOOLS))
    assert (told(provider), shop.runs) == (BOTH, [])


@pytest.mark.parametrize("way", [by_call_id, by_item_id, as_custom, as_call])
async def test_a_result_that_was_added_to_the_conversation_answers_the_call(way: Way) -> None:
    shop, provider, engine = started(MIXED, OK)
    conversation = await begun(engine)
    first = await engine.create(ask(tools=TOOLS, conversation=conversation))
    await engine.conversations.add(conversation, [way(only(first, McpCall)), noon(first)])
    await engine.create(ask("Well?", tools=TOOLS, conversation=conversation))
    assert (told(provider), shop.runs) == ([*BOTH, "user Well?"], [])


async def test_only_the_answered_one_of_two_calls_is_left_out() -> None:
    shop, provider, engine = started(answer(call("pay", amount=1), call("pay", amount=2), call("clock")), OK)
    first = await engine.create(ask(tools=TOOLS))
    one, _ = server_calls(first)
    second = await engine.create(ask([by_item_id(one), noon(first)], previous_response_id=first.id, tools=TOOLS))
    assert [item.output for item in server_calls(second)] == ["paid"]
    assert shop.runs == ['{"amount":2}']
    assert told(provider)[1:] == ["assistant pay pay clock", "tool in cash", "tool paid", "tool noon"]


async def test_an_answer_may_have_pictures_and_may_be_an_error() -> None:
    _, provider, engine = started(MIXED, OK)
    first = await engine.create(ask(tools=TOOLS))
    asked = only(first, McpCall)
    failed = {**to_plain(asked), "error": "no money", "status": "failed"}
    await engine.create(ask([failed, noon(first)], previous_response_id=first.id))
    assert "tool no money" in told(provider)
    parts = [{"type": "input_text", "text": "in cash"}, {"type": "input_image", "image_url": "data:image/png;base64,A"}]
    _, provider, engine = started(MIXED, OK)
    first = await engine.create(ask(tools=TOOLS))
    await engine.create(ask([as_call(only(first, McpCall), parts), noon(first)], previous_response_id=first.id))
    check_pairs(provider)
    assert told(provider)[2].startswith("tool in cash")


# ---- once ----


@pytest.mark.proves("RULING-3a")
async def test_an_answer_that_comes_again_is_ignored_and_another_one_is_refused(way: Way) -> None:
    shop, provider, engine = started(MIXED, OK, OK)
    first = await engine.create(ask(tools=TOOLS))
    asked = only(first, McpCall)
    second = await engine.create(ask([way(asked), noon(first), way(asked)], previous_response_id=first.id))
    assert told(provider) == BOTH
    with pytest.raises(InvalidField) as caught:
        await engine.create(ask([way(asked, "by card")], previous_response_id=second.id))
    assert caught.value.code == "duplicate_output"
    assert (caught.value.param or "").startswith("input[0].")
    await engine.create(ask([way(asked), user("Next")], previous_response_id=second.id))
    assert (told(provider), shop.runs) == ([*BOTH, "assistant Ok.", "user Next"], [])


async def test_a_call_that_was_run_has_its_result(way: Way) -> None:
    shop, provider, engine = started(MIXED, OK, OK)
    first = await engine.create(ask(tools=TOOLS))
    asked = only(first, McpCall)
    second = await engine.create(ask([noon(first)], previous_response_id=first.id))
    with pytest.raises(InvalidField) as caught:
        await engine.create(ask([way(asked)], previous_response_id=second.id))
    assert caught.value.code == "duplicate_output"
    await engine.create(ask([way(asked, "paid"), user("Next")], previous_response_id=second.id))
    assert told(provider)[2:] == ["tool paid", "tool noon", "assistant Ok.", "user Next"]
    assert len(shop.runs) == 1


@pytest.mark.proves("RULING-3a")
async def test_what_another_continuation_has_run_does_not_count(way: Way) -> None:
    shop, provider, engine = started(MIXED, OK, OK)
    first = await engine.create(ask(tools=TOOLS))
    await engine.create(ask([noon(first)], previous_response_id=first.id))
    assert len(shop.runs) == 1
    await engine.create(ask([way(only(first, McpCall)), noon(first)], previous_response_id=first.id))
    assert (told(provider), len(shop.runs)) == (BOTH, 1)


async def test_what_another_request_has_run_does_not_count_for_a_client_that_keeps_its_history(way: Way) -> None:
    shop, provider, engine = started(MIXED, OK, OK)
    first = await engine.create(ask(tools=TOOLS))
    await engine.create(ask([noon(first)], previous_response_id=first.id))
    history = [user("Hello"), *map(to_plain, first.output), noon(first), way(only(first, McpCall))]
    await engine.create(ask(history, tools=TOOLS))
    assert (told(provider), len(shop.runs)) == (BOTH, 1)


async def test_an_open_call_cannot_be_answered_as_another_one() -> None:
    shop, _, engine = started(MIXED)
    first = await engine.create(ask(tools=TOOLS))
    changed = {**as_call(only(first, McpCall)), "arguments": '{"amount":6}'}
    with pytest.raises(InvalidField, match="cannot be changed") as caught:
        await engine.create(ask([noon(first), changed], previous_response_id=first.id))
    assert (caught.value.param, shop.runs) == ("input[1].arguments", [])


async def test_an_answered_call_stays_answered_when_the_history_is_compacted(way: Way) -> None:
    summed = answer(say("They spoke of money."))
    shop, _, engine = started(MIXED, OK, summed, OK)
    first = await engine.create(ask(tools=TOOLS))
    items = [way(only(first, McpCall)), noon(first)]
    second = await engine.create(ask(items, previous_response_id=first.id, tools=TOOLS))
    trigger = [{"type": "compaction_trigger"}]
    third = await engine.create(ask(trigger, previous_response_id=second.id, tools=TOOLS))
    await engine.create(ask("Next", previous_response_id=third.id, tools=TOOLS))
    assert shop.runs == []


async def test_an_answer_that_was_not_told_yet_is_kept_by_a_compaction(way: Way) -> None:
    shop, provider, engine = started(MIXED, answer(say("They spoke of money.")), OK)
    first = await engine.create(ask(tools=TOOLS))
    items = [way(only(first, McpCall)), noon(first), {"type": "compaction_trigger"}]
    second = await engine.create(ask(items, previous_response_id=first.id, tools=TOOLS))
    await engine.create(ask("Next", previous_response_id=second.id, tools=TOOLS))
    check_pairs(provider)
    assert ([line for line in told(provider) if line.startswith("tool")], shop.runs) == (BOTH[2:], [])


# ---- a call that waits for an approval ----


async def waiting() -> tuple[Shop, ScriptedProvider, Engine, Response, McpApprovalRequest]:
    shop, provider, engine = started(answer(call("pay", amount=5)), OK, OK)
    first = await engine.create(ask(tools=[GUARDED]))
    return shop, provider, engine, first, items_of(first, McpApprovalRequest)[0]


def decision(request: McpApprovalRequest, *, approve: bool) -> Plain:
    return {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}


def answers_to(request: McpApprovalRequest) -> list[tuple[Plain, str]]:
    """A result for its call by each of its ids, and the field that names the call."""
    call_id = requested_call(request.id)
    shown = {**to_plain(request), "type": "mcp_call", "id": shown_id(call_id), "output": "in cash"}
    outputs = [(result(each, "in cash"), "call_id") for each in (call_id, request.id)]
    return [*outputs, (shown, "id")]


async def test_a_call_that_waits_for_an_approval_is_decided_and_not_answered() -> None:
    shop, _, engine, first, request = await waiting()
    for item, field in answers_to(request):
        with pytest.raises(InvalidField, match="waits for an approval") as caught:
            await engine.create(ask([item], previous_response_id=first.id))
        assert (caught.value.param, caught.value.code) == (f"input[0].{field}", "not_a_client_call")
        assert request.id in caught.value.message
    assert shop.runs == []


async def test_a_call_that_was_denied_has_its_result() -> None:
    shop, _, engine, first, request = await waiting()
    for item, _ in answers_to(request):
        with pytest.raises(InvalidField) as caught:
            await engine.create(ask([decision(request, approve=False), item], previous_response_id=first.id))
        assert caught.value.code == "duplicate_output"
    assert shop.runs == []


async def test_who_approves_a_call_may_answer_it_at_once() -> None:
    shop, provider, engine, first, request = await waiting()
    items = [decision(request, approve=True), result(requested_call(request.id), "in cash")]
    second = await engine.create(ask(items, previous_response_id=first.id))
    assert (kinds(second), told(provider)) == (["message"], ["user Hello", "assistant pay", "tool in cash"])
    assert shop.runs == []
    assert (await engine.approval(request.id)).status == "approved"
