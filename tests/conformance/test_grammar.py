"""The stream-grammar checker: it takes what follows the grammar, and names the rule of what does not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antwort.api import events as ev
from antwort.api.items import FunctionCallOutput, Message, OutputText, ReasoningText, Refusal, SummaryText
from antwort.api.wire import UNSET, replace
from antwort.testing import base_grammar, call_grammar, grammar, item_grammar, part_grammar
from antwort.testing.grammar import GrammarError, StreamChecker, check_stream
from conformance.mutations import (
    Mutation,
    become,
    change,
    change_item,
    change_part,
    change_response,
    drop,
    insert,
    move,
    repeat,
    swap,
)
from conformance.sample_streams import (
    CITATION,
    CREATED,
    QUEUED,
    ROUND,
    TOOLS,
    VALID,
    Events,
    Item,
    custom_call,
    ended,
    function_call,
    in_order,
    mcp_call,
    message,
    output_of,
    reasoning,
    result,
    stream,
)
from conformance.sample_streams import CUSTOM as CUSTOM_ANSWERED


@pytest.mark.proves("RULING-11")
@pytest.mark.parametrize("name", VALID)
def test_a_stream_that_follows_the_grammar_gives_its_response(name: str) -> None:
    last = VALID[name][-1]
    assert isinstance(last, ev.TERMINAL)
    assert check_stream(enumerate(VALID[name])) == last.response


ADDED, DONE = ev.OutputItemAdded, ev.OutputItemDone
HERE: dict[str, Any] = {"item_id": "msg_1", "output_index": 0}
LATE_ITEM = ev.OutputItemAdded(
    output_index=1, item=Message(id="msg_1", role="assistant", content=(), status="in_progress")
)
TEXT = ev.OutputTextDelta(**HERE, content_index=0, delta="x")
TEXT_IN_CALL = replace(TEXT, item_id="fc_1")
TEXT_IN_SERVERS = replace(TEXT, item_id="mcp_1")
TEXT_IN_LIST = replace(TEXT, item_id="mcpl_1")
TEXT_IN_RESULT = replace(TEXT, item_id="fco_1", output_index=2)
FIRST_CUT = in_order(message("msg_1", "a", status="incomplete"), message("msg_2", "b"))
ONE_CUT = in_order(message("msg_1", "a", status="incomplete"))
SECOND_CALL = [*in_order(function_call("fc_1", "call_1", "{}")), *in_order(function_call("fc_2", "call_2"), first=1)]
STILL_RUNNING = ev.McpCallInProgress(item_id="mcp_1", output_index=2)
HALF_WAY = ev.McpCallProgress(item_id="mcp_1", output_index=2, progress=1.0, total=2.0)
GOES_ON = ev.ResponseInProgress(response=CREATED)
TEXT_IN_CUSTOM = replace(TEXT, item_id="ctc_1")
WORK = "a call run here"
CUSTOM = "a custom call"
SERVER = "a server's calls, side by side"
RICH = "two parts, a citation and logprobs"
SUMMARIES = "reasoning with summaries"


MUTATIONS: list[tuple[str, Mutation, str]] = [
    # the life of the response
    ("text", drop(ev.ResponseCreated), "response.created comes first"),
    ("text", repeat(ev.ResponseCreated), "response.created comes first"),
    ("text", swap(ev.ResponseCreated, ev.ResponseInProgress), "response.created comes first"),
    ("text", change_response(ev.ResponseCreated, status="completed"), "status cannot be completed yet"),
    ("text", change_response(ev.ResponseCreated, output=output_of(ROUND)), "sent without output"),
    ("text", change_response(ev.ResponseInProgress, output=output_of(ROUND)), "sent without output"),
    ("text", change_response(ev.ResponseCreated, completed_at=1), "no outcome yet"),
    ("text", change_response(ev.ResponseInProgress, status="completed"), "status is completed here"),
    ("text", change_response(ev.ResponseInProgress, id="resp_2"), "not the one that was created"),
    ("text", change_response(ev.ResponseInProgress, created_at=2), "not the one that was created"),
    ("text", change_response(ev.ResponseCompleted, id="resp_2"), "not the one that was created"),
    ("text", change_response(ev.ResponseCompleted, created_at=2), "not the one that was created"),
    ("text", change_response(ev.ResponseCompleted, model="large"), "not the one that was created"),
    ("text", drop(ev.ResponseInProgress), "items come after response.in_progress"),
    ("no output at all", drop(ev.ResponseInProgress), "response.in_progress comes before the end"),
    ("text", repeat(ev.ResponseInProgress), "response.in_progress comes once"),
    (WORK, insert(ev.ResponseInProgress(response=CREATED), after=DONE), "response.in_progress comes once"),
    ("text", insert(ev.ResponseQueued(response=QUEUED), after=ev.ResponseCreated), "queued once, before it starts"),
    ("queued first", repeat(ev.ResponseQueued), "queued once, before it starts"),
    ("queued first", change_response(ev.ResponseQueued, status="in_progress"), "status is in_progress here"),
    ("cancelled while queued", become([ev.ResponseCreated(response=QUEUED), ended([])]), "cannot go from queued"),
    (
        "text",
        insert(ev.ErrorEvent(code="c", message="m", param=None, error={}), after=ADDED),
        "a failure is response.failed",
    ),
    # the end
    ("text", repeat(ev.ResponseCompleted), "nothing comes after the terminal event"),
    ("text", insert(ev.ResponseInProgress(response=CREATED), after=ev.ResponseCompleted), "after the terminal event"),
    ("text", drop(ev.ResponseCompleted), "without a terminal event"),
    ("text", drop(DONE), "every item is done before the response ends"),
    ("text", change_response(ev.ResponseCompleted, output=()), "output is not the items as they were done"),
    ("calls side by side", change_response(ev.ResponseCompleted, output=output_of(ROUND)), "output is not the items"),
    ("text", change_response(ev.ResponseCompleted, status="failed"), "status failed does not fit"),
    ("text", change_response(ev.ResponseCompleted, status="in_progress"), "status in_progress does not fit"),
    ("failed, with items cut", change_response(ev.ResponseFailed, status="completed"), "does not fit"),
    ("failed, with items cut", change_response(ev.ResponseFailed, error=None), "an error if and only if"),
    ("the turn limit", change_response(ev.ResponseIncomplete, status="completed"), "does not fit"),
    (
        "the turn limit",
        change_response(ev.ResponseIncomplete, incomplete_details=None),
        "incomplete_details if and only",
    ),
    ("requires_action as an event", change_response(ev.ResponseRequiresAction, status="completed"), "does not fit"),
    ("text", change_response(ev.ResponseCompleted, status="requires_action"), "holds a call for the client"),
    (WORK, change_response(ev.ResponseCompleted, status="requires_action"), "holds a call for the client"),
    ("text", become(stream(ONE_CUT)), "an incomplete item makes the response incomplete"),
    ("text", become(stream(FIRST_CUT, "incomplete", reason="max_output_tokens")), "an incomplete item is the last one"),
    # items
    ("text", change(ADDED, output_index=1), "the next item has output_index 0"),
    (WORK, change(ADDED, 1, output_index=0), "the next item has output_index 1"),
    (WORK, change(DONE, 1, output_index=0), "is done already"),
    (WORK, change(DONE, 1, output_index=7), "no item with output_index 7"),
    (WORK, change(ev.OutputTextDelta, output_index=-1), "no item with output_index -1"),
    (WORK, insert(LATE_ITEM, after=DONE), "there is an item msg_1 already"),
    ("text", change_item(ADDED, id=""), "every item has an id"),
    ("text", change_item(ADDED, status="completed"), "added with status in_progress"),
    ("text", change_item(ADDED, role="user"), "the assistant's"),
    ("text", change_item(ADDED, content=(OutputText(text="x"),)), "a message is added without content"),
    (SUMMARIES, change_item(ADDED, summary=(SummaryText(text="x"),)), "reasoning is added without"),
    (SUMMARIES, change_item(ADDED, content=(ReasoningText(text="x"),)), "reasoning is added without"),
    ("a call for the client", change_item(ADDED, arguments="{}"), "a call is added with empty arguments"),
    ("a paused call", change_item(ADDED, 1, arguments="{}"), "a call is added with empty arguments"),
    (SERVER, change_item(ADDED, 2, output="3"), "added without output and error"),
    (SERVER, change_item(ADDED, 0, tools=TOOLS), "an open list of tools is added empty"),
    (WORK, change_item(ADDED, 2, output="4"), "the item's output changed"),
    ("an approval", change_item(ADDED, arguments="[]"), "an item that was added whole does not change"),
    ("text", change_item(DONE, id="msg_9"), "the item's id changed"),
    ("a call for the client", change_item(DONE, call_id="call_9"), "the item's call_id changed"),
    ("a call for the client", change_item(DONE, name="sub"), "the item's name changed"),
    (SERVER, change_item(DONE, 0, server_label="other"), "the item's server_label changed"),
    (
        "text",
        change(DONE, item=FunctionCallOutput(id="msg_1", call_id="c", output="")),
        "the item was added as message",
    ),
    ("text", change_item(DONE, status="in_progress"), "not done with status in_progress"),
    ("text", change(ev.OutputTextDelta, item_id="msg_9"), "item_id is msg_9"),
    (WORK, insert(TEXT, after=DONE), "done and not touched"),
    ("text", repeat(DONE), "item msg_1 is done already"),
    ("text", swap(ADDED, ev.ContentPartAdded), "no item with output_index 0"),
    (
        "text",
        insert(ev.ArgumentsDelta(**HERE, delta="x"), after=ADDED),
        "not happen inside an item of type message",
    ),
    ("a call for the client", change(ev.ArgumentsDone, name="sub"), "the call is to add, not to sub"),
    ("a call for the client", insert(TEXT_IN_CALL, after=ADDED), "not happen inside an item of type function_call"),
    ("a server's call without a call_id", insert(TEXT_IN_SERVERS, after=ADDED), "inside an item of type mcp_call"),
    ("a list of tools, added whole", insert(TEXT_IN_LIST, after=ADDED), "inside an item of type mcp_list_tools"),
    (WORK, insert(TEXT_IN_RESULT, after=ADDED, nth=2), "inside an item of type function_call_output"),
    # parts
    ("text", drop(ev.ContentPartAdded), "no part with index 0"),
    ("text", change(ev.ContentPartAdded, content_index=1), "the next part has index 0"),
    (RICH, change(ev.ContentPartAdded, 1, content_index=0), "the next part has index 1"),
    (RICH, swap(ev.ContentPartDone, ev.ContentPartAdded, other_nth=1), "the part before it is still open"),
    (RICH, change(ev.RefusalDelta, content_index=0), "part 0 is done and not touched"),
    ("text", change(ev.ContentPartAdded, part=ReasoningText(text="")), "has no place in this item"),
    ("reasoning", change(ev.ContentPartAdded, part=OutputText(text="")), "has no place in this item"),
    ("text", change_part(ev.ContentPartAdded, text="x"), "a part is added empty"),
    (SUMMARIES, change_part(ev.SummaryPartAdded, text="x"), "a part is added empty"),
    ("text", change(ev.OutputTextDelta, delta="Jello"), "not the sum of its deltas"),
    ("text", drop(ev.OutputTextDelta), "not the sum of its deltas"),
    ("text", repeat(ev.OutputTextDelta), "not the sum of its deltas"),
    ("text", swap(ev.OutputTextDelta, ev.OutputTextDelta, other_nth=1), "not the sum of its deltas"),
    ("text", change(ev.OutputTextDone, text=""), "not the sum of its deltas"),
    ("text", swap(ev.OutputTextDelta, ev.OutputTextDone, nth=2), "not the sum of its deltas"),
    ("text", repeat(ev.OutputTextDone), "the whole text of a part comes exactly once"),
    (
        "text",
        insert(ev.OutputTextDelta(**HERE, content_index=0, delta=""), after=ev.OutputTextDone),
        "no delta comes after",
    ),
    ("text", drop(ev.OutputTextDone), "a part is done only after its whole text"),
    ("text", drop(ev.ContentPartDone), "a part is still open"),
    ("text", change_part(ev.ContentPartDone, text="Jello"), "the part is not the sum of its events"),
    ("text", change(ev.ContentPartDone, part=Refusal(refusal="")), "the part was added as output_text"),
    ("text", change_item(DONE, content=()), "the item's content is not its parts"),
    ("text", change_item(DONE, content=(OutputText(text="Jello"),)), "the item's content is not its parts"),
    (RICH, change(ev.OutputTextDone, logprobs=()), "the logprobs of the whole text"),
    (RICH, drop(ev.AnnotationAdded), "the part is not the sum of its events"),
    (RICH, repeat(ev.AnnotationAdded), "annotations are numbered one by one"),
    (
        RICH,
        insert(
            ev.AnnotationAdded(**HERE, content_index=1, annotation_index=0, annotation=CITATION),
            after=ev.RefusalDelta,
        ),
        "a part of type refusal has no annotations",
    ),
    (RICH, change(ev.RefusalDone, refusal="no"), "not the sum of its deltas"),
    (RICH, repeat(ev.RefusalDone), "the whole text of a part comes exactly once"),
    (
        RICH,
        insert(ev.OutputTextDelta(**HERE, content_index=1, delta=""), after=ev.RefusalDelta),
        "does not happen to a part of type refusal",
    ),
    # reasoning
    ("reasoning", change(ev.ReasoningTextDone, text=""), "not the sum of its deltas"),
    ("reasoning", drop(ev.ReasoningTextDone), "only after its whole text"),
    ("reasoning", change_item(DONE, content=UNSET), "the item's content is not its parts"),
    (SUMMARIES, drop(ev.SummaryPartAdded), "no part with index 0"),
    (SUMMARIES, change(ev.SummaryPartAdded, 1, summary_index=2), "the next part has index 1"),
    (SUMMARIES, change(ev.SummaryTextDelta, summary_index=1), "no part with index 1"),
    (SUMMARIES, drop(ev.SummaryTextDelta), "not the sum of its deltas"),
    (SUMMARIES, drop(ev.SummaryTextDone), "only after its whole text"),
    (SUMMARIES, drop(ev.SummaryPartDone, 1), "a part is still open"),
    (SUMMARIES, change_part(ev.SummaryPartDone, text="x"), "the part is not the sum of its events"),
    (SUMMARIES, change_item(DONE, summary=()), "the item's summary is not its parts"),
    # calls
    ("a call run here", drop(ev.ArgumentsDelta), "the deltas add up to"),
    ("a call run here", change(ev.ArgumentsDone, arguments="{}"), "the deltas add up to"),
    ("a call run here", drop(ev.ArgumentsDone), "a call is done only after its whole arguments"),
    ("a call run here", repeat(ev.ArgumentsDone), "the whole arguments must come exactly once"),
    ("a call run here", change_item(DONE, 1, arguments="{}"), "not to the item's arguments"),
    ("a truncated call", change_item(DONE, arguments="{}"), "not to the item's arguments"),
    (
        "a call for the client",
        insert(ev.ArgumentsDelta(item_id="fc_1", output_index=0, delta=""), after=ev.ArgumentsDone),
        "no delta comes after the whole arguments",
    ),
    ("a call run here", change_item(ADDED, 1, call_id=""), "a call has a call_id"),
    ("a call run here", change_item(ADDED, 2, call_id=""), "a result has a call_id"),
    ("calls side by side", change_item(ADDED, 1, call_id="call_1"), "a call with call_id call_1 already"),
    (SERVER, change_item(ADDED, 3, call_id="call_mcp_1"), "a call with call_id call_mcp_1 already"),
    ("calls side by side", change_item(ADDED, 3, call_id="call_1"), "a result with call_id call_1 already"),
    (
        "calls side by side",
        become(stream([*SECOND_CALL, *in_order(result("fco_2", "call_2"), result("fco_1", "call_1"), first=2)])),
        "results come in the order of their calls",
    ),
    (
        "calls side by side",
        become(stream([*in_order(mcp_call("mcp_1"))[:-1], *in_order(result("r", "call_mcp_1"), first=1)])),
        "a result comes after its call is done",
    ),
    # calls of free-form tools
    (CUSTOM, change_item(ADDED, input="x"), "added with an empty input"),
    (CUSTOM, change_item(ADDED, status="completed"), "added with status in_progress"),
    (CUSTOM, drop(ev.CustomInputDelta), "the deltas add up to ' Patch', not to the whole input '*** Begin Patch'"),
    (CUSTOM, swap(ev.CustomInputDelta, ev.CustomInputDelta, other_nth=1), "the deltas add up to"),
    (CUSTOM, change(ev.CustomInputDone, input="x"), "the deltas add up to"),
    (CUSTOM, drop(ev.CustomInputDone), "a call is done only after its whole input"),
    (CUSTOM, repeat(ev.CustomInputDone), "the whole input must come exactly once"),
    (CUSTOM, repeat(ev.CustomInputDelta, 1), "the deltas add up to"),
    (CUSTOM, insert(TEXT_IN_CUSTOM, after=ADDED), "not happen inside an item of type custom_tool_call"),
    (
        CUSTOM,
        insert(ev.ArgumentsDelta(item_id="ctc_1", output_index=0, delta="x"), after=ADDED),
        "not happen inside an item of type custom_tool_call",
    ),
    (
        CUSTOM,
        insert(ev.CustomInputDelta(item_id="ctc_1", output_index=0, delta=""), after=ev.CustomInputDone),
        "no delta comes after the whole input",
    ),
    (CUSTOM, change_item(DONE, input="x"), "not to the item's input 'x'"),
    (CUSTOM, change_item(DONE, namespace="other"), "the item's namespace changed from editor to other"),
    (CUSTOM, change_item(DONE, namespace=UNSET), "the item's namespace changed from editor to UNSET"),
    (CUSTOM, change_item(DONE, name="other"), "the item's name changed"),
    (CUSTOM, change_item(DONE, call_id="call_9"), "the item's call_id changed"),
    ("a truncated custom call", change_item(DONE, input=""), "not to the item's input ''"),
    ("a call for the client", change_item(DONE, namespace="other"), "the item's namespace changed"),
    (
        "a call for the client",
        insert(ev.CustomInputDelta(item_id="fc_1", output_index=0, delta="x"), after=ADDED),
        "not happen inside an item of type function_call",
    ),
    (
        "a custom call for the client",
        become(stream(CUSTOM_ANSWERED, "requires_action")),
        "holds a call for the client",
    ),
    # a server's calls
    ("a paused call", drop(ev.McpCallInProgress), "arguments come after in_progress"),
    ("a paused call", repeat(ev.McpCallInProgress), "in_progress comes exactly once"),
    ("a paused call", swap(ev.McpCallInProgress, ev.McpArgumentsDelta), "arguments come after in_progress"),
    (SERVER, insert(STILL_RUNNING, after=ev.McpCallCompleted), "come again only while the tool works"),
    (SERVER, insert(HALF_WAY, after=ev.McpCallCompleted), "come again only while the tool works"),
    (SERVER, insert(HALF_WAY, after=ev.McpCallInProgress), "progress comes after the whole arguments"),
    (SERVER, insert(STILL_RUNNING, after=DONE, nth=-1), "is done and not touched any more"),
    (SERVER, insert(replace(STILL_RUNNING, item_id="mcp_9"), after=ev.McpArgumentsDone), "but the item here is mcp_1"),
    (SERVER, drop(ev.McpArgumentsDone, 1), "the outcome comes after the whole arguments"),
    (SERVER, repeat(ev.McpCallCompleted), "there is exactly one outcome"),
    (
        SERVER,
        insert(ev.McpCallFailed(item_id="mcp_1", output_index=2), after=ev.McpCallCompleted),
        "there is exactly one outcome",
    ),
    (SERVER, drop(ev.McpCallCompleted), "an output or error only after its outcome"),
    (SERVER, drop(ev.McpCallFailed), "done as failed only after mcp_call.failed"),
    (SERVER, change_item(DONE, 3, output="3", error="no"), "completed, with an output and no error"),
    (SERVER, change_item(DONE, 3, output=None), "completed, with an output and no error"),
    (SERVER, change_item(DONE, 2, error=None), "failed, with an error"),
    (SERVER, change_item(DONE, 2, status="completed"), "failed, with an error"),
    # a server's list of tools
    (SERVER, drop(ev.McpListToolsInProgress), "the outcome comes after in_progress"),
    (SERVER, repeat(ev.McpListToolsInProgress), "in_progress comes exactly once"),
    (SERVER, drop(ev.McpListToolsCompleted), "a list of tools is done only after its outcome"),
    (SERVER, repeat(ev.McpListToolsCompleted), "there is exactly one outcome"),
    (SERVER, change_item(DONE, 0, error="no"), "an error if and only if it failed"),
    (SERVER, change_item(DONE, 1, error=UNSET), "an error if and only if it failed"),
    ("a list of tools, added whole", change_item(DONE, tools=()), "an item that was added whole does not change"),
    (
        "a list of tools, added whole",
        insert(ev.McpListToolsInProgress(item_id="mcpl_1", output_index=0), after=ADDED),
        "a list of tools is done only after its outcome",
    ),
]

NEXT = "an item is added when the one before it is done, or, of an mcp_call, its arguments are"


def in_pieces(one: Item, other: Item) -> Events:
    """Two items of which each piece of one is followed by a piece of the other."""
    pairs = zip(one(0), other(1), strict=True)
    return [event for pair in pairs for event in pair]


INTERLEAVED: list[tuple[str, Mutation, str]] = [
    ("reasoning", move(DONE, behind=ADDED, behind_nth=1), NEXT),
    (WORK, move(DONE, behind=ADDED, behind_nth=1), NEXT),  # a message, and a call behind it
    (WORK, move(DONE, 1, behind=ADDED, behind_nth=2), NEXT),  # a call, and its result
    (WORK, move(DONE, 2, behind=ADDED, behind_nth=3), NEXT),  # a result, and the next message
    ("calls side by side", move(DONE, behind=ADDED, behind_nth=1), NEXT),
    ("calls side by side", move(DONE, 1, behind=ADDED, behind_nth=2), NEXT),
    (CUSTOM, move(DONE, behind=ADDED, behind_nth=1), NEXT),
    (SERVER, move(DONE, behind=ADDED, behind_nth=1), NEXT),  # a list of tools
    (SERVER, move(ev.McpArgumentsDone, behind=ADDED, behind_nth=3), NEXT),  # a server's call, and the next one
    (SERVER, move(ADDED, 4, behind=ev.McpArgumentsDelta, behind_nth=2), NEXT),  # a server's call, and a message
    ("text", become(stream(in_pieces(message("msg_1", "a"), message("msg_2", "b")))), NEXT),
    ("text", become(stream(in_pieces(reasoning("rs_1", "a"), reasoning("rs_2", "b")))), NEXT),
    (
        "text",
        become(stream(in_pieces(function_call("fc_1", "call_1", "{}"), function_call("fc_2", "call_2", "{}")))),
        NEXT,
    ),
    ("text", become(stream(in_pieces(custom_call("ctc_1", "call_1", "a"), custom_call("ctc_2", "call_2", "b")))), NEXT),
    (
        "text",
        become(stream(in_pieces(mcp_call("mcp_1", "{}", output="1"), mcp_call("mcp_2", "{}", output="2")))),
        NEXT,
    ),
]
MUTATIONS += INTERLEAVED


def told(name: str, mutate: Mutation) -> str:
    """What the checker says of the stream `name` after `mutate`."""
    with pytest.raises(GrammarError) as caught:
        check_stream(enumerate(mutate(VALID[name])))
    return str(caught.value)


@pytest.mark.parametrize(("name", "mutate", "rule"), MUTATIONS)
def test_a_stream_that_breaks_a_rule_is_told_which(name: str, mutate: Mutation, rule: str) -> None:
    assert rule in told(name, mutate)


@pytest.mark.proves("RULING-3b")
@pytest.mark.parametrize(("name", "mutate", "rule"), INTERLEAVED)
def test_a_stream_of_which_items_interleave_is_refused(name: str, mutate: Mutation, rule: str) -> None:
    assert rule in told(name, mutate)


@pytest.mark.proves("RULING-3b", "FR-016")
@pytest.mark.parametrize("status", ["completed", "failed"])
def test_items_may_be_added_while_a_servers_call_waits_for_its_result(status: str) -> None:
    call, behind = in_order(mcp_call("mcp_1", "{}", output="3")), in_order(message("msg_1", "So."), first=1)
    assert check_stream(enumerate(stream([*call[:-2], *behind, *call[-2:]], status))).status == status


def _rules() -> Iterator[str]:
    """Every sentence that the grammar can say, as a pattern."""
    for module in (grammar, base_grammar, item_grammar, call_grammar, part_grammar):
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("require", "Broken"):
                yield _pattern(node.args[-1])


def _pattern(sentence: ast.expr) -> str:
    if isinstance(sentence, ast.JoinedStr):
        return "".join(_pattern(piece) for piece in sentence.values)
    return re.escape(str(sentence.value)) if isinstance(sentence, ast.Constant) else ".*"


def test_every_rule_has_a_stream_that_breaks_it() -> None:
    said = [told(name, mutate).partition(": ")[2] for name, mutate, _ in MUTATIONS]
    said += [_told_of_number(0, 2), _told_of_mark()]
    unproven = [rule for rule in _rules() if not any(re.fullmatch(rule, sentence) for sentence in said)]
    assert unproven == []


# ---- numbers ----


def _told_of_number(*numbers: int) -> str:
    with pytest.raises(GrammarError) as caught:
        check_stream(zip(numbers, VALID["text"], strict=False))
    return caught.value.rule


def _told_of_mark() -> str:
    checker = StreamChecker()
    checker.feed(0, VALID["text"][0])
    with pytest.raises(GrammarError) as caught:
        checker.feed(1, ev.TurnEnded(finish="stop"))
    return caught.value.rule


@pytest.mark.parametrize("numbers", [(1,), (0, 0), (0, 2), (0, 1, 1), (0, 1, 0), (-1,)])
def test_a_number_that_is_not_the_next_is_refused(numbers: tuple[int, ...]) -> None:
    assert "they start at 0 and go up by one" in _told_of_number(*numbers)


def test_what_is_ours_alone_is_never_sent() -> None:
    assert _told_of_mark() == "this is never sent"


# ---- the error ----


def test_an_error_names_the_number_the_event_and_the_rule() -> None:
    with pytest.raises(GrammarError) as caught:
        check_stream(enumerate(drop(ev.OutputTextDone)(VALID["text"])))
    error = caught.value
    assert (error.number, error.event) == (7, "response.content_part.done")
    assert str(error) == "event 7 (response.content_part.done): a part is done only after its whole text"


def test_a_stream_without_an_end_says_how_far_it_came() -> None:
    with pytest.raises(GrammarError, match="the stream: it ended after 1 events without a terminal event"):
        check_stream(enumerate(VALID["text"][:1]))


# ---- settings ----


@pytest.mark.proves("RULING-10", "FR-023")
@pytest.mark.parametrize(
    ("name", "after", "nth"),
    [
        pytest.param("text", ev.ResponseInProgress, 0, id="before the first item"),
        pytest.param("text", ev.OutputTextDelta, 0, id="inside an item"),
        pytest.param(WORK, ev.ArgumentsDone, 0, id="inside a call"),
        pytest.param(WORK, DONE, 2, id="after the result of a call"),
        pytest.param(SERVER, DONE, -1, id="after a server's tools have ended"),
    ],
)
def test_keep_alives_repeat_in_progress_only_where_that_is_expected(
    name: str, after: type[ev.StreamEvent], nth: int
) -> None:
    events = insert(GOES_ON, after=after, nth=nth)(VALID[name])
    assert check_stream(enumerate(events), keepalive=True).status == "completed"
    with pytest.raises(GrammarError, match=r"response\.in_progress comes once"):
        check_stream(enumerate(events))


@pytest.mark.proves("RULING-10", "FR-023")
@pytest.mark.parametrize(
    ("name", "after"), [(WORK, DONE), (SERVER, ev.McpArgumentsDone)], ids=["a function", "a server's tool"]
)
def test_the_response_may_go_on_in_so_many_words_while_a_tool_works_here(
    name: str, after: type[ev.StreamEvent]
) -> None:
    again = insert(GOES_ON, after=after, nth=1)
    events = again(again(VALID[name]))
    assert check_stream(enumerate(events)).status == "completed"


def test_a_servers_call_may_say_again_that_it_is_in_progress_while_the_tool_works() -> None:
    again = insert(STILL_RUNNING, after=ev.McpArgumentsDone, nth=1)
    events = again(again(VALID[SERVER]))
    assert check_stream(enumerate(events)).status == "completed"


def test_a_keep_alive_still_carries_the_response_as_it_began() -> None:
    other = replace(CREATED, id="resp_2")
    events = insert(ev.ResponseInProgress(response=other), after=DONE)(VALID[WORK])
    with pytest.raises(GrammarError, match="not the one that was created"):
        check_stream(enumerate(events), keepalive=True)


@pytest.mark.proves("RULING-11")
def test_after_a_takeover_items_left_behind_may_be_followed_by_others() -> None:
    events = stream([*ONE_CUT, *in_order(message("msg_2", "anew"), first=1)])
    checker = StreamChecker(takeover=True)
    for number, event in enumerate(events):
        checker.feed(number, event)
    assert checker.finish().status == "completed"
    with pytest.raises(GrammarError, match="an incomplete item makes the response incomplete"):
        check_stream(enumerate(events))
