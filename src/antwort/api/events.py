"""Events: what happened and where. An event never knows its own number; one place counts.

`TurnEnded` and `CallEnded` are ours alone. They carry the few facts that items do not hold, are folded and recorded
like the others, and are never sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from antwort.api.items import ContentPart, LogProb, OutputItem, SummaryText
from antwort.api.responses import Response, Usage
from antwort.api.wire import UNSET, UnsetType, Wire


class Event(Wire):
    """The base of all that is sent."""


# ---- the life of a response ----


class ResponseCreated(Event, tag="response.created"):
    response: Response


class ResponseQueued(Event, tag="response.queued"):
    response: Response


class ResponseInProgress(Event, tag="response.in_progress"):
    response: Response


class ResponseCompleted(Event, tag="response.completed"):
    response: Response


class ResponseFailed(Event, tag="response.failed"):
    response: Response


class ResponseIncomplete(Event, tag="response.incomplete"):
    response: Response


class ResponseRequiresAction(Event, tag="response.requires_action"):
    """Only under the setting that asks for it: most clients do not know this event."""

    response: Response


class ErrorEvent(Event, tag="error"):
    """Only where no response exists yet. Both known shapes at once: clients differ in which one they read."""

    code: str
    message: str
    param: str | None
    error: dict[str, Any]


# ---- items ----


class OutputItemAdded(Event, tag="response.output_item.added"):
    output_index: int
    item: OutputItem


class OutputItemDone(Event, tag="response.output_item.done"):
    output_index: int
    item: OutputItem


class ItemEvent(Event):
    """Happens inside one item."""

    item_id: str
    output_index: int


class ContentPartAdded(ItemEvent, tag="response.content_part.added"):
    content_index: int
    part: ContentPart


class ContentPartDone(ItemEvent, tag="response.content_part.done"):
    content_index: int
    part: ContentPart


class OutputTextDelta(ItemEvent, tag="response.output_text.delta"):
    content_index: int
    delta: str
    logprobs: tuple[LogProb, ...] = ()


class OutputTextDone(ItemEvent, tag="response.output_text.done"):
    content_index: int
    text: str
    logprobs: tuple[LogProb, ...] = ()


class AnnotationAdded(ItemEvent, tag="response.output_text.annotation.added"):
    content_index: int
    annotation_index: int
    annotation: dict[str, Any]


class RefusalDelta(ItemEvent, tag="response.refusal.delta"):
    content_index: int
    delta: str


class RefusalDone(ItemEvent, tag="response.refusal.done"):
    content_index: int
    refusal: str


class ReasoningTextDelta(ItemEvent, tag="response.reasoning_text.delta"):
    """By the name that SDKs know. The standard has another (`standard.py`)."""

    content_index: int
    delta: str


class ReasoningTextDone(ItemEvent, tag="response.reasoning_text.done"):
    content_index: int
    text: str


class SummaryPartAdded(ItemEvent, tag="response.reasoning_summary_part.added"):
    summary_index: int
    part: SummaryText


class SummaryPartDone(ItemEvent, tag="response.reasoning_summary_part.done"):
    summary_index: int
    part: SummaryText


class SummaryTextDelta(ItemEvent, tag="response.reasoning_summary_text.delta"):
    summary_index: int
    delta: str


class SummaryTextDone(ItemEvent, tag="response.reasoning_summary_text.done"):
    summary_index: int
    text: str


class ArgumentsDelta(ItemEvent, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(ItemEvent, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class CustomInputDelta(ItemEvent, tag="response.custom_tool_call_input.delta"):
    delta: str


class CustomInputDone(ItemEvent, tag="response.custom_tool_call_input.done"):
    input: str


class McpArgumentsDelta(ItemEvent, tag="response.mcp_call_arguments.delta"):
    delta: str


class McpArgumentsDone(ItemEvent, tag="response.mcp_call_arguments.done"):
    arguments: str


class McpCallInProgress(ItemEvent, tag="response.mcp_call.in_progress"):
    pass


class McpCallProgress(ItemEvent, tag="response.mcp_call.progress"):
    """An extension, for requests that include `mcp_call.progress`: how far the tool says it is, in units of its own."""

    progress: float | UnsetType = UNSET
    total: float | UnsetType = UNSET
    message: str | UnsetType = UNSET


class McpCallCompleted(ItemEvent, tag="response.mcp_call.completed"):
    pass


class McpCallFailed(ItemEvent, tag="response.mcp_call.failed"):
    pass


class McpListToolsInProgress(ItemEvent, tag="response.mcp_list_tools.in_progress"):
    pass


class McpListToolsCompleted(ItemEvent, tag="response.mcp_list_tools.completed"):
    pass


class McpListToolsFailed(ItemEvent, tag="response.mcp_list_tools.failed"):
    pass


# ---- ours alone ----


class TurnEnded(Wire, tag="antwort.turn_ended"):
    """An inference is over. All items of its turn but the results are in the output by now."""

    finish: str
    usage: Usage | UnsetType = UNSET
    estimate: int | UnsetType = UNSET
    """The tokens it may have taken, where the backend does not tell."""
    stop: str | UnsetType = UNSET
    """Why it was the last one, made without tools: the reason that the response ends for."""


CallOutcome: TypeAlias = Literal["ran", "refused", "over_limit", "handed", "searched"]


class CallEnded(Wire, tag="antwort.call_ended"):
    """A call has its result: it `ran` here, was `refused`, or came `over_limit` after `max_tool_calls` others.

    Or it was `handed` to the client by the executor that was asked to run it, and has none. Or it `searched` for tools.
    """

    call_id: str
    outcome: CallOutcome


class CallBegun(Wire, tag="antwort.call_begun"):
    """A tool is about to be asked. It is on record before the tool is: where no result follows, nobody knows what came
    of it.
    """

    call_id: str


class Compacted(Wire, tag="antwort.compacted"):
    """What was said so far is summed up: the compaction item that says so is the last of the output by now."""

    usage: Usage | UnsetType = UNSET
    """What writing it cost."""
    estimate: int | UnsetType = UNSET
    """The tokens it may have taken beside that, where the backend does not tell."""
    is_missing: bool | UnsetType = UNSET
    """There is no such item: there was nothing to sum up, or no summary to be had, and the run goes on without."""


class TurnAbandoned(Wire, tag="antwort.turn_abandoned"):
    """Whoever made the run before has left in the middle of an inference, which is made anew. What it had said shows in
    the output, from the item in the place `start` up to here, and no model is told of it.
    """

    start: int


Terminal: TypeAlias = ResponseCompleted | ResponseFailed | ResponseIncomplete | ResponseRequiresAction
TERMINAL = (ResponseCompleted, ResponseFailed, ResponseIncomplete, ResponseRequiresAction)

StreamEvent: TypeAlias = (
    ResponseCreated
    | ResponseQueued
    | ResponseInProgress
    | Terminal
    | ErrorEvent
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | AnnotationAdded
    | RefusalDelta
    | RefusalDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | SummaryPartAdded
    | SummaryPartDone
    | SummaryTextDelta
    | SummaryTextDone
    | ArgumentsDelta
    | ArgumentsDone
    | CustomInputDelta
    | CustomInputDone
    | McpArgumentsDelta
    | McpArgumentsDone
    | McpCallInProgress
    | McpCallProgress
    | McpCallCompleted
    | McpCallFailed
    | McpListToolsInProgress
    | McpListToolsCompleted
    | McpListToolsFailed
)
Mark: TypeAlias = TurnEnded | CallEnded | Compacted | TurnAbandoned
DELTAS = (
    OutputTextDelta,
    ReasoningTextDelta,
    SummaryTextDelta,
    RefusalDelta,
    ArgumentsDelta,
    CustomInputDelta,
    McpArgumentsDelta,
)
"""Pieces of what the model says."""
MARKS = (TurnEnded, CallEnded, Compacted, TurnAbandoned)
UNSENT = (*MARKS, CallBegun)
"""What is recorded, and never sent."""
RunEvent: TypeAlias = StreamEvent | Mark | CallBegun

Span: TypeAlias = tuple[int, int]
"""Places in the output, from the first on and before the second."""


def is_within(spans: Iterable[Span], place: int) -> bool:
    return any(start <= place < end for start, end in spans)


Batch: TypeAlias = list[RunEvent]
"""The events born of one read from the backend. Numbered, recorded, encoded and written as one.

A batch that holds marks ends with one: so a batch of deltas is told apart by a look at its last event.
"""
