"""Streams made by hand: the events of single items, and whole streams that follow the grammar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from antwort.api import events as ev
from antwort.api.events import StreamEvent
from antwort.api.items import (
    ContentPart,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
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
)
from antwort.api.responses import IncompleteDetails, Response, ResponseError, Usage
from antwort.api.status import ItemStatus
from antwort.api.wire import UNSET, replace

Events: TypeAlias = list[StreamEvent]
Item: TypeAlias = Callable[[int], Events]
"""The events of one item, once its index is known. The last one is its done."""

CREATED = Response(id="resp_1", created_at=1700000000, status="in_progress", model="small")
CITATION = {"type": "url_citation", "url": "https://example.org", "title": "t", "start_index": 0, "end_index": 1}
TOOLS = (McpToolInfo(name="add", input_schema={"type": "object"}),)


# ---- items ----


def _at(item_id: str, index: int, **more: int) -> dict[str, Any]:
    return {"item_id": item_id, "output_index": index, **more}


def text_part(item_id: str, index: int, at: int, *pieces: str, cited: bool = False, rated: bool = False) -> Events:
    here = _at(item_id, index, content_index=at)
    logprobs = (LogProb(token="t", logprob=-0.5),) if rated else ()
    part = OutputText(text="".join(pieces), annotations=(CITATION,) if cited else (), logprobs=logprobs * len(pieces))
    return [
        ev.ContentPartAdded(**here, part=OutputText(text="")),
        *(ev.OutputTextDelta(**here, delta=piece, logprobs=logprobs) for piece in pieces),
        *([ev.AnnotationAdded(**here, annotation_index=0, annotation=CITATION)] if cited else []),
        ev.OutputTextDone(**here, text=part.text, logprobs=part.logprobs),
        ev.ContentPartDone(**here, part=part),
    ]


def refusal_part(item_id: str, index: int, at: int, *pieces: str) -> Events:
    here = _at(item_id, index, content_index=at)
    whole = "".join(pieces)
    return [
        ev.ContentPartAdded(**here, part=Refusal(refusal="")),
        *(ev.RefusalDelta(**here, delta=piece) for piece in pieces),
        ev.RefusalDone(**here, refusal=whole),
        ev.ContentPartDone(**here, part=Refusal(refusal=whole)),
    ]


def reasoning_part(item_id: str, index: int, at: int, *pieces: str) -> Events:
    here = _at(item_id, index, content_index=at)
    whole = "".join(pieces)
    return [
        ev.ContentPartAdded(**here, part=ReasoningText(text="")),
        *(ev.ReasoningTextDelta(**here, delta=piece) for piece in pieces),
        ev.ReasoningTextDone(**here, text=whole),
        ev.ContentPartDone(**here, part=ReasoningText(text=whole)),
    ]


def summary_part(item_id: str, index: int, at: int, *pieces: str) -> Events:
    here = _at(item_id, index, summary_index=at)
    whole = "".join(pieces)
    return [
        ev.SummaryPartAdded(**here, part=SummaryText(text="")),
        *(ev.SummaryTextDelta(**here, delta=piece) for piece in pieces),
        ev.SummaryTextDone(**here, text=whole),
        ev.SummaryPartDone(**here, part=SummaryText(text=whole)),
    ]


def _parts(events: Events) -> tuple[ContentPart, ...]:
    return tuple(event.part for event in events if isinstance(event, ev.ContentPartDone))


def item(opened: OutputItem, inside: Events, done: OutputItem, index: int) -> Events:
    return [
        ev.OutputItemAdded(output_index=index, item=opened),
        *inside,
        ev.OutputItemDone(output_index=index, item=done),
    ]


def message(item_id: str, *pieces: str, status: ItemStatus = "completed") -> Item:
    def events(index: int) -> Events:
        inside = text_part(item_id, index, 0, *pieces)
        opened = Message(id=item_id, role="assistant", content=(), status="in_progress")
        return item(opened, inside, replace(opened, content=_parts(inside), status=status), index)

    return events


def rich_message(item_id: str) -> Item:
    """Two parts: a text with a citation and logprobs, and a refusal."""

    def events(index: int) -> Events:
        inside = text_part(item_id, index, 0, "a", "b", cited=True, rated=True)
        inside += refusal_part(item_id, index, 1, "no", ".")
        opened = Message(id=item_id, role="assistant", content=(), status="in_progress")
        return item(opened, inside, replace(opened, content=_parts(inside), status="completed"), index)

    return events


def reasoning(
    item_id: str,
    *pieces: str,
    summaries: Sequence[Sequence[str]] = (),
    status: ItemStatus = "completed",
) -> Item:
    def events(index: int) -> Events:
        inside = reasoning_part(item_id, index, 0, *pieces) if pieces else []
        content = tuple(part for part in _parts(inside) if isinstance(part, ReasoningText))
        summary = [part for at, texts in enumerate(summaries) for part in summary_part(item_id, index, at, *texts)]
        opened = Reasoning(id=item_id, status="in_progress")
        done = Reasoning(
            id=item_id,
            summary=tuple(SummaryText(text="".join(texts)) for texts in summaries),
            content=content or UNSET,
            status=status,
        )
        return item(opened, inside + summary, done, index)

    return events


def function_call(
    item_id: str, call_id: str, *pieces: str, name: str = "add", status: ItemStatus = "completed"
) -> Item:
    def events(index: int) -> Events:
        here = _at(item_id, index)
        whole = "".join(pieces)
        inside: Events = [ev.ArgumentsDelta(**here, delta=piece) for piece in pieces]
        if status == "completed":
            inside.append(ev.ArgumentsDone(**here, name=name, arguments=whole))
        opened = FunctionCall(id=item_id, call_id=call_id, name=name, arguments="", status="in_progress")
        return item(opened, inside, replace(opened, arguments=whole, status=status), index)

    return events


def custom_call(item_id: str, call_id: str, *pieces: str, status: ItemStatus = "completed") -> Item:
    """A call of a free-form tool, of a namespace."""

    def events(index: int) -> Events:
        here = _at(item_id, index)
        text = "".join(pieces)
        inside: Events = [ev.CustomInputDelta(**here, delta=piece) for piece in pieces]
        if status == "completed":
            inside.append(ev.CustomInputDone(**here, input=text))
        opened = CustomToolCall(
            id=item_id, call_id=call_id, name="patch", input="", status="in_progress", namespace="editor"
        )
        return item(opened, inside, replace(opened, input=text, status=status), index)

    return events


def mcp_call(
    item_id: str, *pieces: str, output: str | None = None, error: str | None = None, is_cut: bool = False
) -> Item:
    """With neither `output` nor `error` it is paused; with `is_cut` it is closed as incomplete."""

    def events(index: int) -> Events:
        here = _at(item_id, index)
        whole = "".join(pieces)
        inside: Events = [ev.McpCallInProgress(**here), *(ev.McpArgumentsDelta(**here, delta=p) for p in pieces)]
        if not is_cut:
            inside.append(ev.McpArgumentsDone(**here, arguments=whole))
        opened = McpCall(
            id=item_id, server_label="tools", name="add", arguments="", status="in_progress", call_id=f"call_{item_id}"
        )
        done = replace(opened, arguments=whole, status="incomplete" if is_cut else "completed")
        if output is not None:
            inside.append(ev.McpCallCompleted(**here))
            done = replace(done, output=output)
        if error is not None:
            inside.append(ev.McpCallFailed(**here))
            done = replace(done, error=error, status="failed")
        return item(opened, inside, done, index)

    return events


def list_tools(item_id: str, *, error: str | None = None) -> Item:
    def events(index: int) -> Events:
        here = _at(item_id, index)
        opened = McpListTools(id=item_id, server_label="tools", tools=(), status="in_progress")
        end = ev.McpListToolsCompleted(**here) if error is None else ev.McpListToolsFailed(**here)
        done = replace(opened, status="completed", **({"tools": TOOLS} if error is None else {"error": error}))
        return item(opened, [ev.McpListToolsInProgress(**here), end], done, index)

    return events


def whole(done: OutputItem) -> Item:
    """An item that is added as it is done."""
    return lambda index: item(done, [], done, index)


def result(item_id: str, call_id: str, output: str = "3") -> Item:
    done = FunctionCallOutput(id=item_id, call_id=call_id, output=output)
    return lambda index: item(replace(done, output="", status="in_progress"), [], done, index)


# ---- streams ----


def in_order(*items: Item, first: int = 0) -> Events:
    """The events of items that come one after the other."""
    return [event for index, made in enumerate(items, first) for event in made(index)]


def side_by_side(*items: Item, first: int = 0) -> Events:
    """The events of servers' calls that are written one after the other, and run at the same time: the last one ends
    first.
    """
    calls = [made(index) for index, made in enumerate(items, first)]
    ends = [written(call) for call in calls]
    asked = [event for call, end in zip(calls, ends, strict=True) for event in call[:end]]
    return [*asked, *_in_turn([call[end:] for call, end in zip(calls, ends, strict=True)][::-1])]


def written(item: Events) -> int:
    """How many of the events of an item come before the next item may be added."""
    said = (at for at, event in enumerate(item, 1) if isinstance(event, ev.McpArgumentsDone))
    return next(said, len(item))


def _in_turn(queues: list[Events]) -> Iterator[StreamEvent]:
    while any(queues):
        for queue in filter(None, queues):
            yield queue.pop(0)


def output_of(events: Events) -> tuple[OutputItem, ...]:
    done = {event.output_index: event.item for event in events if isinstance(event, ev.OutputItemDone)}
    return tuple(done[index] for index in sorted(done))


def ended(events: Events, status: str = "completed", *, reason: str | None = None) -> StreamEvent:
    """The terminal event that `events` lead to."""
    response = msgspec.structs.replace(
        CREATED,
        status=status,
        output=output_of(events),
        usage=Usage(input_tokens=3, output_tokens=2, total_tokens=5),
        completed_at=1700000001 if status == "completed" else None,
        error=ResponseError(code="backend_error", message="It broke.") if status == "failed" else None,
        incomplete_details=IncompleteDetails(reason=reason) if reason else None,
    )
    if status == "failed":
        return ev.ResponseFailed(response=response)
    if status in ("incomplete", "cancelled"):
        return ev.ResponseIncomplete(response=response)
    return ev.ResponseCompleted(response=response)


def stream(inside: Events, status: str = "completed", *, reason: str | None = None) -> Events:
    """A whole stream around the events of its items."""
    opening: Events = [ev.ResponseCreated(response=CREATED), ev.ResponseInProgress(response=CREATED)]
    return [*opening, *inside, ended(inside, status, reason=reason)]


QUEUED = replace(CREATED, status="queued")
CUT = in_order(
    reasoning("rs_1", "hm", status="incomplete"),
    message("msg_1", "half", status="incomplete"),
    function_call("fc_1", "call_1", '{"a', status="incomplete"),
    custom_call("ctc_1", "call_2", "***", status="incomplete"),
    mcp_call("mcp_1", "{", is_cut=True),
)
ROUND = [
    *in_order(message("msg_1", "I", " add"), function_call("fc_1", "call_1", '{"a":1', "}"), result("fco_1", "call_1")),
    *in_order(message("msg_2", "3"), first=3),
]
PARALLEL = [
    *in_order(function_call("fc_1", "call_1", "{", "}"), function_call("fc_2", "call_2", "{}")),
    *in_order(result("fco_1", "call_1"), result("fco_2", "call_2"), message("msg_1", "done"), first=2),
]
MCP = [
    *in_order(list_tools("mcpl_1"), list_tools("mcpl_2", error="unreachable")),
    *side_by_side(mcp_call("mcp_1", "{", "}", output="3"), mcp_call("mcp_2", "{}", error="no"), first=2),
    *in_order(message("msg_1", "3"), first=4),
]
PAUSED = in_order(function_call("fc_1", "call_1", "{}"), mcp_call("mcp_1", "{}"))
APPROVAL = in_order(
    whole(McpApprovalRequest(id="mcpr_1", server_label="tools", name="add", arguments="{}")),
)
LISTED = in_order(whole(McpListTools(id="mcpl_1", server_label="tools", tools=TOOLS)))
CUT_LIST = in_order(list_tools("mcpl_1"))
CUT_LIST[2:] = [
    ev.OutputItemDone(
        output_index=0, item=McpListTools(id="mcpl_1", server_label="tools", tools=(), status="incomplete")
    )
]
NO_CALL_ID = McpCall(id="mcp_1", server_label="tools", name="add", arguments="", status="in_progress")
UNTIED = [
    ev.OutputItemAdded(output_index=0, item=NO_CALL_ID),
    *in_order(mcp_call("mcp_1"))[1:-1],
    ev.OutputItemDone(output_index=0, item=replace(NO_CALL_ID, status="completed")),
]
CUSTOM = in_order(
    custom_call("ctc_1", "call_1", "*** Begin", " Patch"),
    whole(CustomToolCallOutput(id="ctco_1", call_id="call_1", output="ok")),
)

VALID: dict[str, Events] = {
    "text": stream(in_order(message("msg_1", "Hello", " ", "world"))),
    "no output at all": stream([]),
    "a message without deltas": stream(in_order(message("msg_1"))),
    "two parts, a citation and logprobs": stream(in_order(rich_message("msg_1"))),
    "reasoning": stream(in_order(reasoning("rs_1", "hm", "m"), message("msg_1", "yes"))),
    "reasoning with summaries": stream(in_order(reasoning("rs_1", "hm", summaries=[["a", "b"], ["c"]]))),
    "reasoning with a summary only": stream(in_order(reasoning("rs_1", summaries=[["a"]]))),
    "a call for the client": stream(in_order(function_call("fc_1", "call_1", "{}")), "requires_action"),
    "a call for the client, plain completed": stream(in_order(function_call("fc_1", "call_1", "{}"))),
    "a call run here": stream(ROUND),
    "calls side by side": stream(PARALLEL),
    "a server's calls, side by side": stream(MCP),
    "a paused call": stream(PAUSED, "requires_action"),
    "an approval": stream(APPROVAL, "requires_action"),
    "a custom call": stream(CUSTOM),
    "a custom call for the client": stream(in_order(custom_call("ctc_1", "call_1", "x")), "requires_action"),
    "a truncated custom call": stream(
        in_order(custom_call("ctc_1", "call_1", "x", status="incomplete")), "incomplete", reason="max_output_tokens"
    ),
    "a list of tools, added whole": stream(LISTED),
    "cancelled, with a list of tools cut": stream(CUT_LIST, "cancelled"),
    "a server's call without a call_id": stream(UNTIED),
    "a result of an earlier response's call": stream(in_order(result("fco_1", "call_9"), message("msg_1", "3"))),
    "a truncated message": stream(
        in_order(message("msg_1", "half", status="incomplete")), "incomplete", reason="max_output_tokens"
    ),
    "a truncated call": stream(
        in_order(function_call("fc_1", "call_1", "{", status="incomplete")), "incomplete", reason="max_output_tokens"
    ),
    "the turn limit": stream(ROUND, "incomplete", reason="max_turns"),
    "failed, with items cut": stream(CUT, "failed"),
    "cancelled, with items cut": stream(CUT, "cancelled"),
    "the deadline, with items cut": stream(CUT, "incomplete", reason="deadline"),
    "requires_action as an event": [
        *stream(PAUSED)[:-1],
        ev.ResponseRequiresAction(response=replace(CREATED, status="requires_action", output=output_of(PAUSED))),
    ],
    "queued first": [
        ev.ResponseCreated(response=QUEUED),
        ev.ResponseQueued(response=QUEUED),
        *stream(in_order(message("msg_1", "hi")))[1:],
    ],
    "cancelled while queued": [ev.ResponseCreated(response=QUEUED), ended([], "cancelled")],
}
