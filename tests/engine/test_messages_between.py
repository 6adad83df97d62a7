"""Messages between a call and its result: one that was said before is dropped, a new one comes behind the results."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.items import FunctionCall, McpApprovalRequest
from antwort.api.wire import to_plain
from antwort.engine.engine import Engine
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from approval_kit import check_pairs
from conversation_kit import begun, user
from engine_kit import CLOCK, SERVER, WEATHER, ask, engine_of, function_calls, items_of, only, replies, sent
from plan_kit import STEADY

Plain = dict[str, Any]


def called(name: str) -> Plain:
    return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}


def result(name: str, output: Any = None) -> Plain:
    return {"type": "function_call_output", "call_id": name, "output": output or f"of {name}"}


def model(text: str) -> Plain:
    return {"role": "assistant", "content": text}


def developer(text: str) -> Plain:
    return {"role": "developer", "content": text}


THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}


def chat(provider: ScriptedProvider, at: int = -1) -> list[str]:
    """A message a line: the role, and what is called or said."""
    return [_line(message) for message in sent(provider.requests[at])["messages"]]


def _line(message: Plain) -> str:
    names = [each["function"]["name"] for each in message.get("tool_calls") or ()]
    return " ".join([message["role"], *names, *filter(None, [message["content"]])])


async def told(*items: Plain) -> list[str]:
    provider = ScriptedProvider(answer(say("Ok.")))
    await engine_of(provider).create(ask([*items], store=False))
    check_pairs(provider)
    return chat(provider)


# ---- in one input ----

ASKED, MORE = user("Time?"), user("Quick!")
ANSWERED = ["user Time?", "assistant a", "tool of a"]


@pytest.mark.proves("RULING-3a")
@pytest.mark.parametrize(
    "items",
    [
        [ASKED, called("a"), ASKED, result("a")],
        [ASKED, called("a"), ASKED, ASKED, result("a")],
        [ASKED, called("a"), {"role": "user", "content": [{"type": "input_text", "text": "Time?"}]}, result("a")],
        [ASKED, {**called("a"), "name": "a"}, {**ASKED, "id": "msg_x"}, result("a")],
    ],
    ids=["once", "twice", "in parts", "under another id"],
)
async def test_the_last_message_before_the_call_is_not_said_again(items: list[Plain]) -> None:
    assert await told(*items) == ANSWERED


@pytest.mark.parametrize("kind", ["custom_tool_call", "shell_call", "mcp_call"])
async def test_it_is_so_for_every_kind_of_call(kind: str) -> None:
    asked = {"type": kind, "call_id": "c", "name": "a", "input": "x", "server_label": "s", "arguments": "{}"}
    answered = {"type": f"{kind}_output" if kind != "mcp_call" else "function_call_output", "call_id": "c"}
    items = [ASKED, asked, ASKED, MORE, {**answered, "output": "of a"}]
    assert [line.split()[0] for line in await told(*items)] == ["user", "assistant", "tool", "user"]


async def test_words_of_the_model_beside_the_call_do_not_hide_the_last_message() -> None:
    assert await told(ASKED, model("Wait."), called("a"), ASKED, result("a")) == [
        "user Time?",
        "assistant a Wait.",
        "tool of a",
    ]


async def test_the_last_message_counts_for_each_role() -> None:
    items = [developer("Be brief."), ASKED, called("a"), developer("Be brief."), ASKED, result("a")]
    assert [line.split()[0] for line in await told(*items)] == ["system", "user", "assistant", "tool"]


async def test_the_models_own_words_are_not_said_again_either() -> None:
    assert await told(ASKED, model("Wait."), called("a"), model("Wait."), result("a")) == [
        "user Time?",
        "assistant a Wait.",
        "tool of a",
    ]


async def test_an_earlier_message_is_new_where_another_one_came_since() -> None:
    assert await told(MORE, ASKED, called("a"), MORE, result("a")) == ["user Quick!", *ANSWERED, "user Quick!"]


@pytest.mark.parametrize(
    "items",
    [[called("a"), result("a"), ASKED], [called("a"), ASKED], [called("a"), ASKED, model("Hm."), result("a")]],
    ids=["behind the result", "without a result", "the model has spoken since"],
)
async def test_a_message_that_is_not_between_is_said_as_often_as_it_was(items: list[Plain]) -> None:
    assert (await told(ASKED, *items)).count("user Time?") == 2


@pytest.mark.proves("RULING-3a")
@pytest.mark.parametrize(
    "items",
    [
        [called("a"), MORE, called("b"), result("a"), result("b")],
        [called("a"), called("b"), MORE, result("a"), result("b")],
        [called("a"), called("b"), result("b"), MORE, result("a")],
        [called("a"), MORE, called("b"), result("b"), result("a")],
        [called("a"), MORE, called("b"), result("a"), ASKED, result("b")],
    ],
    ids=["between calls", "behind the calls", "between results", "results in another order", "and the old one"],
)
async def test_a_new_message_is_shown_behind_the_results_of_its_turn(items: list[Plain]) -> None:
    expected = ["user Time?", "assistant a b", "tool of a", "tool of b", "user Quick!"]
    assert await told(ASKED, *items) == expected
    later = [model("Noon."), user("Thanks")]
    assert await told(ASKED, *items, *later) == [*expected, "assistant Noon.", "user Thanks"]


async def test_several_messages_keep_their_order() -> None:
    items = [called("a"), user("1"), called("b"), user("2"), result("a"), user("3"), result("b"), user("4")]
    assert (await told(ASKED, *items))[4:] == ["user 1", "user 2", "user 3", "user 4"]


async def test_a_call_behind_results_is_of_the_next_turn() -> None:
    items = [called("a"), MORE, result("a"), called("b"), user("More!"), result("b")]
    assert await told(ASKED, *items) == [*ANSWERED, "user Quick!", "assistant b", "tool of b", "user More!"]


@pytest.mark.parametrize("words", [model("Hm."), THOUGHT])
async def test_what_the_model_says_after_a_message_is_its_answer_to_it(words: Plain) -> None:
    """A result that comes later still is of the call, wherever it stands."""
    items = [called("a"), MORE, words, called("b"), result("a"), result("b")]
    lines = await told(ASKED, *items)
    assert [line.removesuffix(" Hm.") for line in lines] == [*ANSWERED, "user Quick!", "assistant b", "tool of b"]


async def test_a_call_that_is_answered_after_the_model_went_on_keeps_what_was_said_meanwhile() -> None:
    items = [called("a"), MORE, called("b"), result("b"), model("Half."), result("a"), user("And?")]
    assert await told(ASKED, *items) == [
        *ANSWERED,
        "user Quick!",
        "assistant b",
        "tool of b",
        "assistant Half.",
        "user And?",
    ]


# ---- over several requests ----


@pytest.fixture(params=["conversation", "previous_response_id"])
def goes_by(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.proves("RULING-3a")
async def test_the_question_may_come_again_with_each_result(goes_by: str) -> None:
    provider = ScriptedProvider(
        answer(call("clock")), answer(call("weather")), answer(say("Sunny.")), answer(say("Ok"))
    )
    engine = engine_of(provider)
    fields: Plain = {"conversation": await begun(engine)} if goes_by == "conversation" else {}
    items = [ASKED]
    for _ in range(4):
        response = await engine.create(ask(items, tools=[CLOCK, WEATHER], **fields))
        if goes_by == "previous_response_id":
            fields = {"previous_response_id": response.id}
        calls = [result(item.call_id, item.name) for item in function_calls(response)]
        items = [ASKED, *calls] if calls else [user("Thanks")]
    assert chat(provider) == [
        "user Time?",
        "assistant clock",
        "tool clock",
        "assistant weather",
        "tool weather",
        "assistant Sunny.",
        "user Thanks",
    ]


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_user_may_steer_while_tools_run(goes_by: str, place: int) -> None:
    provider = ScriptedProvider(answer(call("clock"), call("weather")), answer(say("Ok.")), answer(say("Bye.")))
    engine = engine_of(provider)
    fields: Plain = {"conversation": await begun(engine)} if goes_by == "conversation" else {}
    first = await engine.create(ask([ASKED], tools=[CLOCK, WEATHER], **fields))
    items = [result(item.call_id, item.name) for item in function_calls(first)]
    items.insert(place, MORE)
    for new in (items, [user("Thanks")]):
        if goes_by == "previous_response_id":
            fields = {"previous_response_id": first.id}
        first = await engine.create(ask(new, tools=[CLOCK, WEATHER], **fields))
    steered = ["user Time?", "assistant clock weather", "tool clock", "tool weather", "user Quick!"]
    assert chat(provider, 1) == steered
    assert chat(provider) == [*steered, "assistant Ok.", "user Thanks"]


@pytest.mark.proves("RULING-3a")
async def test_a_correction_stands_before_the_call_that_it_led_to(goes_by: str) -> None:
    """The client leaves a call open, corrects itself, and brings both results later."""
    provider = ScriptedProvider(answer(call("clock")), answer(call("weather")), answer(say("Sunny.")))
    engine = engine_of(provider)
    fields: Plain = {"conversation": await begun(engine)} if goes_by == "conversation" else {}
    results: list[Plain] = []
    for items in ([ASKED], [MORE], results):
        response = await engine.create(ask(items, tools=[CLOCK, WEATHER], **fields))
        if goes_by == "previous_response_id":
            fields = {"previous_response_id": response.id}
        results += [result(item.call_id, item.name) for item in function_calls(response)]
    assert chat(provider) == [
        "user Time?",
        "assistant clock",
        "tool clock",
        "user Quick!",
        "assistant weather",
        "tool weather",
    ]


async def test_the_same_words_to_a_call_that_is_left_open_are_said_again() -> None:
    """The client goes on without a result: then it says what it says."""
    provider = ScriptedProvider(answer(call("clock")), answer(say("Hm.")), answer(say("Noon.")))
    engine = engine_of(provider)
    first = await engine.create(ask([ASKED], tools=[CLOCK]))
    second = await engine.create(ask([ASKED], previous_response_id=first.id))
    assert chat(provider).count("user Time?") == 2
    await engine.create(ask([result(only(first, FunctionCall).call_id, "noon")], previous_response_id=second.id))
    assert chat(provider) == ["user Time?", "assistant clock", "tool noon", "user Time?", "assistant Hm."]


async def test_messages_beside_a_decision_come_behind_what_it_led_to() -> None:
    server = ToolServerFake("depot", ship=replies("shipped"))
    provider = ScriptedProvider(answer(call("ship")), answer(say("Done.")), answer(say("Bye.")))
    engine = engine_of(provider, server)
    first = await engine.create(ask([ASKED], tools=[{**SERVER, "require_approval": "always"}]))
    (request,) = items_of(first, McpApprovalRequest)
    decision = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    second = await engine.create(ask([ASKED, MORE, decision], previous_response_id=first.id))
    expected = ["user Time?", "assistant ship", "tool shipped", "user Quick!"]
    assert chat(provider) == expected
    await engine.create(ask([user("Thanks")], previous_response_id=second.id))
    assert chat(provider) == [*expected, "assistant Done.", "user Thanks"]


async def test_a_servers_call_of_a_paused_turn_is_run_and_the_message_comes_behind_it(goes_by: str) -> None:
    server = ToolServerFake("depot", lookup=replies("found"))
    provider = ScriptedProvider(answer(call("lookup"), call("clock")), answer(say("Ok.")))
    engine = engine_of(provider, server)
    fields: Plain = {"conversation": await begun(engine)} if goes_by == "conversation" else {}
    first = await engine.create(ask([ASKED], tools=[SERVER, CLOCK], **fields))
    if goes_by == "previous_response_id":
        fields = {"previous_response_id": first.id}
    items = [ASKED, MORE, result(only(first, FunctionCall).call_id, "noon")]
    await engine.create(ask(items, tools=[SERVER, CLOCK], **fields))
    assert chat(provider) == ["user Time?", "assistant lookup clock", "tool found", "tool noon", "user Quick!"]


async def test_a_client_that_keeps_its_history_may_have_a_message_behind_the_calls_of_a_paused_turn() -> None:
    server = ToolServerFake("depot", lookup=replies("found"))
    provider = ScriptedProvider(answer(call("lookup"), call("clock")), answer(say("Ok.")))
    engine = engine_of(provider, server)
    first = await engine.create(ask([ASKED], tools=[SERVER, CLOCK], store=False))
    *listed, lookup, clock = map(to_plain, first.output)
    items = [ASKED, *listed, lookup, clock, MORE, result(clock["call_id"], "noon")]
    await engine.create(ask(items, tools=[SERVER, CLOCK], store=False))
    assert chat(provider) == ["user Time?", "assistant lookup clock", "tool found", "tool noon", "user Quick!"]
    assert len(server.calls) == 1


async def test_a_message_that_was_added_to_the_conversation_meanwhile_comes_behind_the_result() -> None:
    provider = ScriptedProvider(answer(call("clock")), answer(say("Ok.")))
    engine = engine_of(provider)
    conversation = await begun(engine)
    first = await engine.create(ask([ASKED], tools=[CLOCK], conversation=conversation))
    await engine.conversations.add(conversation, [ASKED, MORE])
    items = [result(only(first, FunctionCall).call_id, "noon")]
    await engine.create(ask(items, tools=[CLOCK], conversation=conversation))
    assert chat(provider) == ["user Time?", "assistant clock", "tool noon", "user Quick!"]


async def test_any_number_of_messages_may_stand_between() -> None:
    steering = [user(f"{number}") for number in range(900)]
    lines = await told(ASKED, called("a"), *steering, called("b"), result("a"), result("b"))
    assert lines[:4] == ["user Time?", "assistant a b", "tool of a", "tool of b"]
    assert len(lines) == 904


# ---- whatever stands wherever ----


class Turn(msgspec.Struct, frozen=True):
    """What the user says, and what the model calls."""

    kinds: tuple[str, ...]
    order: int
    """Which of the orders of the results."""
    has_words: bool
    """Whether the model says something first."""


class Insert(msgspec.Struct, frozen=True):
    turn: int
    place: int
    kind: str


KINDS = st.sampled_from(["function", "custom", "foreign", "server", "server by id"])
TURNS = st.lists(
    st.builds(Turn, st.lists(KINDS, min_size=1, max_size=3).map(tuple), st.integers(0, 5), st.booleans()),
    min_size=1,
    max_size=4,
)
INSERTS = st.lists(
    st.builds(Insert, st.integers(0, 3), st.integers(0, 20), st.sampled_from(["new", "said", "result", "in parts"])),
    max_size=8,
)


def ask_of(kind: str, call_id: str) -> Plain:
    match kind:
        case "function":
            return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}
        case "custom":
            return {"type": "custom_tool_call", "call_id": call_id, "name": "g", "input": "x"}
        case "foreign":
            return {"type": "shell_call", "call_id": call_id, "action": {}}
        case _:
            head = {"type": "mcp_call", "id": f"mcp_{call_id}", "call_id": call_id, "server_label": "depot"}
            return {**head, "name": "h", "arguments": "{}"}


def answer_of(kind: str, call_id: str) -> Plain:
    names = {"custom": "custom_tool_call_output", "foreign": "shell_call_output"}
    named = f"mcp_{call_id}" if kind == "server by id" else call_id
    return {"type": names.get(kind, "function_call_output"), "call_id": named, "output": f"of {call_id}"}


class Story(msgspec.Struct):
    """A history, with and without what stands in wrong places of it."""

    clean: list[Plain] = []
    mixed: list[Plain] = []
    moved: list[list[str]] = []
    """By turn: the new messages between its calls and results."""
    repeated: list[Plain] = []
    """The results in `mixed` that are there twice."""
    splits: list[int] = []
    """The places in `mixed` that do not part the calls of a turn."""


def story(turns: list[Turn], inserts: list[Insert]) -> Story:
    found = Story()
    results: list[Plain] = []
    for number, turn in enumerate(turns):
        ids = [f"{number}-{at}" for at in range(len(turn.kinds))]
        calls = [ask_of(kind, call_id) for kind, call_id in zip(turn.kinds, ids, strict=True)]
        answers = [answer_of(kind, call_id) for kind, call_id in zip(turn.kinds, ids, strict=True)]
        for _ in range(turn.order):
            answers = [*answers[1:], answers[0]][:: -1 if turn.order % 2 else 1]
        head = [user(f"Question {number}"), *([model(f"Words {number}")] if turn.has_words else [])]
        results += answers
        found.clean += [*head, *calls, *answers]
        mixed = [*calls, *answers]
        for at, insert in enumerate(each for each in inserts if each.turn == number):
            if insert.kind in ("new", "said"):
                said = user(f"Steering {number} {at}") if insert.kind == "new" else head[0]
                first, last = _place(mixed, calls[0]), _place(mixed, answers[-1])
                mixed.insert(first + 1 + insert.place % (last - first), said)
            else:
                again = results[insert.place % len(results)]
                behind = _place(mixed, again) + 1
                parts = [{"type": "input_text", "text": again["output"]}]
                found.repeated.append({**again, "output": parts if insert.kind == "in parts" else again["output"]})
                mixed.insert(behind + insert.place % (len(mixed) - behind + 1), found.repeated[-1])
        start = len(found.mixed) + len(head)
        found.splits += [len(found.mixed), *range(start + _place(mixed, calls[-1]) + 1, start + len(mixed) + 1)]
        found.mixed += [*head, *mixed]
        found.moved.append([item["content"] for item in mixed if item.get("role") == "user" and item != head[0]])
    return found


def _place(items: list[Plain], item: Plain) -> int:
    """Where that very item stands; before the first where it does not."""
    return next((at for at, each in enumerate(items) if each is item), -1)


def expected(lines: list[str], moved: list[list[str]]) -> list[str]:
    """The chat of the clean history, with the new messages behind the results of their turns."""
    found: list[str] = []
    rest = [*moved]
    for line, follows in zip(lines, [*lines[1:], ""], strict=True):
        found.append(line)
        if line.startswith("tool") and not follows.startswith("tool"):
            found += [f"user {text}" for text in rest.pop(0)]
    return found


async def play(turns: list[Turn], inserts: list[Insert], split: int | None) -> None:
    told_so = story(turns, inserts)
    provider = ScriptedProvider(answer(say("Ok.")), answer(say("Ok.")))
    engine = engine_of(provider)
    await engine.create(ask(told_so.clean, store=False))
    clean = chat(provider)
    if split is None:
        await engine.create(ask(told_so.mixed, store=False))
    else:
        await _continued(engine, told_so, split)
    check_pairs(provider)
    assert chat(provider) == expected(clean, told_so.moved)


async def _continued(engine: Engine, told_so: Story, split: int) -> None:
    """The first items stand in a conversation, which has no result twice."""
    items, split = told_so.mixed, told_so.splits[split % len(told_so.splits)]
    conversation = await begun(engine)
    held = [item for item in items[:split] if _place(told_so.repeated, item) < 0]
    for start in range(0, len(held), 20):
        await engine.conversations.add(conversation, held[start : start + 20])
    await engine.create(ask(items[split:], conversation=conversation))


@pytest.mark.proves("RULING-3a")
@STEADY
@given(TURNS, INSERTS)
def test_messages_and_repeated_results_change_nothing_but_what_is_new(turns: list[Turn], inserts: list[Insert]) -> None:
    asyncio.run(play(turns, inserts, None))


@STEADY
@given(TURNS, INSERTS, st.integers(0, 30))
def test_it_is_so_where_a_conversation_holds_the_beginning(
    turns: list[Turn], inserts: list[Insert], split: int
) -> None:
    asyncio.run(play(turns, inserts, split))
