"""What a request sends again of its conversation, or of the chain that it continues: it is not said or added twice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest

from antwort.api.decoding import Limits, at_once
from antwort.api.item_parsing import read_item
from antwort.api.items import FunctionCall, InputItem, McpCall, Message, OutputItem, Reasoning
from antwort.api.requests import CreateRequest
from antwort.api.responses import Response
from antwort.api.wire import encode, to_plain
from antwort.crypto import Vault
from antwort.engine.engine import Engine
from antwort.engine.history.calls import results_in
from antwort.engine.history.deduplication import known_steps
from antwort.errors import InvalidField
from antwort.identity import ANONYMOUS
from antwort.providers.base import Capabilities
from antwort.storage.base import Page
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, call, say, think
from conversation_kit import begun, said, user, words
from engine_kit import CLOCK, SERVER, ask, engine_of, function_calls, items_of, only, sent, sent_messages
from plan_kit import depot

TOOLS = [SERVER, CLOCK]
OURS = "call_" + "0" * 32


def heard(provider: ScriptedProvider) -> list[Any]:
    messages: list[Any] = sent(provider.requests[-1])["messages"]
    return messages


def roles(provider: ScriptedProvider) -> list[str]:
    return [message["role"] for message in heard(provider)]


def shown(response: Response) -> list[dict[str, Any]]:
    """The output, as a client has it."""
    return [to_plain(item) for item in response.output]


def result(asked: FunctionCall, text: str = "noon") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": asked.call_id, "output": text}


def without(item: OutputItem, *fields: str) -> dict[str, Any]:
    return {key: value for key, value in to_plain(item).items() if key not in fields}


@pytest.fixture(params=["conversation", "previous_response_id"])
def goes_by(request: pytest.FixtureRequest) -> str:
    """How a request names what came before it."""
    return str(request.param)


async def started(engine: Engine, goes_by: str) -> dict[str, Any]:
    """What the first request says of it."""
    return {"conversation": await begun(engine)} if goes_by == "conversation" else {}


def next_to(first: Response, goes_by: str) -> dict[str, Any]:
    if goes_by == "previous_response_id":
        return {"previous_response_id": first.id}
    assert first.conversation
    return {"conversation": first.conversation.id}


# ---- calls ----


@pytest.mark.parametrize(
    "left_away", [(), ("id",), ("status",), ("id", "status")], ids=["whole", "id", "status", "both"]
)
async def test_a_call_that_is_sent_back_with_its_result_was_made_once(goes_by: str, left_away: tuple[str, ...]) -> None:
    provider = ScriptedProvider(answer(say("Hm."), call("clock")), answer(say("Noon.")), answer(say("Bye.")))
    engine = engine_of(provider, store=MemoryStore())
    first = await engine.create(ask("Time?", tools=[CLOCK], **await started(engine, goes_by)))
    asked = only(first, FunctionCall)
    again = [shown(first)[0], without(asked, *left_away), result(asked)]
    second = await engine.create(ask(again, tools=[CLOCK], **next_to(first, goes_by)))
    assert roles(provider) == ["user", "assistant", "tool"]
    listed = await engine.input_items(ANONYMOUS, second.id, Page())
    assert [to_plain(item)["type"] for item in listed.items] == ["function_call_output"]
    await engine.create(ask("Next", tools=[CLOCK], **next_to(second, goes_by)))
    assert roles(provider) == ["user", "assistant", "tool", "assistant", "user"]


async def test_what_is_known_is_not_added_again() -> None:
    store, provider = MemoryStore(), ScriptedProvider(answer(call("clock")), answer(say("Noon.")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine)
    first = await engine.create(ask("Time?", tools=[CLOCK], conversation=conversation))
    again = [*shown(first), result(only(first, FunctionCall))]
    await engine.create(ask(again, tools=[CLOCK], conversation=conversation))
    kinds = ["user: Time?", "function_call", "function_call_output", "assistant: Noon."]
    assert words(await said(store, conversation)) == kinds


async def test_a_conversation_that_is_sent_whole_with_the_request_is_known() -> None:
    store, provider = MemoryStore(), ScriptedProvider(answer(call("clock")), answer(say("Noon.")), answer(say("Bye.")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine, {"type": "odd", "id": "odd_1", "x": None, "y": 1})
    first = await engine.create(ask("Time?", tools=[CLOCK], conversation=conversation))
    await engine.create(ask([result(only(first, FunctionCall))], tools=[CLOCK], conversation=conversation))
    all_of_it = await said(store, conversation)
    again = [without(item, "status") if isinstance(item, FunctionCall) else to_plain(item) for item in all_of_it]
    again[0] = {"type": "odd", "id": "odd_1", "y": 1, "status": None}
    await engine.create(ask([*again, user("Thanks")], tools=[CLOCK], conversation=conversation))
    assert roles(provider) == ["user", "assistant", "tool", "assistant", "user"]
    added = (await said(store, conversation))[len(all_of_it) :]
    assert words(added) == ["user: Thanks", "assistant: Bye."]


async def test_a_result_that_comes_again_with_its_call_is_known_without_ids(goes_by: str) -> None:
    provider = ScriptedProvider(answer(call("clock")), answer(say("Noon.")), answer(say("Bye.")))
    engine = engine_of(provider)
    first = await engine.create(ask("Time?", tools=[CLOCK], **await started(engine, goes_by)))
    asked = only(first, FunctionCall)
    second = await engine.create(ask([result(asked)], tools=[CLOCK], **next_to(first, goes_by)))
    again = [without(asked, "id"), result(asked), user("Thanks")]
    await engine.create(ask(again, tools=[CLOCK], **next_to(second, goes_by)))
    assert roles(provider) == ["user", "assistant", "tool", "assistant", "user"]


async def test_another_result_for_a_call_that_has_one_is_refused_as_ever(goes_by: str) -> None:
    provider = ScriptedProvider(answer(call("clock")), answer(say("Noon.")))
    engine = engine_of(provider)
    first = await engine.create(ask("Time?", tools=[CLOCK], **await started(engine, goes_by)))
    asked = only(first, FunctionCall)
    second = await engine.create(ask([result(asked)], tools=[CLOCK], **next_to(first, goes_by)))
    for again in ([without(asked, "id"), result(asked, "one")], [result(asked, "one")]):
        with pytest.raises(InvalidField) as caught:
            await engine.create(ask(again, tools=[CLOCK], **next_to(second, goes_by)))
        assert caught.value.code == "duplicate_output"
        assert caught.value.param == f"input[{len(again) - 1}].call_id"


@pytest.mark.parametrize("left_away", [(), ("id",)], ids=["whole", "id"])
async def test_a_call_that_waits_for_its_result_cannot_be_changed(goes_by: str, left_away: tuple[str, ...]) -> None:
    provider = ScriptedProvider(answer(call("clock", '{"zone": 1}')), answer(say("Noon.")), answer(say("Bye.")))
    engine = engine_of(provider)
    first = await engine.create(ask("Time?", tools=[CLOCK], **await started(engine, goes_by)))
    asked = only(first, FunctionCall)
    edited = {**without(asked, *left_away), "arguments": '{"zone": 2}'}
    with pytest.raises(InvalidField, match="a call cannot be changed") as caught:
        await engine.create(ask([edited, result(asked)], tools=[CLOCK], **next_to(first, goes_by)))
    assert caught.value.param == "input[0].arguments"
    second = await engine.create(ask([result(asked)], tools=[CLOCK], **next_to(first, goes_by)))
    # Some clients send less of what is long ago: that stays as it was.
    await engine.create(ask([edited, result(asked), user("Thanks")], tools=[CLOCK], **next_to(second, goes_by)))
    assert roles(provider) == ["user", "assistant", "tool", "assistant", "user"]
    assert heard(provider)[1]["tool_calls"][0]["function"]["arguments"] == '{"zone": 1}'


async def test_a_servers_call_that_waits_is_run_once_when_it_is_sent_back(goes_by: str) -> None:
    provider = ScriptedProvider(answer(call("depot_stock"), call("clock")), answer(say("Three.")), answer(say("Bye.")))
    engine = engine_of(provider, depot())
    first = await engine.create(ask("Stock?", tools=TOOLS, **await started(engine, goes_by)))
    (asked,) = function_calls(first)
    second = await engine.create(ask([*shown(first), result(asked)], tools=TOOLS, **next_to(first, goes_by)))
    assert only(second, McpCall).output == "3 left"
    assert [message["content"] for message in heard(provider) if message["role"] == "tool"] == ["3 left", "noon"]
    bare = [without(item, "output", "call_id") for item in (*items_of(first, McpCall), *items_of(second, McpCall))]
    await engine.create(ask([*bare, user("Thanks")], tools=TOOLS, **next_to(second, goes_by)))
    assert roles(provider) == ["user", "assistant", "tool", "tool", "assistant", "user"]


# ---- what else there is ----


async def test_thoughts_that_come_back_sealed_or_cut_are_known(goes_by: str) -> None:
    provider = ScriptedProvider(
        answer(think("Hm, seven."), say("Seven")),
        *(answer(say("Ok")) for _ in range(3)),
        capabilities=Capabilities(reasoning_field="reasoning_content"),
    )
    engine = Engine(provider)
    asked = ask("A number?", include=["reasoning.encrypted_content"], **await started(engine, goes_by))
    before = first = await engine.create(asked)
    thought = only(first, Reasoning)
    for again in (to_plain(thought), without(thought, "content"), without(thought, "encrypted_content")):
        before = await engine.create(ask([again, shown(first)[1], user("Why?")], **next_to(before, goes_by)))
        assert str(heard(provider)).count("Hm, seven.") == 1
        assert str(heard(provider)).count("Seven") == 1


async def test_sealed_thoughts_that_are_known_need_not_be_opened(goes_by: str) -> None:
    store = MemoryStore()
    engine = Engine(ScriptedProvider(answer(think("Hm."), say("Seven"))), store=store)
    asked = ask("A number?", include=["reasoning.encrypted_content"], **await started(engine, goes_by))
    first = await engine.create(asked)
    later = Engine(ScriptedProvider(answer(say("Ok"))), store=store, vault=Vault.ephemeral())
    second = await later.create(ask([*shown(first), user("Why?")], **next_to(first, goes_by)))
    assert second.status == "completed"


async def test_another_item_under_an_id_that_is_taken_is_another(goes_by: str) -> None:
    provider = ScriptedProvider(answer(say("One")), answer(say("Two")))
    engine = engine_of(provider)
    first = await engine.create(ask("And?", **await started(engine, goes_by)))
    other = {"role": "assistant", "content": "Or two", "id": only(first, Message).id}
    await engine.create(ask([other, user("So?")], **next_to(first, goes_by)))
    assert "Or two" in str(heard(provider))


async def test_the_same_words_under_an_id_of_the_clients_are_said_again_in_a_chain() -> None:
    provider = ScriptedProvider(answer(say("One")), answer(say("Two")))
    engine = engine_of(provider)
    again = [{**user("Yes"), "id": "msg_1"}]
    first = await engine.create(ask(again))
    await engine.create(ask(again, previous_response_id=first.id))
    assert sent_messages(provider.requests[1]) == [("user", "Yes"), ("assistant", "One"), ("user", "Yes")]


@pytest.mark.parametrize("role", ["user", "developer", "system"])
async def test_what_others_say_now_is_new_whatever_its_id(role: str) -> None:
    store, provider = MemoryStore(), ScriptedProvider(*(answer(say("On.")) for _ in range(4)))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine)
    again = {"type": "message", "role": role, "id": "msg_user", "content": "continue"}
    for _ in range(3):
        response = await engine.create(ask([again], conversation=conversation))
    assert words(await said(store, conversation)) == [f"{role}: continue", "assistant: On."] * 3
    behind = [again, *shown(response), again, again]
    await engine.create(ask(behind, conversation=conversation))
    assert words(await said(store, conversation))[6:] == [f"{role}: continue"] * 2 + ["assistant: On."]


async def test_a_turn_that_comes_back_with_references_to_its_answer_is_known() -> None:
    store, provider = MemoryStore(), ScriptedProvider(answer(say("One")), answer(say("Two")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine)
    asked = {**user("And?"), "id": "msg_1"}
    first = await engine.create(ask([asked], conversation=conversation))
    again = [asked, {"type": "item_reference", "id": only(first, Message).id}, asked]
    await engine.create(ask(again, conversation=conversation))
    assert sent_messages(provider.requests[1]) == [("user", "And?"), ("assistant", "One"), ("user", "And?")]


async def test_a_reference_to_what_a_chain_holds_says_nothing_twice() -> None:
    provider = ScriptedProvider(answer(call("clock")), answer(say("Noon.")))
    engine = engine_of(provider)
    first = await engine.create(ask("Time?", tools=[CLOCK]))
    asked = only(first, FunctionCall)
    again = [{"type": "item_reference", "id": asked.id}, result(asked)]
    await engine.create(ask(again, tools=[CLOCK], previous_response_id=first.id))
    assert roles(provider) == ["user", "assistant", "tool"]


@pytest.mark.parametrize("is_reference", [False, True], ids=["whole", "reference"])
async def test_behind_a_compaction_that_is_new_all_is_said_anew(goes_by: str, is_reference: bool) -> None:
    provider = ScriptedProvider(answer(call("clock")), answer(say("They spoke of time.")), answer(say("Noon.")))
    engine = engine_of(provider)
    first = await engine.create(ask("Time?", tools=[CLOCK], **await started(engine, goes_by)))
    asked = only(first, FunctionCall)
    window = await engine.compact(model="scripted", input=[user("Of what?"), {"role": "assistant", "content": "Time"}])
    again = {"type": "item_reference", "id": asked.id} if is_reference else to_plain(asked)
    behind = [to_plain(window.output[-1]), again, result(asked)]
    await engine.create(ask(behind, tools=[CLOCK], **next_to(first, goes_by)))
    assert roles(provider) == ["user", "assistant", "tool"]
    assert "They spoke of time." in heard(provider)[0]["content"]


# ---- which two are the same ----


def item(**fields: Any) -> InputItem:
    return read_item(fields, "", Limits())


def a_call(**fields: Any) -> InputItem:
    given = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "clock", "arguments": "{}"}
    return item(**given | fields)


def a_free_call(**fields: Any) -> InputItem:
    return item(
        **{"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "patch", "input": "a"} | fields
    )


def a_result(**fields: Any) -> InputItem:
    return item(**{"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "noon"} | fields)


def a_message(content: Any = "Hi", **fields: Any) -> InputItem:
    return item(**{"role": "user", "id": "msg_1", "content": content} | fields)


def a_servers_call(**fields: Any) -> InputItem:
    given = {"type": "mcp_call", "id": "mcp_1", "server_label": "depot", "name": "stock", "arguments": "{}"}
    return item(**given | fields)


def a_listing(**fields: Any) -> InputItem:
    return item(**{"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "depot", "tools": []} | fields)


SAME = [
    (a_call(), a_call(status="in_progress", arguments="{ }")),
    (a_call(call_id=OURS), a_call(call_id=OURS, id="fc_2", arguments=" {}")),
    (a_call(), a_call(id="fc_2")),
    (a_result(), a_result(output=[{"type": "input_text", "text": "noon"}])),
    (a_message(), a_message([{"type": "input_text", "text": "Hi", "x": None}])),
    (a_message(role="assistant"), a_message(role="assistant", phase="commentary", status="incomplete")),
    (a_servers_call(output="3"), a_servers_call()),
    (a_servers_call(error="No."), a_servers_call(error={"type": "x", "content": [{"type": "text", "text": "No."}]})),
    (a_listing(), a_listing(error=None)),
    (
        item(type="compaction", id="cmp_1", encrypted_content="x"),
        item(type="compaction", id="cmp_1", encrypted_content="x"),
    ),
    (item(type="odd", id="odd_1", x={"a": None}), item(type="odd", id="odd_1", x={}, status="done")),
]
OTHER = [
    (a_call(), a_call(call_id="call_2")),
    (a_call(status="incomplete"), a_call()),
    (a_call(status="incomplete"), a_call(id="fc_2", arguments='{"zone": 1}')),
    (a_result(), a_result(output="one")),
    (a_result(), a_result(id="fco_2")),
    (a_message(), a_message("Ho")),
    (a_message(), a_message(role="assistant")),
    (a_message(), a_message(id="msg_2")),
    (a_servers_call(), a_servers_call(output="forged")),
    (a_servers_call(output="3"), a_servers_call(output="4")),
    (a_servers_call(), a_servers_call(arguments='{"key": 1}')),
    (a_listing(), a_listing(server_label="shop")),
    (
        item(type="compaction", id="cmp_1", encrypted_content="x"),
        item(type="compaction", id="cmp_1", encrypted_content="y"),
    ),
    (item(type="odd", id="odd_1", x=1), item(type="odd", id="odd_1", x=2)),
    (item(type="odd", id="odd_1"), item(type="even", id="odd_1")),
    (item(type="reasoning", id="rs_1", summary=["a"]), item(type="reasoning", id="rs_1", summary=["b"])),
]


CHANGED = [
    (a_call(), a_call(name="watch"), "name"),
    (a_call(), a_call(arguments='{"zone": 1}'), "arguments"),
    (a_call(call_id=OURS), a_call(call_id=OURS, id="fc_2", arguments='{"zone": 1}'), "arguments"),
    (a_call(), a_call(type="custom_tool_call", input="{}"), "type"),
    (a_free_call(), a_free_call(id="ctc_2", input="b"), "input"),
]
ANSWERED = a_message("Ho", role="assistant", id="msg_9")


def known_places(given: Sequence[InputItem], held: Sequence[InputItem]) -> frozenset[int]:
    raw = tuple(encode(to_plain(each)) for each in given)
    request = CreateRequest(input=tuple(given), raw_input=raw, conversation="conv_1")
    return at_once(known_steps(request, held, results_in(held)))


@pytest.mark.parametrize(("held", "given"), SAME)
def test_the_same_thing_is_known(held: InputItem, given: InputItem) -> None:
    assert known_places([given, ANSWERED], [held, ANSWERED]) == {0, 1}


@pytest.mark.parametrize(("held", "given"), OTHER)
def test_another_thing_is_not(held: InputItem, given: InputItem) -> None:
    assert 0 not in known_places([given, ANSWERED], [held, ANSWERED])


@pytest.mark.parametrize(("held", "given", "field"), CHANGED)
def test_an_open_call_that_comes_back_changed_is_told_by_what_differs(
    held: InputItem, given: InputItem, field: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        known_places([a_message(), given], [held])
    assert caught.value.param == f"input[1].{field}"


def test_a_call_that_was_cut_off_changes_none() -> None:
    assert known_places([a_call(status="incomplete", arguments='{"zo')], [a_call()]) == {0}


def test_a_call_id_of_the_clients_may_be_used_again_once_it_is_answered() -> None:
    held = [a_call(), a_result()]
    again = [a_call(id="fc_2"), a_result(id="fco_2")]
    assert known_places(again, held) == frozenset()
    assert known_places(again, held[:1]) == {0}


@pytest.mark.parametrize(
    "said",
    [
        lambda n: a_servers_call(arguments=f'{{"key": {n}}}', output="3"),
        lambda n: a_servers_call(output=f"{n}"),
        lambda n: a_call(id=f"fc_{n}", name=f"f{n}", status="incomplete"),
        lambda n: a_message(f"{n}", role="assistant"),
        lambda n: item(type="reasoning", id="rs_1", summary=[f"{n}"]),
        lambda n: item(type="odd", id="odd_1", x=n),
    ],
    ids=["arguments", "outputs", "names", "words", "thoughts", "fields"],
)
def test_items_of_one_id_are_not_compared_one_by_one(said: Callable[[int], InputItem]) -> None:
    held, given = [said(n) for n in range(400)], [said(-1 - n) for n in range(400)]
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        assert known_places(given, held) == frozenset()
    finally:
        sys.setprofile(None)
    assert calls < 100 * len(held)
