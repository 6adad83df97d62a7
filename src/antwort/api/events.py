"""The events of a run. The event log numbers them.

Clients receive a `StreamEvent`. The others carry facts that items do not hold; they are folded and recorded, and never
sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from antwort.api.items import ContentPart, LogProb, OutputItem, SummaryText
from antwort.api.responses import Response, Usage
from antwort.api.wire import UNSET, UnsetType, Wire


class Event(Wire):
    """The base class of events that are sent."""


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
    """Sent only if a setting enables it: most clients do not know this event."""

    response: Response


class ErrorEvent(Event, tag="error"):
    """An error before there is a response, in both known shapes: clients differ in which one they read."""

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
    """The base class of events of one item."""

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
    """Under the name that SDKs know. `standard.py` writes the name in the standard."""

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
    """The progress of a tool in its own units, for requests that include `mcp_call.progress`. An extension."""

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


# ---- recorded, and never sent ----


class TurnEnded(Wire, tag="antwort.turn_ended"):
    """An inference has ended. All items of its turn except results are in the output."""

    finish: str
    usage: Usage | UnsetType = UNSET
    estimate: int | UnsetType = UNSET
    """The estimated tokens, if the backend does not report them."""
    stop: str | UnsetType = UNSET
    """Why this was the last inference, made without tools: the reason for the end of the response."""


CallOutcome: TypeAlias = Literal["ran", "refused", "over_limit", "handed", "searched"]


class CallEnded(Wire, tag="antwort.call_ended"):
    """A call has ended: it `ran` here, was `refused`, came `over_limit` after `max_tool_calls` others, or `searched`
    for tools; or its executor has `handed` it to the client, and it has no result.
    """

    call_id: str
    outcome: CallOutcome


class CallBegun(Wire, tag="antwort.call_begun"):
    """A tool is about to be called. This is recorded before the call: without a result, the outcome is unknown."""

    call_id: str


class Compacted(Wire, tag="antwort.compacted"):
    """The context was compacted. The compaction item is the last of the output."""

    usage: Usage | UnsetType = UNSET
    """The tokens of the summary."""
    estimate: int | UnsetType = UNSET
    """The estimated tokens beside `usage`, if the backend does not report them."""
    is_missing: bool | UnsetType = UNSET
    """There is no item, because there was nothing to summarize or no summary could be made. The run continues."""


class TurnAbandoned(Wire, tag="antwort.turn_abandoned"):
    """The process that had the run was lost during an inference, which is repeated. The output of the lost inference
    stays in the response, from index `start` on, and is not sent to models.
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
"""Pieces of what the model writes."""
MARKS = (TurnEnded, CallEnded, Compacted, TurnAbandoned)
UNSENT = (*MARKS, CallBegun)
"""Events that are recorded, and never sent."""
RunEvent: TypeAlias = StreamEvent | Mark | CallBegun

Span: TypeAlias = tuple[int, int]
"""Indexes of output items: the first one, and the one after the last."""


def is_within(spans: Iterable[Span], place: int) -> bool:
    """Return whether an index is in one of the spans."""
    return any(start <= place < end for start, end in spans)


Batch: TypeAlias = list[RunEvent]
"""The events from one read of the backend, which are numbered, recorded, encoded and written together.

A batch with marks ends with one, so its last event tells whether it holds any.
"""
