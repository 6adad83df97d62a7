"""The events of a response that has ended, made from the response itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.api.events import (
    DELTAS,
    OutputItemAdded,
    ResponseCompleted,
    ResponseIncomplete,
    ResponseRequiresAction,
)
from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    LogProb,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    McpToolInfo,
    Message,
    OutputItem,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
    TopLogProb,
)
from antwort.api.responses import IncompleteDetails, Response, ResponseError, Usage
from antwort.api.wire import UNSET, decode, encode, replace
from antwort.engine.loop.fold import Run, fold
from antwort.engine.runs.replay import replay_events
from antwort.engine.settings import LoopSettings
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say, think
from antwort.testing.grammar import check_stream
from engine_kit import SERVER, WEATHER, ask, engine_of, name_of, replies, stream, weather_tool

words = st.text(st.sampled_from("aé\n{"), max_size=6)
some = st.text(st.sampled_from("abc"), min_size=1, max_size=6)
logprobs = st.lists(
    st.builds(
        LogProb,
        token=some,
        logprob=st.sampled_from([-0.5, -2.0]),
        top_logprobs=st.just((TopLogProb(token="a", logprob=-1.0),)),
    ),
    max_size=2,
).map(tuple)
notes = st.lists(st.just({"type": "url_citation", "url": "https://example.org"}), max_size=2).map(tuple)
texts = st.builds(OutputText, text=words, annotations=notes, logprobs=logprobs)
parts = st.lists(st.one_of(texts, st.builds(Refusal, refusal=words)), max_size=3).map(tuple)
closed = st.sampled_from(["completed", "incomplete"])
thoughts = st.lists(st.builds(ReasoningText, text=words), max_size=2).map(tuple)
summaries = st.lists(st.builds(SummaryText, text=words), max_size=2).map(tuple)
tools = (McpToolInfo(name="lookup", input_schema={"type": "object"}),)


spaces = st.sampled_from([UNSET, "team"])
items: st.SearchStrategy[OutputItem] = st.one_of(
    st.builds(Message, id=st.just(""), role=st.just("assistant"), content=parts, status=closed),
    st.builds(
        Reasoning,
        id=st.just(""),
        summary=summaries,
        content=st.one_of(st.just(UNSET), thoughts),
        encrypted_content=st.sampled_from([UNSET, "sealed"]),
        status=closed,
    ),
    st.builds(FunctionCall, id=st.just(""), call_id=st.just(""), name=some, arguments=words, namespace=spaces),
    st.builds(CustomToolCall, id=st.just(""), call_id=st.just(""), name=some, input=words, namespace=spaces),
    st.builds(
        FunctionCallOutput,
        id=st.just(""),
        call_id=st.just(""),
        output=st.one_of(words, st.just((InputText(text="a"),))),
        is_error=st.sampled_from([UNSET, True]),
    ),
    st.builds(CustomToolCallOutput, id=st.just(""), call_id=st.just(""), output=words),
    st.builds(McpListTools, id=st.just(""), server_label=some, tools=st.just(tools)),
    st.builds(McpListTools, id=st.just(""), server_label=some, tools=st.just(()), error=words),
    st.builds(McpCall, id=st.just(""), server_label=some, name=some, arguments=words, output=words),
    st.builds(
        McpCall,
        id=st.just(""),
        server_label=some,
        name=some,
        arguments=words,
        error=words,
        status=st.just("failed"),
    ),
    st.builds(McpCall, id=st.just(""), server_label=some, name=some, arguments=words, status=closed),
    st.builds(McpApprovalRequest, id=st.just(""), server_label=some, name=some, arguments=words),
)
"""One of each kind, as a run may leave it; ids are given later."""


def numbered(output: list[OutputItem]) -> tuple[OutputItem, ...]:
    """With ids of their own; what stands for a call or a result gets a call of its own, too."""
    known: list[OutputItem] = []
    for at, item in enumerate(output):
        fields: dict[str, Any] = {"id": f"item_{at}"}
        if hasattr(item, "call_id"):
            fields["call_id"] = f"call_{at}"
        known.append(replace(item, **fields))
    return tuple(known)


@st.composite
def responses(draw: st.DrawFn) -> Response:
    """A cancelled response may hold whatever its run had come to; others are less free, and tested below."""
    response = Response(
        id="resp_1",
        created_at=1_700_000_000,
        status="cancelled",
        model="test",
        output=numbered(draw(st.lists(items, max_size=6))),
        usage=draw(st.sampled_from([None, Usage(input_tokens=1, output_tokens=2, total_tokens=3)])),
        metadata={"topic": "weather"},
        tools=({"type": "function", "name": "look"},),
    )
    if draw(st.booleans()):
        failed = ResponseError(code="server_error", message="It broke.")
        return replace(response, status="failed", error=failed)
    return response


def check(response: Response, knobs: LoopSettings) -> None:
    events = replay_events(response, knobs)
    created = events[0]
    assert name_of(created) == "response.created"
    assert fold(Run(created.response), events).response == response  # type: ignore[union-attr]  # it is `created`
    assert check_stream(enumerate(events)) == response


@pytest.mark.proves("MISTAKE-30")
@settings(max_examples=200, deadline=None)
@given(responses())
def test_the_fold_of_the_replayed_events_is_the_response(response: Response) -> None:
    check(response, LoopSettings())


@settings(max_examples=50, deadline=None)
@given(responses())
def test_a_response_from_a_record_is_replayed_as_itself(response: Response) -> None:
    check(decode(encode(response), Response), LoopSettings())


CALL = FunctionCall(id="fc_1", call_id="call_1", name="weather", arguments="{}")


@pytest.mark.parametrize(
    ("response", "ends"),
    [
        ({"status": "completed", "completed_at": 1_700_000_001}, "response.completed"),
        ({"status": "requires_action", "output": (CALL,)}, "response.completed"),
        (
            {"status": "incomplete", "incomplete_details": IncompleteDetails(reason="max_turns")},
            "response.incomplete",
        ),
        ({"status": "failed", "error": ResponseError(code="backend_error", message="No.")}, "response.failed"),
        ({"status": "cancelled"}, "response.incomplete"),
    ],
)
def test_the_status_says_how_it_ends(response: dict[str, Any], ends: str) -> None:
    ended = Response(id="resp_1", created_at=1_700_000_000, model="test", **response)
    check(ended, LoopSettings())
    assert name_of(replay_events(ended)[-1]) == ends


def test_the_settings_say_by_which_event_a_response_ends_that_wants_an_action() -> None:
    response = Response(id="resp_1", created_at=1_700_000_000, model="test", status="requires_action", output=(CALL,))
    assert isinstance(replay_events(response)[-1], ResponseCompleted)
    assert isinstance(replay_events(response, LoopSettings(requires_action="event"))[-1], ResponseRequiresAction)


def test_an_item_is_added_as_clients_know_it() -> None:
    """Empty, and without what shows at the end only."""
    sealed = Reasoning(id="rs_1", summary=(SummaryText(text="s"),), encrypted_content="sealed")
    run = McpCall(id="mcp_1", server_label="depot", name="look", arguments="{}", output="found", call_id="call_2")
    response = Response(id="resp_1", created_at=1, model="test", status="completed", output=(sealed, CALL, run))
    added = [event.item for event in replay_events(response) if isinstance(event, OutputItemAdded)]
    assert added == [
        Reasoning(id="rs_1", status="in_progress"),
        replace(CALL, arguments="", status="in_progress"),
        replace(run, arguments="", status="in_progress", output=None),
    ]


async def test_the_events_of_a_run_are_those_it_sent_with_every_text_in_one_piece() -> None:
    provider = ScriptedProvider(
        answer(think("Hm."), say("Let me see."), call("weather", city="Paris")),
        answer(call("d_lookup", key="k")),
        answer(say("It is sunny.")),
    )
    depot = ToolServerFake("depot", prefix="d_", lookup=replies("found"))
    engine = engine_of(provider, weather_tool(), depot)
    sent = await stream(engine, ask(tools=[WEATHER, SERVER]))
    made = replay_events(sent.response)
    assert [name_of(event) for event in made] == _without_repeats(sent.names)
    assert [event for event in made if not isinstance(event, DELTAS)] == [
        event for event in sent.events if not isinstance(event, DELTAS)
    ]


def _without_repeats(names: list[str]) -> list[str]:
    return [name for name, before in zip(names, [None, *names], strict=False) if name != before]


async def test_a_run_that_was_cut_is_replayed_as_it_ended() -> None:
    provider = ScriptedProvider(answer(say("Half"), finish="length"))
    sent = await stream(engine_of(provider), ask())
    made = replay_events(sent.response)
    assert isinstance(made[-1], ResponseIncomplete)
    assert [name_of(event) for event in made] == sent.names
