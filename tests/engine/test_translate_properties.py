"""Whatever was said before, the messages are a conversation that a backend takes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from antwort.api.decoding import at_once
from antwort.api.events import Mark
from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    InputText,
    McpCall,
    McpListTools,
    Message,
    OpaqueItem,
    OutputItem,
)
from antwort.api.wire import UNSET
from antwort.engine.history.calls import call_id_of
from antwort.engine.prompt.chat_request import Prompt, chat_request, conversation_steps, effective_history
from antwort.providers.base import ChatMessage
from engine_kit import SERVER, WEATHER, ask
from plan_kit import STEADY, called, depot, ended, plan_of, ran, result, run_of, said, server_called, thought

PLAN = asyncio.run(plan_of(ask(tools=[WEATHER, SERVER]), depot(), items=()))

_numbers = st.integers(1, 4)
_cut = st.sampled_from(["completed", "completed", "incomplete"])
_spoken = st.sampled_from(
    [
        said("Hi"),
        said(""),
        thought("hm"),
        Message(id="msg_2", role="user", content=(InputText(text="Well?"),)),
        Message(id="msg_3", role="system", content=()),
        McpListTools(id="mcpl_1", server_label="depot", tools=()),
        OpaqueItem("web_search_call", "ws_1", {"type": "web_search_call"}),
    ]
)
_arguments = st.sampled_from(["", "{}", '{"city": "Rome"}', '{"city', "null", "[]", '"Rome"', "plain words", "5", " "])
_foreign = st.builds(
    lambda n, text: OpaqueItem("x_call", f"x_{n}", {"type": "x_call", "call_id": f"call_{n}", "arguments": text}),
    st.integers(5, 6),
    _arguments,
)
_calls = st.one_of(
    st.builds(lambda n, status, text: called(n, status=status, arguments=text), _numbers, _cut, _arguments),
    st.builds(
        lambda n, status, output, name: server_called(n, name, status=status, output=output),
        _numbers,
        st.sampled_from(["completed", "failed", "incomplete"]),
        st.sampled_from(["3 left", None]),
        st.sampled_from(["stock", "dance"]),
    ),
    st.builds(
        lambda n, status: CustomToolCall(id=f"ctc_{n}", call_id=f"call_{n}", name="patch", input="x", status=status),
        _numbers,
        _cut,
    ),
)
_results = st.one_of(
    st.builds(result, _numbers),
    st.builds(lambda n: CustomToolCallOutput(id=f"ctco_{n}", call_id=f"call_{n}", output="y"), _numbers),
)
_foreign_results = st.builds(
    lambda n: OpaqueItem("x_call_output", f"y_{n}", {"type": "x_call_output", "call_id": f"call_{n}", "output": "z"}),
    st.integers(5, 6),
)
_items: st.SearchStrategy[InputItem] = st.one_of(_spoken, _calls, _results)
_histories = st.lists(st.lists(_items, max_size=6).map(tuple), max_size=5).map(tuple)


def messages_after(earlier: tuple[tuple[InputItem, ...], ...]) -> list[ChatMessage]:
    plan = asyncio.run(plan_of(ask(tools=[WEATHER, SERVER]), depot(), earlier=earlier, items=()))
    return chat_request(run_of(plan), plan).messages


@STEADY
@given(_histories)
def test_every_call_is_followed_by_its_results_and_no_result_stands_alone(
    earlier: tuple[tuple[InputItem, ...], ...],
) -> None:
    waiting: list[str] = []
    for message in messages_after(earlier):
        if message.role == "tool":
            assert waiting, "a result without its call, or in the wrong place"
            assert message.tool_call_id == waiting.pop(0)
        else:
            assert not waiting, "something stands between a call and its result"
        if message.tool_calls is not UNSET:
            assert message.role == "assistant"
            waiting = [call.id for call in message.tool_calls]
    assert not waiting


@STEADY
@given(_histories)
def test_every_whole_call_is_asked_exactly_once(earlier: tuple[tuple[InputItem, ...], ...]) -> None:
    asked = [
        call.id for message in messages_after(earlier) if message.tool_calls is not UNSET for call in message.tool_calls
    ]
    assert Counter(asked) == _whole_calls([item for stretch in earlier for item in stretch])


@STEADY
@given(st.lists(st.lists(st.one_of(_items, _foreign, _foreign_results), max_size=6).map(tuple), max_size=4).map(tuple))
def test_arguments_that_reach_a_backend_are_always_an_object(earlier: tuple[tuple[InputItem, ...], ...]) -> None:
    for message in messages_after(earlier):
        for call in message.tool_calls or ():
            assert isinstance(json.loads(call.function.arguments), dict)


def _whole_calls(items: Sequence[InputItem]) -> Counter[str]:
    """A server's call may show twice, where it was asked for and where it was run; others repeat only their ids."""
    whole = [item for item in items if getattr(item, "status", "incomplete") != "incomplete"]
    servers = {call_id_of(item) for item in whole if isinstance(item, McpCall)}
    others = [item.call_id for item in whole if isinstance(item, FunctionCall | CustomToolCall)]
    return Counter([*servers, *others])


