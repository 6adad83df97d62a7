"""Results that a request sends again: an equal one is ignored, a different one is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from antwort.api.items import FunctionCall, McpCall
from antwort.api.responses import Response
from antwort.api.wire import to_plain
from antwort.engine.engine import Engine
from antwort.errors import InvalidField
from antwort.identity import ANONYMOUS
from antwort.storage.base import Page
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, ToolServerFake, answer, call, say
from conversation_kit import begun, said, user, words
from engine_kit import CLOCK, SERVER, ask, engine_of, only, replies, sent

Plain = dict[str, Any]
OURS = "call_" + "0" * 32
PART = {"type": "input_text", "text": "noon"}
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}


def result(call_id: str, output: Any = "noon", **fields: Any) -> Plain:
    return {"type": "function_call_output", "call_id": call_id, "output": output, **fields}


def asked(call_id: str) -> Plain:
    return {"type": "function_call", "call_id": call_id, "name": "clock", "arguments": "{}"}


def depot_call(**fields: Any) -> Plain:
    head = {"type": "mcp_call", "id": "mcp_1", "server_label": "depot", "name": "lookup", "arguments": "{}"}
    return {**head, "output": "found", **fields}


def told(provider: ScriptedProvider) -> list[str]:
    """The last chat, a message a line: the role, and what is called or said."""
    return [_line(message) for message in sent(provider.requests[-1])["messages"]]


def _line(message: Plain) -> str:
    names = [each["function"]["name"] for each in message.get("tool_calls") or ()]
    return " ".join([message["role"], *names, *filter(None, [message["content"]])])


async def stateless(*items: Plain) -> list[str]:
    provider = ScriptedProvider(answer(say("Ok.")))
    await engine_of(provider).create(ask([user("Time?"), *items], store=False))
    return told(provider)


async def refused(engine: Engine, items: list[Plain], **fields: Any) -> tuple[str | None, str]:
    with pytest.raises(InvalidField) as caught:
        await engine.create(ask(items, **fields))
    assert caught.value.status == 400
    return caught.value.param, caught.value.code


async def input_types(engine: Engine, response: Response) -> list[str]:
    listed = await engine.input_items(ANONYMOUS, response.id, Page(order="asc"))
    return [to_plain(item)["type"] for item in listed.items]


# ---- in the history that is continued ----


async def answered(engine: Engine, output: Any = "noon") -> tuple[Response, str]:
    """A chain whose one call has its result, and the id of the call."""
    first = await engine.create(ask("Time?", tools=[CLOCK]))
    call_id = only(first, FunctionCall).call_id
    return await engine.create(ask([result(call_id, output)], previous_response_id=first.id)), call_id


def clock(*more: Answer) -> ScriptedProvider:
    return ScriptedProvider(answer(call("clock")), answer(say("Noon.")), *more)


@pytest.mark.proves("RULING-3a")
@pytest.mark.parametrize(
    "again",
    [{}, {"output": [PART]}, {"id": "fco_x"}, {"status": "in_progress"}, {"type": "custom_tool_call_output"}],
    ids=["as it was", "as a part", "another id", "another status", "another kind"],
)
async def test_an_equal_result_is_ignored_and_said_once(again: Plain) -> None:
    provider = clock(answer(say("Bye.")))
    engine = engine_of(provider)
    second, call_id = await answered(engine)
    third = await engine.create(ask([{**result(call_id), **again}, user("Thanks")], previous_response_id=second.id))
    assert told(provider) == ["user Time?", "assistant clock", "tool noon", "assistant Noon.", "user Thanks"]
    assert await input_types(engine, third) == ["message"]


async def test_a_result_in_one_part_equals_its_text() -> None:
    provider = clock(answer(say("Bye.")))
    engine = engine_of(provider)
    second, call_id = await answered(engine, [PART])
    third = await engine.create(ask([result(call_id), user("Thanks")], previous_response_id=second.id))
    assert await input_types(engine, third) == ["message"]


@pytest.mark.proves("RULING-3a")
@pytest.mark.parametrize("output", ["one", "", [PART, PART], [PART, PICTURE], []])
async def test_a_different_result_is_refused(output: Any) -> None:
    engine = engine_of(clock())
    second, call_id = await answered(engine)
    items = [user("Hm"), result(call_id, output)]
    refusal = await refused(engine, items, previous_response_id=second.id)
    assert refusal == ("input[1].call_id", "duplicate_output")


@pytest.mark.proves("RULING-3a")
async def test_another_branch_does_not_count() -> None:
    provider = clock(answer(say("One.")))
    engine = engine_of(provider)
    first = await engine.create(ask("Time?", tools=[CLOCK]))
    call_id = only(first, FunctionCall).call_id
    for output in ("noon", "one"):
        await engine.create(ask([result(call_id, output)], previous_response_id=first.id))
    assert told(provider) == ["user Time?", "assistant clock", "tool one"]


async def test_a_conversation_holds_a_result_once() -> None:
    store, provider = MemoryStore(), clock(answer(say("Bye.")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine)
    first = await engine.create(ask("Time?", tools=[CLOCK], conversation=conversation))
    call_id = only(first, FunctionCall).call_id
    await engine.create(ask([result(call_id), result(call_id)], conversation=conversation))
    await engine.create(ask([result(call_id), user("Thanks")], conversation=conversation))
    assert words(await said(store, conversation)) == [
        "user: Time?",
        "function_call",
        "function_call_output",
        "assistant: Noon.",
        "user: Thanks",
        "assistant: Bye.",
    ]
    refusal = await refused(engine, [result(call_id, "one")], conversation=conversation)
    assert refusal == ("input[0].call_id", "duplicate_output")


async def test_a_result_that_the_server_gave_is_ignored_when_it_comes_back_and_cannot_be_changed() -> None:
    provider = ScriptedProvider(answer(call("lookup")), answer(say("There.")), answer(say("Ok.")))
    engine = engine_of(provider, ToolServerFake("depot", lookup=replies("found")))
    first = await engine.create(ask("Where?", tools=[SERVER]))
    run = only(first, McpCall)
    for item_id in (run.call_id, run.id):
        assert isinstance(item_id, str)
        refusal = await refused(engine, [result(item_id, "lost")], previous_response_id=first.id)
        assert refusal == ("input[0].call_id", "duplicate_output")
    changed = {**to_plain(run), "output": "lost"}
    assert await refused(engine, [changed], previous_response_id=first.id) == ("input[0].output", "duplicate_output")
    again = [result(run.id, "found"), {**to_plain(run), "id": "mcp_x"}, to_plain(run), user("Thanks")]
    await engine.create(ask(again, previous_response_id=first.id))
    assert told(provider) == ["user Where?", "assistant lookup", "tool found", "assistant There.", "user Thanks"]


async def test_results_behind_a_compaction_are_held_against_what_it_keeps() -> None:
    provider = ScriptedProvider(answer(say("They spoke.")), answer(say("Ok.")))
    engine = engine_of(provider)
    talk = [user("Hi"), {"role": "assistant", "content": "Ho"}, user("Time?"), asked("c"), result("c")]
    window = [to_plain(item) for item in (await engine.compact(model="scripted", input=talk)).output]
    refusal = await refused(engine, [*window, result("c", "one")])
    assert refusal == (f"input[{len(window)}].call_id", "duplicate_output")
    await engine.create(ask([*window, result("c"), user("Bye")]))
    assert [line for line in told(provider) if line.startswith("tool")] == ["tool noon"]


async def test_a_result_that_was_summed_up_since_is_ignored_when_it_comes_back() -> None:
    provider = clock(answer(say("They spoke of time.")), answer(say("Bye.")))
    engine = engine_of(provider)
    second, call_id = await answered(engine)
    third = await engine.create(ask([{"type": "compaction_trigger"}], previous_response_id=second.id))
    await engine.create(ask([result(call_id), user("Thanks")], previous_response_id=third.id))
    assert [line.split()[0] for line in told(provider)] == ["user"]
    refusal = await refused(engine, [result(call_id, "one")], previous_response_id=third.id)
    assert refusal == ("input[0].call_id", "unknown_call_id")


# ---- in one input ----


@pytest.mark.proves("RULING-3a")
@pytest.mark.parametrize(
    "items",
    [
        [asked("c"), result("c"), result("c")],
        [asked("c"), result("c"), result("c", [PART])],
        [asked("c"), result("c"), {"type": "custom_tool_call_output", "call_id": "c", "output": "noon"}],
        [asked("c"), result("c"), {"type": "clock_call_output", "call_id": "c", "output": "noon"}],
        [asked(OURS), asked(OURS), result(OURS)],
        [asked(OURS), result(OURS), asked(OURS), result(OURS)],
        [result("c"), result("c"), asked("c")],
    ],
    ids=["twice", "as a part", "as custom", "as foreign", "the call too", "both too", "before its call"],
)
async def test_what_comes_twice_in_one_input_is_said_once(items: list[Plain]) -> None:
    assert await stateless(*items) == ["user Time?", "assistant clock", "tool noon"]


FOREIGN = {"type": "shell_call", "call_id": "c", "action": {}}


def foreign_result(output: Any) -> Plain:
    return {"type": "shell_call_output", "call_id": "c", "output": output}


def custom(call_id: str) -> Plain:
    return {"type": "custom_tool_call", "call_id": call_id, "name": "patch", "input": "x"}


@pytest.mark.proves("RULING-3a")
@pytest.mark.parametrize(
    ("items", "field"),
    [
        ([asked("c"), result("c"), result("c", "one")], "call_id"),
        ([custom("c"), result("c"), {**result("c", "one"), "type": "custom_tool_call_output"}], "call_id"),
        ([FOREIGN, foreign_result("a"), foreign_result("b")], "call_id"),
        ([asked("c"), result("c"), {**foreign_result("b"), "type": "clock_call_output"}], "call_id"),
        ([asked(OURS), result(OURS), asked(OURS), result(OURS, "one")], "call_id"),
        ([depot_call(), depot_call(output="lost")], "output"),
        ([depot_call(), depot_call(output=None, error="gone")], "error"),
        ([depot_call(), result("mcp_1", "lost")], "call_id"),
    ],
    ids=["function", "custom", "foreign", "another kind", "with its call", "server", "server's error", "server by id"],
)
async def test_two_different_results_in_one_input_are_refused(items: list[Plain], field: str) -> None:
    engine = engine_of(ScriptedProvider())
    assert await refused(engine, items) == (f"input[{len(items) - 1}].{field}", "duplicate_output")


@pytest.mark.parametrize(
    "again",
    [depot_call(), depot_call(output=["found"]), depot_call(output="found", error=None), result("mcp_1", "found")],
    ids=["as it was", "in parts", "with nulls", "as an output"],
)
async def test_a_servers_call_that_comes_twice_with_its_result_is_said_once(again: Plain) -> None:
    assert await stateless(depot_call(), again) == ["user Time?", "assistant lookup", "tool found"]


async def test_a_foreign_result_that_comes_twice_is_said_once() -> None:
    items = [FOREIGN, foreign_result("a"), foreign_result([{"type": "input_text", "text": "a"}])]
    assert await stateless(*items) == ["user Time?", "assistant shell", "tool a"]


async def test_foreign_results_of_nothing_that_is_known_are_left_out_as_ever() -> None:
    assert await stateless(foreign_result("a"), foreign_result("b")) == ["user Time?"]


@pytest.mark.parametrize("second", ["noon", "one"])
async def test_a_clients_call_id_may_be_used_for_another_call(second: str) -> None:
    items = [asked("c"), result("c"), result("c"), user("Again?"), asked("c"), result("c", second)]
    assert await stateless(*items) == [
        "user Time?", "assistant clock", "tool noon", "user Again?", "assistant clock", f"tool {second}",
    ]  # fmt: skip


@pytest.mark.proves("RULING-2")
@pytest.mark.parametrize("known", [(), (asked("d"), result("d"))], ids=["nothing", "another call"])
async def test_a_result_for_a_call_that_nobody_knows_is_refused(known: tuple[Plain, ...]) -> None:
    engine = engine_of(ScriptedProvider())
    refusal = await refused(engine, [*known, result("c" * 1000)])
    assert refusal == (f"input[{len(known)}].call_id", "unknown_call_id")


# ---- the whole history again ----


@pytest.fixture(params=["conversation", "previous_response_id"])
def goes_by(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def as_it_was(item: Plain) -> Plain:
    return item


def without_id(item: Plain) -> Plain:
    return {key: value for key, value in item.items() if key != "id"}


@pytest.mark.proves("RULING-3a")
@pytest.mark.parametrize("form", [as_it_was, without_id], ids=["with ids", "messages without ids"])
async def test_a_client_that_names_the_response_and_sends_everything_again_says_nothing_twice(
    goes_by: str, form: Callable[[Plain], Plain]
) -> None:
    provider = ScriptedProvider(
        answer(say("Hi.")), answer(say("Let me see."), call("clock")), answer(call("clock")), answer(say("Noon."))
    )
    engine = engine_of(provider)
    fields: Plain = {"conversation": await begun(engine)} if goes_by == "conversation" else {}
    history: list[Plain] = []
    new = [user("Hello")]
    for _ in range(4):
        history += new
        items = history if any(item["type"] == "function_call" for item in history) else new
        response = await engine.create(ask(items, tools=[CLOCK], **fields))
        if goes_by == "previous_response_id":
            fields = {"previous_response_id": response.id}
        shown = [to_plain(item) for item in response.output]
        history += [form(item) if item["type"] == "message" else item for item in shown]
        new = [result(item.call_id) for item in response.output if isinstance(item, FunctionCall)] or [user("Time?")]
    assert told(provider) == [
        "user Hello",
        "assistant Hi.",
        "user Time?",
        "assistant clock Let me see.",
        "tool noon",
        "assistant clock",
        "tool noon",
    ]