@STEADY
@given(_histories)
def test_what_was_said_is_said_in_its_order(earlier: tuple[tuple[InputItem, ...], ...]) -> None:
    marked = tuple(tuple(_marked(item, f"{i}-{j}") for j, item in enumerate(items)) for i, items in enumerate(earlier))
    texts = [message.content for message in messages_after(marked) if message.role in ("user", "assistant")]
    said_now = "\n".join(text for text in texts if isinstance(text, str) and text).splitlines()
    assert said_now == [f"{i}-{j}" for i, items in enumerate(marked) for j, item in enumerate(items) if _speaks(item)]


def _speaks(item: InputItem) -> bool:
    return isinstance(item, Message) and bool(item.content)


def _marked(item: InputItem, text: str) -> InputItem:
    """The same message with a text that tells where it stood."""
    if not isinstance(item, Message) or not item.content:
        return item
    return Message(id=item.id, role=item.role, content=(InputText(text=text),))


@STEADY
@given(st.lists(st.lists(_numbers, unique=True, max_size=3), max_size=4), st.booleans())
def test_the_turns_of_a_run_are_calls_and_their_results(turns: list[list[int]], are_servers: bool) -> None:
    """The messages of the run itself, turn by turn, as the loop makes them."""
    happened: list[OutputItem | Mark] = []
    expected: list[str] = []
    for i, numbers in enumerate(turns):
        ids = [10 * i + n for n in numbers]
        if are_servers:
            happened += [server_called(n, status="completed", output="3") for n in ids]
            happened += [ended(), *(ran(n) for n in ids)]
        else:
            happened += [called(n) for n in ids]
            happened += [ended()]
            happened += [each for n in ids for each in (result(n), ran(n))]
        if ids:
            expected += ["assistant", *(f"call_{n}" for n in ids)]
    sent = chat_request(run_of(PLAN, *happened), PLAN).messages
    assert [message.role if message.role != "tool" else message.tool_call_id for message in sent] == expected


_words = st.sampled_from([said("Hi"), said("Well", status="incomplete"), thought("hm")])


@STEADY
@given(
    _histories,
    st.lists(st.tuples(st.lists(_words, max_size=2), st.lists(_numbers, unique=True, max_size=3)), max_size=4),
    st.booleans(),
)
def test_going_on_from_the_turns_before_says_the_same_as_telling_all_of_it(
    earlier: tuple[tuple[InputItem, ...], ...],
    turns: list[tuple[list[OutputItem], list[int]]],
    are_servers: bool,
) -> None:
    plan = asyncio.run(plan_of(ask(tools=[WEATHER, SERVER]), depot(), earlier=earlier, items=()))
    happened: list[OutputItem | Mark] = []
    prompt = Prompt(plan)
    for i, (words, numbers) in enumerate(turns):
        ids = [10 * (i + 1) + n for n in numbers]
        happened += words
        if are_servers:
            happened += [server_called(n, status="completed", output=f"{n} left") for n in ids]
        else:
            happened += [called(n) for n in ids]
        happened.append(ended())
        happened += [ran(n) for n in ids] if are_servers else [e for n in ids for e in (result(n, f"{n}"), ran(n))]
        run = run_of(plan, *happened)
        anew = at_once(conversation_steps(effective_history(run, plan), plan)).messages
        assert at_once(prompt.request_steps(run)).messages == chat_request(run, plan).messages == anew


def test_a_result_counts_for_its_call_and_for_no_other() -> None:
    output = FunctionCallOutput(id="fco_1", call_id="call_2", output="two")
    sent = messages_after(((called(1), called(2)), (output,)))
    assert [(message.tool_call_id, message.content) for message in sent[1:]] == [
        ("call_1", "No result was given for this call."),
        ("call_2", "two"),
    ]
